"""An example of an operation, and its place in the document."""

from dataclasses import dataclass, field
from typing import Any

Operation = dict[str, Any]


@dataclass(frozen=True)
class Example:
    """A request that runs as it stands on the loaded model.

    Its body is a `value`, or a `file` under /docs/examples/. `parameters` are those that it needs beside the body.
    `answer` is what comes back, where that is known beforehand; a refusal's always is.
    """

    name: str
    summary: str
    content_type: str
    value: Any = None
    file: str | None = None
    parameters: dict[str, str] = field(default_factory=dict)
    status: int = 200
    answer: Any = None

    def put_into(self, operation: Operation) -> None:
        """Put the request, its parameters and its answer into an operation, all under its name."""
        body: dict[str, Any] = {"summary": self.summary}
        body |= {"value": self.value} if self.file is None else {"externalValue": f"/docs/examples/{self.file}"}
        _examples(operation["requestBody"]["content"][self.content_type])[self.name] = body
        optional = dict(self.parameters)
        for parameter in operation["parameters"]:
            if parameter["required"] and parameter["name"] in optional:
                put_value(parameter, self.name, self.summary, optional.pop(parameter["name"]))
        if optional:
            # as an example of the parameter it would be filled in for every body: /docs takes the first that it finds
            body["x-parameters"] = optional
        if self.answer is not None:
            put_answer(operation, self.status, self.name, self.summary, self.answer)


def put_value(place: dict[str, Any], name: str, summary: str, value: Any) -> None:
    """Put a value under a name into a parameter or the content of a body."""
    _examples(place)[name] = {"summary": summary, "value": value}


def put_answer(operation: Operation, status: int, name: str, summary: str, answer: Any) -> None:
    """Put an answer under a name into a response; the first of its content types is what answers in JSON."""
    content = operation["responses"][str(status)]["content"]
    put_value(next(iter(content.values())), name, summary, answer)


def _examples(place: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = place.setdefault("examples", {})
    return found

"""The `parameters` of an inference request: the names of those that are known, and the schema of each."""

from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

Schemas = dict[str, dict[str, Any]]


def _text(description: str, **more: Any) -> dict[str, Any]:
    return {"type": "string", "description": description} | more


def _count(description: str, least: int = 0) -> dict[str, Any]:
    return {"type": "integer", "minimum": least, "description": description}


def _flag(description: str) -> dict[str, Any]:
    return {"type": "boolean", "default": False, "description": description}


SELECTION: Schemas = {
    "as": _text("the name in the answer; with a pattern what stands before each name, and a dot"),
    "heads": _text('of q, k, v, attn_scores, attn_probs, z: these heads, such as "[0, 2]"'),
    "rows": _text('these token positions, of maps the query rows: "[-1]", or "{\\"start\\": 1, \\"stop\\": 3}"'),
    "keys": _text("of maps: these columns, likewise"),
    "top_k": _count("of maps and logits: the k largest of each row, as NAME.values and NAME.indices", 1),
    "pool": _text("of [N, d] points: the mean over the chosen rows", enum=["mean"]),
    "dtype": _text("the dtype of the result", enum=["float32", "float16", "bfloat16"]),
}
OF_INPUT: Schemas = {
    "start": _count("the first layer to run; above 0 only with x"),
    "positions": _text('a position for each row, where the model uses them, such as "[0, 1, 2]"; 0 to N-1 if absent'),
}
OF_REQUEST: Schemas = {
    "timeout_ms": _count("a deadline of the caller's own, in milliseconds", 1),
    "timeout": _count("the same in microseconds, as Triton's client has it; 0 for none"),
    "binary_data_output": _flag("send every output behind the JSON, but those that say otherwise"),
}
OF_OUTPUT: Schemas = {"binary_data": _flag("send this output behind the JSON")}
SIZE: Schemas = {"binary_data_size": _count("bytes of this input behind the JSON, instead of `data`; little-endian")}


def _object(schemas: Schemas) -> WithJsonSchema:
    return WithJsonSchema(
        {"anyOf": [{"type": "object", "properties": schemas, "additionalProperties": False}, {"type": "null"}]}
    )


_Given = dict[str, Any] | None
RequestParameters = Annotated[
    _Given,
    _object(SELECTION | OF_INPUT | OF_REQUEST),
    Field(None, description="scalars, lists as JSON in a string. Selection is for each named output without its own"),
]
InputParameters = Annotated[
    _Given, _object(OF_INPUT | SIZE), Field(None, description="scalars, lists as JSON in a string")
]
OutputParameters = Annotated[
    _Given, _object(SELECTION | OF_OUTPUT), Field(None, description="scalars, lists as JSON in a string")
]

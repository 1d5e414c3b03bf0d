"""Reading /openapi.json as its users do: its schemas, its operations, and each example as the request that it is."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx

METHODS = {"get", "put", "post", "delete", "options", "head", "patch", "trace"}
Json = dict[str, Any]


def document(client: httpx.Client) -> Json:
    found: Json = client.get("/openapi.json").json()
    return found


def operations(whole: Json) -> Iterator[tuple[str, str, Json]]:
    """Path, method and operation of each."""
    for path, of_path in whole["paths"].items():
        for method, operation in of_path.items():
            assert method in METHODS
            yield path, method, operation


def undescribed(whole: Json) -> list[str]:
    """Pointers to all in the document that should be described and is not."""
    found = [f"tag {tag['name']}" for tag in whole.get("tags", []) if not tag.get("description")]
    components = whole["components"]
    for name, schema in components["schemas"].items():
        if not schema.get("description"):
            found.append(f"#/components/schemas/{name}")
        found += _properties(schema, f"#/components/schemas/{name}")
    found += [f"scheme {name}" for name, one in components["securitySchemes"].items() if not one.get("description")]
    tags = {tag["name"] for tag in whole.get("tags", [])}
    for path, method, operation in operations(whole):
        at = f"{method} {path}"
        found += [f"{at}: {part}" for part in ("summary", "description") if not operation.get(part)]
        found += [f"{at}: tag {tag}" for tag in operation.get("tags", [None]) if tag not in tags]
        parts = [(f"parameter {one['name']}", one) for one in operation.get("parameters", [])]
        if "requestBody" in operation:
            parts.append(("body", operation["requestBody"]))
        for status, response in operation["responses"].items():
            parts.append((f"response {status}", response))
            parts += [(f"header {name} of {status}", one) for name, one in response.get("headers", {}).items()]
        for name, part in parts:
            if not part.get("description") or part["description"] == "Successful Response":
                found.append(f"{at}: {name}")
            schemas = [part["schema"]] if "schema" in part else []
            schemas += [one["schema"] for one in part.get("content", {}).values()]
            for schema in schemas:
                found += _properties(schema, f"{at}: {name}")
                if schema.get("format") == "binary" and not schema.get("description"):
                    found.append(f"{at}: {name}, binary")
            for place in [part, *part.get("content", {}).values()]:
                found += [
                    f"{at}: {name}: example {label}"
                    for label, one in place.get("examples", {}).items()
                    if not one.get("summary")
                ]
    return found


def _properties(schema: Any, at: str) -> list[str]:
    """Pointers to the properties without a description, however deep they stand."""
    if isinstance(schema, list):
        return [one for i, part in enumerate(schema) for one in _properties(part, f"{at}/{i}")]
    if not isinstance(schema, dict):
        return []
    found = []
    for name, of_property in schema.get("properties", {}).items():
        if not of_property.get("description"):
            found.append(f"{at}/properties/{name}")
        found += _properties(of_property, f"{at}/properties/{name}")
    for key in ("items", "anyOf", "oneOf", "allOf", "additionalProperties", "$defs"):
        found += _properties(schema.get(key), f"{at}/{key}")
    return found


def untold(value: Any, schema: Json, whole: Json, at: str = "") -> list[str]:
    """Pointers to the fields of a body that its schema does not have."""
    if "$ref" in schema:
        schema = whole["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return min((untold(value, one, whole, at) for one in choices), key=len)
    if isinstance(value, dict):
        properties, more = schema.get("properties", {}), schema.get("additionalProperties")
        found = []
        for key, one in value.items():
            of_key = properties.get(key, more if isinstance(more, dict) else None)
            found += [f"{at}/{key}"] if of_key is None else untold(one, of_key, whole, f"{at}/{key}")
        return found
    if isinstance(value, list) and "items" in schema:
        return [name for i, one in enumerate(value) for name in untold(one, schema["items"], whole, f"{at}/{i}")]
    return []


@dataclass(frozen=True)
class Sent:
    """An example as the request that it is, where it stands, and what should come back (None: not told)."""

    where: str
    method: str
    path: str
    request: Json
    status: int
    answer: Any


def examples(whole: Json, client: httpx.Client) -> list[Sent]:
    """Every example of the document, put together as its description says; bodies in files are fetched."""
    return [sent for path, method, one in operations(whole) for sent in _of_operation(path, method, one, client)]


def _of_operation(path: str, method: str, operation: Json, client: httpx.Client) -> Iterator[Sent]:
    parameters = operation.get("parameters", [])
    bodies = operation.get("requestBody", {}).get("content", {})
    answers = [
        (int(status), name, one.get("value"))
        for status, response in operation["responses"].items()
        for content in response["content"].values()
        for name, one in content.get("examples", {}).items()
    ]
    # where there is a body, a request is what has one: "served" of a path alone is none
    names = {name for place in bodies.values() or parameters for name in place.get("examples", {})}
    names |= {name for _, name, _ in answers}
    for name in sorted(names) or [""]:
        told = [(status, answer) for status, label, answer in answers if label == name]
        assert len(told) <= 1, f"{method} {path}: {name} stands under {told}"
        status, answer = told[0] if told else (200, None)
        headers: Json = {}
        params: Json = {}
        target = path
        beside = next((one["examples"][name] for one in bodies.values() if name in one["examples"]), {})
        beside = dict(beside.get("x-parameters", {}))
        for parameter in parameters:
            if parameter["required"]:
                given = parameter["examples"]
                value = given[name]["value"] if name in given else next(iter(given.values()))["value"]
                target = target.replace("{" + parameter["name"] + "}", quote(value))
            elif parameter["name"] in beside:
                value = beside.pop(parameter["name"])
                {"query": params, "header": headers}[parameter["in"]][parameter["name"]] = value
            assert parameter["required"] or "examples" not in parameter, "it would be filled in for every body"
        assert not beside, f"{method} {path}: {name} needs {beside}, which are no parameters of it"
        request: Json = {"headers": headers, "params": params}
        if bodies:
            ((content_type, body),) = [
                (of, one["examples"][name]) for of, one in bodies.items() if name in one["examples"]
            ]
            headers["Content-Type"] = content_type
            if "externalValue" in body:
                request["content"] = client.get(body["externalValue"]).raise_for_status().content
            else:
                request["json"] = body["value"]
        yield Sent(f"{method} {path}: {name}", method, target, request, status, answer)

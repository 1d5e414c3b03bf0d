"""Every refusal of a route as /openapi.json tells it: status, codes and what they mean, headers, body."""

from typing import Any

from pydantic import BaseModel

from service.errors import STATUS, ServiceError
from service.openapi.bodies import ProblemBody
from service.openapi.headers import RETRY_AFTER, WWW_AUTHENTICATE, response_headers
from service.problem import CONTENT_TYPE

MEANINGS: dict[int, dict[str, str]] = {
    400: {
        "malformed_body": "the body is not what its content type says",
        "malformed_request": "what came is no HTTP/1.1 request; the connection is closed",
    },
    401: {"unauthorized": "API keys are configured, and none or a wrong one came"},
    404: {"not_found": "there is no such route or model"},
    405: {"method_not_allowed": "the route has no such method"},
    406: {"not_acceptable": "Accept names no format that is offered, or npy for what it cannot carry"},
    408: {
        "body_timeout": "the body did not arrive within `body_timeout_seconds`",
        "header_timeout": "the head did not arrive within `header_timeout_seconds`; the connection is closed",
    },
    413: {
        "body_too_large": "the body is over `max_body_bytes`",
        "json_too_large": "the answer would be over `max_json_bytes` in JSON; safetensors may carry it",
        "too_large": "over another limit, with both numbers",
    },
    415: {"unsupported_media_type": "the Content-Type or Content-Encoding is none that is read here"},
    422: {
        "invalid_request": "well formed, and wrong for this model",
        "unknown_point": "a name in `outputs` is no point of this model",
        "non_finite_result": "a result is NaN or Inf, or too large for its `dtype`",
    },
    429: {"queue_full": "there is no room now"},
    431: {"head_too_large": "the head has over 64 KiB or 100 headers; the connection is closed"},
    500: {
        "internal_error": "a fault of the service; its log has it under the request id",
        "out_of_memory": "there is not enough memory for this request alone",
    },
    503: {
        "not_ready": "the model is loading, or the service is going down",
        "not_alive": "the model thread has ended, or has shown no sign of life for `stuck_after_seconds`",
    },
    504: {"deadline_passed": "`timeout_ms` or `deadline_seconds` passed"},
}
"""What each code means, by status."""

OF_EVERY_ROUTE = ("malformed_request", "header_timeout", "head_too_large", "internal_error")
OF_CALLS = (
    "malformed_body unauthorized body_timeout body_too_large json_too_large too_large unsupported_media_type "
    "invalid_request unknown_point non_finite_result queue_full out_of_memory not_ready deadline_passed"
).split()
"""Of what runs the model."""


def refusals(*codes: str) -> dict[int | str, dict[str, Any]]:
    """The responses of a route that refuses with these codes, and with those of every route."""
    return {
        status: _response(status, found, {CONTENT_TYPE: {"schema": _problem(status, found)}})
        for status, found in _by_status(codes)
    }


def v2_refusals(body: type[BaseModel], *codes: str) -> dict[int | str, dict[str, Any]]:
    """The same of a route of the Open Inference Protocol, whose refusals have this body and no code.

    What is refused before its path is known is a problem still.
    """
    refused: dict[int | str, dict[str, Any]] = {}
    for status, found in _by_status(codes):
        content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{body.__name__}"}}}
        if early := [code for code in found if code in OF_EVERY_ROUTE and code != "internal_error"]:
            content[CONTENT_TYPE] = {"schema": _problem(status, early)}
        refused[status] = _response(status, found, content)
    return refused


def _by_status(codes: tuple[str, ...]) -> list[tuple[int, list[str]]]:
    all_codes = {*codes, *OF_EVERY_ROUTE}
    unknown = all_codes - {code for meanings in MEANINGS.values() for code in meanings}
    assert not unknown, f"no meaning for {unknown}"
    found = [(status, [code for code in meanings if code in all_codes]) for status, meanings in MEANINGS.items()]
    return [(status, of_status) for status, of_status in found if of_status]


def _response(status: int, codes: list[str], content: dict[str, Any]) -> dict[str, Any]:
    lines = [f"- `{code}`: {MEANINGS[status][code]}" for code in codes]
    headers = {401: [WWW_AUTHENTICATE], 429: [RETRY_AFTER], 503: [RETRY_AFTER]}.get(status, [])
    return {
        "description": "\n".join([f"{_title(status)}.", "", *lines]),
        "headers": response_headers(*headers),
        "content": content,
    }


def _problem(status: int, codes: list[str]) -> dict[str, Any]:
    """The problem's schema, with what stands in it for this status."""
    narrowed = {
        "status": {"const": status, "description": "the HTTP status"},
        "code": {"enum": codes, "description": "; ".join(f"{code}: {MEANINGS[status][code]}" for code in codes)},
    }
    problem = {"$ref": f"#/components/schemas/{ProblemBody.__name__}"}
    return {"allOf": [problem, {"type": "object", "properties": narrowed}]}


def _title(status: int) -> str:
    titles: dict[int, str] = {}
    kind: type[ServiceError]
    for kind, of_kind in STATUS.items():
        titles[of_kind] = kind.title
    return titles[status]

"""A refusal as HTTP: application/problem+json (RFC 9457), or in the form of the protocol that the path belongs to."""

import math
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.errors import STATUS, CallerLeft, Draining, ServiceError, Unauthorized

CONTENT_TYPE = "application/problem+json"


def status_of(error: ServiceError) -> int:
    """The HTTP status of an error, from the one table."""
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


def problem_body(error: ServiceError) -> dict[str, Any]:
    """The object that a caller reads."""
    body: dict[str, Any] = {
        "type": f"urn:headwater:problem:{error.code}",
        "title": error.title,
        "status": status_of(error),
        "detail": error.detail,
        "code": error.code,
    }
    if error.fields:
        body["errors"] = [{"pointer": f.pointer, "message": f.message} for f in error.fields]
    return body


def refusal(error: ServiceError, path: str) -> Response:
    """The response for an error on this path; under /v2 in the form of the Open Inference Protocol."""
    headers = {}
    if isinstance(error, CallerLeft):
        return Response(status_code=status_of(error))  # nothing is written for nobody
    if error.retry_after is not None:
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after)))
    if isinstance(error, Draining):
        headers["Connection"] = "close"
    if isinstance(error, Unauthorized):
        headers["WWW-Authenticate"] = "Bearer"
    if path == "/v2" or path.startswith("/v2/"):
        return Response(orjson.dumps({"error": error.detail}), status_of(error), headers, "application/json")
    return Response(orjson.dumps(problem_body(error)), status_of(error), headers, CONTENT_TYPE)


async def refuse(error: ServiceError, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request with an error where there is no route yet to raise it, and note its code for the log."""
    scope["state"]["log"]["code"] = error.code
    await refusal(error, scope["path"])(scope, receive, send)

"""Callers who leave before their answer is there."""

from typing import Any

from fastapi import Request
from starlette.responses import Response

from service.errors import CALLER_LEFT

STATUS_CALLER_LEFT = 499  # a status that nobody reads; it stands in the log and the metrics


async def until_disconnected(request: Request) -> None:
    """Wait until the caller has left. The body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def answer_to_nobody(log: dict[str, Any]) -> Response:
    """What ends a request whose caller has left."""
    log["code"] = CALLER_LEFT
    return Response(status_code=STATUS_CALLER_LEFT)

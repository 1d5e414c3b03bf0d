"""The outermost layer of the app: a request id, what is told of each request, and a last word where code failed."""

import asyncio
import logging
import re
import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import Draining, ModelFailed
from service.ids import new_id
from service.life import Life
from service.metrics import Metrics
from service.problem import refusal
from service.tracing import Tracing, trace_id_of

log = logging.getLogger("headwater.access")
_CLOSE = (b"connection", b"close")
_ACCEPTABLE_ID = re.compile(r"[\x21-\x7e]{1,128}")


class RequestLog:
    """ASGI middleware: takes over or makes X-Request-Id, answers 500 for an unforeseen error, tells of each request.

    While the service drains each answer closes its connection: nobody reroutes one that is kept open, and whoever asks
    next on a new one finds a service that stays.

    It gathers one dict a request, to which routes add what they know: `scope["state"]["log"]`. Out of it come the log
    line, the metrics and the spans; contents of requests never stand in it.
    """

    def __init__(self, app: ASGIApp, life: Life, metrics: Metrics, tracing: Tracing | None) -> None:
        self._app, self._life, self._metrics, self._tracing = app, life, metrics, tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, began_ns = time.monotonic(), time.time_ns()
        request_id = _request_id(scope)
        line: dict[str, Any] = {
            "request_id": request_id,
            "method": scope["method"],
            "status": 0,
            "bytes_in": 0,
            "bytes_out": 0,
        }
        scope.setdefault("state", {})["log"] = line

        async def receive_and_note() -> Message:
            message = await receive()
            line["bytes_in"] += len(message.get("body", b""))
            return message

        async def send_and_note(message: Message) -> None:
            if message["type"] == "http.response.start":
                line["status"] = message["status"]
                headers = [*message["headers"], (b"x-request-id", request_id.encode())]
                if self._life.is_draining() and _CLOSE not in headers:
                    headers.append(_CLOSE)
                message = {**message, "headers": headers}
            elif message["type"] == "http.response.body":
                line["bytes_out"] += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive_and_note, send_and_note)
        except asyncio.CancelledError:
            # The time to drain is over. A caller whose answer has begun sees it break off.
            line["code"] = Draining.code
            if not line["status"]:
                response = refusal(Draining("the service is shutting down", retry_after=5), scope["path"])
                await response(scope, receive, send_and_note)
        except Exception:
            log.exception("request %s failed", request_id)
            line["code"] = ModelFailed.code
            if line["status"]:
                raise  # part of the answer is out: the server breaks the connection
            failed = ModelFailed(f"an error of ours; the log has it as request {request_id}")
            response = refusal(failed, scope["path"])
            await response(scope, receive, send_and_note)
        finally:
            route = scope.get("route")
            line["route"] = getattr(route, "path", line.get("route"))
            line["ms"] = round(1000 * (time.monotonic() - began), 3)
            if self._tracing is not None:
                trace_id = self._tracing.request_ended(line, scope, began_ns)
            else:
                trace_id = trace_id_of(scope["headers"])
            if trace_id is not None:
                line["trace_id"] = trace_id
            self._metrics.request_ended(line)
            log.info(line)


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            given: str = value.decode("latin-1")
            if _ACCEPTABLE_ID.fullmatch(given):
                return given
    return new_id()

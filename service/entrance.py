"""The first thing that a request meets: its key, and whether there is room for it, before anything of it is read."""

from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.admission import Place
from service.api_keys import ApiKeys
from service.errors import ServiceError
from service.parts import Parts, parts_in
from service.problem import refuse
from service.waiting_room import Caller

INFER, INFER_VERSION = "/v2/models/{name:path}/infer", "/v2/models/{name:path}/versions/{version}/infer"
_OPEN = ("/livez", "/readyz", "/startedz", "/v2/health/live", "/v2/health/ready", "/", "/openapi.json")
_OPEN_BELOW = ("/viewer", "/docs", "/static-offline-docs")


class Entrance:
    """ASGI middleware: 401 without a right key, and for calls that run the model 503 and 429 before their body is read.

    A call that is let in finds its Place in `scope["state"]["place"]`; it is left when the answer is out, or the
    request has ended in any other way.
    """

    def __init__(self, app: ASGIApp, keys: ApiKeys | None) -> None:
        self._app, self._keys = app, keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state: dict[str, Any] = scope.setdefault("state", {})
        place: Place | None = None
        try:
            headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
            share = self._share(scope["path"], headers)
            if share:
                state["log"]["key"] = share
            if (route := route_to_model(scope)) is not None:
                state["log"]["route"] = route
                parts = parts_in(scope["app"])
                place = _enter(parts, scope, headers, share)
                state["place"] = place
        except ServiceError as error:
            await refuse(error, scope, receive, send)
            return
        if place is None:
            await self._app(scope, receive, send)
            return

        async def send_and_see(message: Message) -> None:
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                place.answered = state["log"].get("status") == 200

        try:
            await self._app(scope, receive, send_and_see)
        finally:
            place.leave()

    def _share(self, path: str, headers: dict[bytes, str]) -> str:
        if self._keys is None or is_open_to_all(path):
            return ""
        return self._keys.name_of(headers.get(b"authorization"))


def route_to_model(scope: Scope) -> str | None:
    """The template of the route, if a request is one of those that need room."""
    path: str = scope["path"]
    if scope["method"] != "POST":
        return None
    if path == "/forward":
        return path
    if path.startswith("/v2/models/") and path.endswith("/infer"):
        return INFER_VERSION if "/versions/" in path else INFER
    return None


def is_open_to_all(path: str) -> bool:
    """Whether a path needs no key: probes, the viewer's files, and what says how to call."""
    if path in _OPEN or (path.startswith("/v2/models/") and path.endswith("/ready")):
        return True
    return any(path == below or path.startswith(below + "/") for below in _OPEN_BELOW)


def _enter(parts: Parts, scope: Scope, headers: dict[bytes, str], share: str) -> Place:
    declared = headers.get(b"content-length", "")
    body_bytes = int(declared) if declared.isdecimal() and len(declared) < 20 else 0
    if body_bytes > parts.settings.max_body_bytes:
        body_bytes = 0  # it will not be read, but refused for good
    host = scope["client"][0] if scope.get("client") else ""
    caller = Caller(share, headers.get(b"x-request-id"), (host, scope["path"], declared))
    return parts.admission.enter(caller, body_bytes)

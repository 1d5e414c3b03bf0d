"""Which requests for work are taken, and how many of them have not been answered yet. For the event loop alone."""

import asyncio

from starlette.types import ASGIApp, Receive, Scope, Send

from service.errors import Draining
from service.problem import refusal


class Admission:
    """Counts what is admitted; once closed, it admits nothing more."""

    def __init__(self) -> None:
        self.requests = 0  # admitted and not yet answered
        self._open = True
        self._empty = asyncio.Event()
        self._empty.set()

    def is_open(self) -> bool:
        """Whether new work is taken."""
        return self._open

    def close(self) -> None:
        """Refuse new work with Draining from now on."""
        self._open = False

    async def emptied(self) -> None:
        """Return when no request is admitted any more."""
        await self._empty.wait()

    def enter(self) -> None:
        """Admit a request. Raises Draining."""
        if not self._open:
            raise Draining("the service is shutting down", retry_after=5)
        self.requests += 1
        self._empty.clear()

    def leave(self) -> None:
        """Forget an admitted request, however it ended."""
        self.requests -= 1
        if not self.requests:
            self._empty.set()


class Admitting:
    """ASGI middleware: requests for work go through the admission, all others past it."""

    def __init__(self, app: ASGIApp, admission: Admission) -> None:
        self._app, self._admission = app, admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        try:
            self._admission.enter()
        except Draining as error:
            scope["state"]["log"]["code"] = error.code
            await refusal(error, scope["path"])(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            self._admission.leave()

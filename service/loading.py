"""While the model loads: work in a thread that nobody has to wait for, and a 503 for every route but the probes
and the files of the viewer, which tells how far it is."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from starlette.types import ASGIApp, Receive, Scope, Send

from service.errors import NotReady
from service.life import Life
from service.problem import refuse

T = TypeVar("T")

OPEN_WHILE_LOADING = frozenset(
    {"/livez", "/startedz", "/readyz", "/metrics", "/v2/health/live", "/v2/health/ready", "/"},
)
OPEN_BELOW_WHILE_LOADING = "/viewer/"


def in_thread(work: Callable[[], T], name: str) -> "Future[T]":
    """Do work in a thread that does not keep the process from ending, as those of an executor do."""
    future: Future[T] = Future()
    threading.Thread(target=settle, args=(future, work), name=name, daemon=True).start()
    return future


def settle(future: "Future[T]", work: Callable[[], T]) -> None:
    """Do work here and now, and give its outcome to a future; nothing is raised."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = work()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


class RefuseWhileLoading:
    """ASGI middleware: until the model is loaded, whoever wants more than a probe learns how far it is."""

    def __init__(self, app: ASGIApp, life: Life) -> None:
        self._app, self._life = app, life

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not _is_open(scope["path"]):
            try:
                self._life.check_started()
            except NotReady as error:
                await refuse(error, scope, receive, send)
                return
        await self._app(scope, receive, send)


def _is_open(path: str) -> bool:
    return path in OPEN_WHILE_LOADING or path.startswith(OPEN_BELOW_WHILE_LOADING)

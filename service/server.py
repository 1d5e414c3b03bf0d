"""uvicorn with our own beginning and end: work is drained before the port closes, and no signal is raised again."""

import asyncio
import math
import socket
import time
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from service.admission import Admission
from service.connection import protocol_class
from service.ending import end_now
from service.life import Life
from service.settings import Settings

_STOP_SECONDS = 0.5  # for a loading thread to notice that it should stop, and to clean up
_REFUSED_SECONDS = 1.0  # for those who waited for a model thread that died to get their refusals


class Server(uvicorn.Server):
    """Serves an app made by `create_app` until a signal, a failure to load, or the death of the model thread."""

    def __init__(self, app: FastAPI, settings: Settings, on_ready: Callable[[], None]) -> None:
        http = protocol_class(settings, app.state.metrics.request_ended)
        super().__init__(
            uvicorn.Config(app, http=http, ws="none", log_config=None, access_log=False, server_header=False)
        )
        self._app, self._settings, self._on_ready = app, settings, on_ready
        self._life: Life = app.state.life
        self._admission: Admission = app.state.admission
        self._announcing: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Take requests, and wait for the model beside that."""
        await super().startup(sockets)
        self._announcing = asyncio.create_task(self._announce())

    async def _announce(self) -> None:
        """Say that the model is there; or end, where it will not be."""
        await self._app.state.loading
        if self._life.is_loaded():
            self._on_ready()
        else:
            self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal starts the drain, the next one ends the process at once.

        This runs between two instructions of the event loop's thread, so it sets a flag and no more.
        """
        if self._life.is_draining():
            end_now(128 + sig)
        self._life.drain()

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: begin to end, if that is so."""
        if self._ending is None and (self._life.is_draining() or self._life.has_died()):
            self._ending = asyncio.create_task(self._end())
        return await super().on_tick(counter)

    async def _end(self) -> None:
        """Finish what was admitted, then let uvicorn close the port."""
        if not self._life.is_loaded():
            await asyncio.wait([self._app.state.loading], timeout=_STOP_SECONDS)
            if not self._app.state.loading.done():
                end_now(0)  # it is in code that cannot be stopped
        seconds = _REFUSED_SECONDS
        if not self._life.has_died():
            await asyncio.sleep(self._settings.drain_delay_seconds)
            seconds = self._settings.drain_seconds
        self._admission.close()
        over = time.monotonic() + seconds
        try:
            async with asyncio.timeout(seconds):
                await self._admission.emptied()
        except TimeoutError:
            self.config.timeout_graceful_shutdown = 0  # those who still wait get a 503 now
        else:
            # answers that were given may still be on their way to slow readers
            self.config.timeout_graceful_shutdown = max(1, math.ceil(over - time.monotonic()))
        self.should_exit = True

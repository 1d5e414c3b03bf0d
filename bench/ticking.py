"""The service with a clock in its event loop: `python -m bench.ticking serve ...`, told by `GET /longest_wait`."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI

from service import cli
from service.app import Load, create_app
from service.settings import Settings

TICK_SECONDS = 0.001


class Ticker:
    """Sleeps a millisecond at a time and remembers by how much the longest sleep was too long.

    `ours` counts no more of a sleep than the processor time that the whole process had in it: the rest is the
    machine's, which ran something else.
    """

    def __init__(self) -> None:
        self._longest = self._ours = 0.0

    async def run(self) -> None:
        """Tick until cancelled."""
        while True:
            began, ran = time.perf_counter(), time.process_time()
            await asyncio.sleep(TICK_SECONDS)
            late = time.perf_counter() - began - TICK_SECONDS
            self._longest = max(self._longest, late)
            self._ours = max(self._ours, min(late, time.process_time() - ran))

    def tell(self) -> dict[str, float]:
        """The longest so far, in seconds; from here on it counts anew."""
        told = {"longest": self._longest, "ours": self._ours}
        self._longest = self._ours = 0.0
        return told


def create_ticking_app(settings: Settings, load: Load, **options: Any) -> FastAPI:
    """The app as it is served, and a ticker beside it."""
    app, ticker = create_app(settings, load, **options), Ticker()
    plain = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[object]:
        async with plain(app) as state:
            ticking = asyncio.create_task(ticker.run())
            yield state
            ticking.cancel()

    app.router.lifespan_context = lifespan

    @app.get("/longest_wait")
    async def longest_wait() -> dict[str, float]:
        return ticker.tell()

    return app


if __name__ == "__main__":
    cli.create_app = create_ticking_app
    sys.exit(cli.main())

"""The same run without an event loop of the caller's: it goes on in a thread while the caller looks at results."""

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, Self, TypeVar

from headwater_client.async_client import AsyncClient
from headwater_client.exchange import Service
from headwater_client.map_options import MapOptions
from headwater_client.mapping import AsyncMapRun
from headwater_client.results import Report, Result
from headwater_client.retrying import Retries

T = TypeVar("T")


class MapRun(Iterator[Result]):
    """A run that has not begun; iterating makes it go. Leave it by its `with`, by `close()`, or at its end.

    Its calls are made in an event loop of its own, so that they can be broken off at once; it works where another loop
    runs already, as in a notebook.
    """

    def __init__(
        self,
        service: Service,
        retries: Retries,
        inputs: Iterable[Any],
        options: MapOptions,
        may_begin: Callable[[], object],
    ) -> None:
        self._may_begin = may_begin
        self._service, self._retries, self._inputs, self._options = service, retries, inputs, options
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._client: AsyncClient | None = None
        self._run: AsyncMapRun | None = None
        self._task: asyncio.Task[Any] | None = None
        self._over = False
        self.report = Report()

    def __next__(self) -> Result:
        if self._over:
            raise StopIteration
        try:
            return self._wait(self._next())
        except StopAsyncIteration:
            self.close()
            raise StopIteration from None
        except BaseException:
            self.close()
            raise

    def run(self) -> Report:
        """Go to the end; the results are in the directory, or not needed."""
        for _ in self:
            pass
        return self.report

    def close(self) -> None:
        """End the calls that are under way, and the thread."""
        self._over = True
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        self._loop = None
        if threading.current_thread() is thread:  # the collector found it there: nobody could be waited for
            loop.stop()
            return
        asyncio.run_coroutine_threadsafe(self._end(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    async def _next(self) -> Result:
        self._task = asyncio.current_task()
        if self._run is None:
            self._may_begin()  # a closed client begins nothing
            self._client = AsyncClient.of(self._service, self._retries)
            self._run = AsyncMapRun(self._client, self._inputs, self._options)
            self._run.report = self.report = self._run.report
        return await anext(self._run)

    async def _end(self) -> None:
        if self._task is not None and not self._task.done():  # the caller was interrupted while it waited
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._run is not None:
            await self._run.close()
        if self._client is not None:
            await self._client.close()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name="headwater-map", daemon=True)
            self._thread.start()
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not sys.is_finalizing():  # then the thread is gone already
            self.close()

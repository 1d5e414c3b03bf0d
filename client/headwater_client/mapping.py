"""A run over many sequences: a bounded number of calls at a time, and of results that nobody has taken yet."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from headwater_client.answer import Answer
from headwater_client.call import Input, as_input, body_of
from headwater_client.errors import FATAL, HeadwaterError, InvalidRequest, ModelChanged
from headwater_client.exchange import Request
from headwater_client.map_options import MapOptions, total_of
from headwater_client.results import Report, Result
from headwater_client.run_directory import RunDirectory, digest

if TYPE_CHECKING:
    from headwater_client.async_client import AsyncClient

_END = object()
_HELD = 2  # results and calls under way together, as a multiple of the calls


class AsyncMapRun(AsyncIterator[Result]):
    """A run that has not begun; iterating makes it go, and leaving ends its calls. Once through, it is over."""

    def __init__(self, client: "AsyncClient", inputs: Iterable[Any] | AsyncIterable[Any], options: MapOptions) -> None:
        self.report = Report()
        self._results = _counted(_results(client, inputs, options), self.report, options, total_of(inputs))

    async def __anext__(self) -> Result:
        return await anext(self._results)

    async def run(self) -> Report:
        """Go to the end; the results are in the directory, or not needed."""
        async for _ in self:
            pass
        return self.report

    async def close(self) -> None:
        """End the calls that are under way."""
        await self._results.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def _counted(
    results: AsyncGenerator[Result, None], report: Report, options: MapOptions, total: int | None
) -> AsyncGenerator[Result, None]:
    try:
        async for result in results:
            report.count(result)
            if options.progress is not None:
                options.progress(report.done, total)
            yield result
    finally:
        await results.aclose()
        options.close_progress()


async def _results(
    client: "AsyncClient", inputs: Iterable[Any] | AsyncIterable[Any], options: MapOptions
) -> AsyncGenerator[Result, None]:
    model = await client.model()  # by the client's own retries: a wrong address shows soon
    directory, weights = None, model.weights_sha256
    if options.into is not None:
        about = {"weights_sha256": weights, "compute_dtype": model.dtype, "outputs": options.outputs}
        directory = await asyncio.to_thread(RunDirectory.open, options.into, about)
    asker = _Asker(client, options, directory, weights)
    source = _Source(inputs)
    room = asyncio.Semaphore(_HELD * options.concurrency)
    arrived: asyncio.Queue[Result | BaseException | None] = asyncio.Queue()  # `room` bounds it

    async def work() -> None:
        try:
            while True:
                await room.acquire()
                pulled = await source.pull()
                if pulled is None:
                    break
                arrived.put_nowait(await asker.result(*pulled))
            arrived.put_nowait(None)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            arrived.put_nowait(error)

    workers = [asyncio.create_task(work()) for _ in range(options.concurrency)]
    try:
        waiting: dict[int, Result] = {}
        working, following = len(workers), 0
        while working or waiting:
            one = await arrived.get()
            if one is None:
                working -= 1
                continue
            if isinstance(one, BaseException):
                raise one
            if not options.ordered:
                yield one
                room.release()
                continue
            waiting[one.index] = one
            while following in waiting:
                yield waiting.pop(following)
                room.release()
                following += 1
        if source.failure is not None:
            raise source.failure
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        if directory is not None:
            directory.close()


class _Source:
    """The inputs with their indices, each to one worker.

    An error ends them like their end does, and is kept: what was asked before it is answered first.
    """

    def __init__(self, inputs: Iterable[Any] | AsyncIterable[Any]) -> None:
        self._pulling = asyncio.Lock()  # an async generator cannot be asked twice at once
        self._pulled = 0
        self.failure: Exception | None = None
        self._later = aiter(inputs) if isinstance(inputs, AsyncIterable) else None
        self._at_hand = isinstance(inputs, Sequence)
        self._now: Iterator[Any] = iter(()) if isinstance(inputs, AsyncIterable) else iter(inputs)

    async def pull(self) -> tuple[int, Any] | None:
        """The next, or None at the end."""
        async with self._pulling:
            if self.failure is not None:
                return None
            try:
                item = await self._next()
            except Exception as error:
                self.failure = error
                return None
            if item is _END:
                return None
            self._pulled += 1
            return self._pulled - 1, item

    async def _next(self) -> Any:
        if self._later is not None:
            return await anext(self._later, _END)
        if self._at_hand:
            return next(self._now, _END)
        return await asyncio.to_thread(next, self._now, _END)  # it may read files, or be a run of its own


async def _to_its_end(write: Callable[..., Path], *arguments: Any) -> Path:
    """In a thread; whoever is cancelled meanwhile waits for it, so that nothing is written when the run is over."""
    writing = asyncio.ensure_future(asyncio.to_thread(write, *arguments))
    try:
        return await asyncio.shield(writing)
    except asyncio.CancelledError:
        await asyncio.wait([writing])
        raise


@contextmanager
def _item() -> Iterator[None]:
    """What is wrong with one item is its own failure, and no reason to lose the others."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise InvalidRequest(str(error)) from error


class _Asker:
    """Makes a result of one input: from the directory, by asking, or an error."""

    def __init__(
        self, client: "AsyncClient", options: MapOptions, directory: RunDirectory | None, weights: str
    ) -> None:
        self._client, self._options, self._directory, self._weights = client, options, directory, weights

    async def result(self, index: int, item: Any) -> Result:
        """Raises what ends the run."""
        try:
            one, input_sha256 = await asyncio.to_thread(self._prepared, item)
            if self._directory is not None and await asyncio.to_thread(self._directory.has, index, input_sha256):
                return Result(index, self._directory.file(index), reused=True)
            answer = await self._asked(one)
        except HeadwaterError as error:
            if isinstance(error, FATAL) or not self._options.keep_errors:
                raise
            # its frames hold what was sent and received, and it stays in the report
            error.__traceback__ = error.__cause__ = error.__context__ = None
            if self._directory is not None:
                await asyncio.to_thread(self._directory.keep_error, index, error)
            return Result(index, error=error)
        if self._directory is None:
            return Result(index, held=answer)
        path = await _to_its_end(self._directory.keep, index, input_sha256, answer)
        return Result(index, path)

    def _prepared(self, item: Any) -> tuple[Input, str]:
        with _item():
            one = as_input(item)
            return one, digest(one) if self._directory is not None else ""

    async def _asked(self, one: Input) -> Answer:
        with _item():
            body = body_of(one, outputs=self._options.outputs, timeout_ms=self._options.timeout_ms)
        answer = await self._client.answer(Request("POST", "forward", body), self._options.retries)
        found = answer.about.weights_sha256
        if found != self._weights:
            raise ModelChanged(
                f"the run began with weights {self._weights[:12]}, and {str(found)[:12]} answer now",
                request_id=answer.request_id,
            )
        return answer

"""An answer that is read while it is made."""

from collections import deque
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Self

import httpx

from headwater_client.answer import About
from headwater_client.exchange import Request
from headwater_client.receiving import TensorsOneByOne
from headwater_client.tensors import Array, Tensor


class _Reading:
    """What both streams know: the header, and the tensors that are there already."""

    def __init__(self, request: Request, response: httpx.Response) -> None:
        self._request, self._response = request, response
        self._tensors = TensorsOneByOne()
        self._there: deque[tuple[str, Tensor]] = deque()
        self._about: About | None = None

    @property
    def about(self) -> About:
        """model, tokens, manifest, usage (without compute_ms), and request_id."""
        assert self._about is not None, "the header is read before anybody has the stream"
        return self._about

    @property
    def names(self) -> list[str]:
        """The names of all tensors that will come, in their order."""
        header = self._tensors.header
        return [] if header is None else [one.name for one in header.entries]

    def _take_in(self, piece: bytes) -> None:
        self._there.extend(self._tensors.feed(piece))
        if self._about is None and self._tensors.header is not None:
            self._about = About(self._tensors.header.metadata, self._response.headers.get("x-request-id"))


class Stream(_Reading, Iterator[tuple[str, Array]]):
    """Yields `(name, array)` as each tensor's last byte arrives; each array has a buffer of its own.

    Raises BrokenAnswer where the answer ends early; what was yielded before is whole. Leave it by its `with`, or read
    it to its end: else the connection stays open until the object is gone.
    """

    def __init__(self, request: Request, response: httpx.Response) -> None:
        super().__init__(request, response)
        self._pieces = response.iter_bytes()
        with request.receiving():
            while self._about is None and self._more():
                pass

    def __next__(self) -> tuple[str, Array]:
        name, tensor = self.next_tensor()
        return name, tensor.numbers()

    def next_tensor(self) -> tuple[str, Tensor]:
        """The next tensor with its dtype on the wire, for its bits or for torch. Raises StopIteration at the end."""
        try:
            with self._request.receiving():
                while not self._there and self._more():
                    pass
        except BaseException:
            self.close()
            raise
        if not self._there:
            self.close()
            raise StopIteration
        return self._there.popleft()

    def _more(self) -> bool:
        """Read a piece; False at the end of the body."""
        for piece in self._pieces:
            self._take_in(piece)
            return True
        self._tensors.finish()
        return False

    def close(self) -> None:
        """Give the connection back; the service stops computing what nobody reads."""
        self._response.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        self._response.close()


class AsyncStream(_Reading, AsyncIterator[tuple[str, Array]]):
    """The same for an event loop; leave it by its `async with`, or read it to its end."""

    def __init__(self, request: Request, response: httpx.Response) -> None:
        super().__init__(request, response)
        self._pieces = response.aiter_bytes()

    async def read_header(self) -> None:
        """The client does this before it hands the stream out."""
        with self._request.receiving():
            while self._about is None and await self._more():
                pass

    async def __anext__(self) -> tuple[str, Array]:
        name, tensor = await self.next_tensor()
        return name, tensor.numbers()

    async def next_tensor(self) -> tuple[str, Tensor]:
        """The next tensor with its dtype on the wire. Raises StopAsyncIteration at the end."""
        try:
            with self._request.receiving():
                while not self._there and await self._more():
                    pass
        except BaseException:
            await self.close()
            raise
        if not self._there:
            await self.close()
            raise StopAsyncIteration
        return self._there.popleft()

    async def _more(self) -> bool:
        async for piece in self._pieces:
            self._take_in(piece)
            return True
        self._tensors.finish()
        return False

    async def close(self) -> None:
        """Give the connection back; the service stops computing what nobody reads."""
        await self._response.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

"""Results on their way from the model thread to a response that sends them as they come."""

import asyncio
from collections import deque

from service.host_tensor import HostTensor


class ResultStream:
    """Holds each part of a result until it is taken, once. For the event loop alone.

    What is held is at most what the answer was admitted with. A run that is repeated gives results again: the first
    bytes of each place count, so that what has been sent is never sent twice, nor goes on with other numbers.
    """

    def __init__(self) -> None:
        self._held: dict[str, deque[HostTensor]] = {}
        self._came: dict[str, int] = {}  # bytes of each result
        self._more = asyncio.Event()

    def deliver(self, name: str, at: int, part: HostTensor) -> None:
        """Take a part in, before which stand `at` bytes of the result; parts are cut at the same places in each run."""
        if at == self._came.get(name, 0):
            self._came[name] = at + part.data.nbytes
            self._held.setdefault(name, deque()).append(part)
            self._more.set()

    async def take(self, name: str) -> HostTensor:
        """Wait for the next part of a result and let go of it."""
        while not self._held.get(name):
            self._more.clear()
            await self._more.wait()
        return self._held[name].popleft()

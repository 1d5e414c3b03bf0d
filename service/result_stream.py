"""Results on their way from the model thread to a response that sends them as they come."""

import asyncio

from service.host_tensor import HostTensor


class ResultStream:
    """Holds each result until it is taken, once. For the event loop alone.

    What is held is at most what the answer was admitted with. A run that is repeated gives results again: the first of
    each name counts, so that a tensor of which a part has been sent never changes.
    """

    def __init__(self) -> None:
        self._held: dict[str, HostTensor] = {}
        self._seen: set[str] = set()
        self._came = asyncio.Event()

    def deliver(self, name: str, tensor: HostTensor) -> None:
        """Take a result in."""
        if name not in self._seen:
            self._seen.add(name)
            self._held[name] = tensor
            self._came.set()

    async def take(self, name: str) -> HostTensor:
        """Wait for a result and let go of it."""
        while name not in self._held:
            self._came.clear()
            await self._came.wait()
        return self._held.pop(name)

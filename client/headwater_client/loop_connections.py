"""The connections of an AsyncClient. Those that were made in one event loop are of no use in another."""

import asyncio
from collections.abc import AsyncGenerator

import httpx

from headwater_client.errors import ClientClosed
from headwater_client.exchange import Service

_Lasting = AsyncGenerator[httpx.AsyncClient, None]


class LoopConnections:
    """One pool of connections for each event loop in which the client is used, made when it is first needed there.

    So a client may be kept over several `asyncio.run`s, each of which is a loop of its own.
    """

    def __init__(self, service: Service) -> None:
        self.service = service
        self._of_loop: dict[asyncio.AbstractEventLoop, tuple[httpx.AsyncClient, _Lasting]] = {}
        self._closed = False

    async def here(self) -> httpx.AsyncClient:
        """Those of the loop that runs. Raises ClientClosed."""
        if self._closed:
            raise ClientClosed
        loop = asyncio.get_running_loop()
        if loop not in self._of_loop:
            self._forget_closed_loops()
            http = httpx.AsyncClient(**self.service.options())
            lasting = self._until_the_loop_ends(loop, http)
            self._of_loop[loop] = http, lasting
            await anext(lasting)
        return self._of_loop[loop][0]

    async def close(self) -> None:
        """Close those of the loop that runs; those of another loop are closed with it."""
        self._closed = True
        _, lasting = self._of_loop.pop(asyncio.get_running_loop(), (None, None))
        if lasting is not None:
            await lasting.aclose()

    def _forget_closed_loops(self) -> None:
        """Those that were closed without an end to their generators, as `asyncio.run` gives them one."""
        for loop in [loop for loop in self._of_loop if loop.is_closed()]:
            del self._of_loop[loop]

    async def _until_the_loop_ends(self, loop: asyncio.AbstractEventLoop, http: httpx.AsyncClient) -> _Lasting:
        """Closes the connections at the end of the loop, when asyncio ends all generators that were begun in it."""
        try:
            yield http
        finally:
            self._of_loop.pop(loop, None)
            await http.aclose()

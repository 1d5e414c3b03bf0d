"""Connections for any number of callers: one for each exchange under way, kept and used again."""

import asyncio
import time

from bench.load.connection import Connection, Reply

IDLE_SECONDS = 3.0  # below the 5 seconds after which uvicorn closes an idle connection


class Pool:
    """Exchanges with one server. Closed by `close`; `limit` is the most connections at one time."""

    def __init__(self, port: int, limit: int = 6000) -> None:
        self._port, self._limit = port, limit
        self._idle: list[Connection] = []
        self._all: set[Connection] = set()
        self._opening = 0
        self.opened = 0

    async def exchange(self, request: bytes, seconds: float, *, again: bool = True) -> Reply:
        """Send a request over an idle or a new connection.

        As any client does, it is sent once more over a new one where a connection that was used before turns out to
        have been closed meanwhile; not so with `again=False`.
        """
        connection = self._take_idle()
        if connection is not None:
            reply = await self._over(connection, request, seconds)
            if reply.fault != "closed" or not again:
                return reply
        if len(self._all) + self._opening >= self._limit:
            return Reply(0, time.monotonic(), fault="crowded")
        try:
            connection = await self._open(seconds)
        except (OSError, TimeoutError):
            return Reply(0, time.monotonic(), fault="refused")
        return await self._over(connection, request, seconds)

    async def close(self) -> None:
        """End all connections; returns when they have gone."""
        for connection in self._all:
            connection.close()
        while any(connection.is_open for connection in self._all):
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        self._all.clear()
        self._idle.clear()

    async def _open(self, seconds: float) -> Connection:
        self._opening += 1
        try:
            async with asyncio.timeout(seconds):
                loop = asyncio.get_running_loop()
                _, connection = await loop.create_connection(Connection, "127.0.0.1", self._port)
        finally:
            self._opening -= 1
        self._all.add(connection)
        self.opened += 1
        return connection

    async def _over(self, connection: Connection, request: bytes, seconds: float) -> Reply:
        try:
            return await connection.exchange(request, seconds)
        except BaseException:
            connection.close()
            raise
        finally:
            if connection.is_open:
                self._idle.append(connection)
            else:
                self._all.discard(connection)

    def _take_idle(self) -> Connection | None:
        """The connection that was used last; those that nobody has used for a while are ended."""
        now = time.monotonic()
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and now - connection.idle_since < IDLE_SECONDS:
                return connection
            connection.close()
            self._all.discard(connection)
        return None

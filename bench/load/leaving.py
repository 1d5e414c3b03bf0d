"""Callers who go away at any moment, and others whose bytes are no requests: each on a connection of its own."""

import asyncio
import re
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import numpy as np

from bench.load.garbage import Misframed
from bench.load.requests import Request

MOMENTS = ("before", "after the head", "in the body", "after the body", "waiting", "reading")
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3})")
_READ_BYTES = 1 << 16


async def leave(port: int, request: Request, moment: str, random: np.random.Generator, longest_wait: float) -> None:
    """Send as much of a request as `moment` says, and go: half of the time in good order, half with a reset.

    Raises OSError where there is no connection to be had.
    """
    loop = asyncio.get_running_loop()
    wire = request.wire()
    async with _connected(port) as connection:
        with suppress(ConnectionError):
            match moment:
                case "before":
                    pass
                case "after the head":
                    await loop.sock_sendall(connection, wire[: len(wire) - len(request.body)])
                case "in the body":
                    cut = int(random.integers(1, max(2, len(request.body))))
                    await loop.sock_sendall(connection, wire[:-cut])
                    await asyncio.sleep(random.uniform(0, 0.02))
                case _:
                    await loop.sock_sendall(connection, wire)
            if moment == "waiting":
                await asyncio.sleep(random.uniform(0, longest_wait))
            if moment == "reading":
                await loop.sock_recv(connection, int(random.integers(1, _READ_BYTES)))
        if random.random() < 0.5:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def send_misframed(port: int, one: Misframed) -> list[int]:
    """Send the bytes and read until the service ends the connection; the statuses that came.

    Raises OSError where there is no connection to be had.
    """
    loop, came = asyncio.get_running_loop(), b""
    async with _connected(port) as connection:
        with suppress(ConnectionError):
            await loop.sock_sendall(connection, one.wire)
            if one.ends:
                connection.shutdown(socket.SHUT_WR)
            while not _STATUS.search(came) and (part := await loop.sock_recv(connection, _READ_BYTES)):
                came += part
    return [int(status) for status in _STATUS.findall(came)]


@asynccontextmanager
async def _connected(port: int) -> AsyncIterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as connection:
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
        yield connection

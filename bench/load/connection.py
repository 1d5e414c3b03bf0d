"""One exchange after the other over one HTTP/1.1 connection: as little as a client can do, for it shares the cores.

Requests are bytes that were made before. Of an answer the status and the length are read; all else is left as it came.
"""

import asyncio
import re
import time
from dataclasses import dataclass
from typing import cast

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CLOSES = re.compile(rb"\r\nconnection: *close", re.IGNORECASE)
_TIMES = re.compile(rb"(queue|compute);dur=([0-9.]+)")


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back. `status` is 0 where no whole answer came, and `fault` says why.

    refused: there was no connection to be had; closed: it ended before a byte of the answer; broken: it ended in the
    middle, or what came was not HTTP; late: it took longer than the caller would wait; crowded: the generator itself
    had no connection left.
    """

    status: int
    ended: float
    head: bytes = b""
    body: bytes = b""
    fault: str = ""

    def header(self, name: str) -> str | None:
        """The value of a header, if it came."""
        found = re.search(rb"\r\n" + name.encode() + rb": *([^\r]*)", self.head, re.IGNORECASE)
        return found[1].decode("latin-1") if found else None

    def times_ms(self) -> tuple[float, float]:
        """How long the request waited and ran, by its Server-Timing; NaN where that is not told."""
        told = dict(_TIMES.findall(self.head))
        return float(told.get(b"queue", b"nan")), float(told.get(b"compute", b"nan"))


class Connection(asyncio.Protocol):
    """A keep-alive connection with at most one exchange under way."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[Reply] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._chunks: list[bytes] = []
        self._came = self._head_end = self._needed = 0
        self._closes = False
        self.exchanges = 0
        self.idle_since = 0.0

    @property
    def is_open(self) -> bool:
        """Whether another exchange can be tried."""
        return self._transport is not None and not self._transport.is_closing()

    def exchange(self, request: bytes, seconds: float) -> "asyncio.Future[Reply]":
        """Send a request; its reply comes within so many seconds, or a Reply that says it did not."""
        assert self._waiting is None
        assert self._transport is not None
        self._waiting = self._loop.create_future()
        self._timer = self._loop.call_later(seconds, self._give_up)
        self._transport.write(request)
        return self._waiting

    def close(self) -> None:
        """End the connection; who waits on it gets a Reply with a fault."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # that of uvloop is one by its methods alone

    def data_received(self, data: bytes) -> None:
        if self._waiting is None:
            self.close()  # nobody asked for this
            return
        self._chunks.append(data)
        self._came += len(data)
        if not self._needed and not self._read_head():
            return
        if self._came >= self._needed:
            self._finish()

    def connection_lost(self, _: Exception | None) -> None:
        self._transport = None
        self._settle(Reply(0, time.monotonic(), fault="broken" if self._came else "closed"))

    def _read_head(self) -> bool:
        joined = b"".join(self._chunks) if len(self._chunks) > 1 else self._chunks[0]
        end = joined.find(b"\r\n\r\n")
        if end < 0:
            return False
        head = joined[: end + 2]
        length = _LENGTH.search(head)
        if not head.startswith(b"HTTP/1.1 ") or length is None:
            self._fail("broken")
            return False
        self._chunks, self._head_end, self._needed = [joined], end + 4, end + 4 + int(length[1])
        self._closes = _CLOSES.search(head) is not None
        return True

    def _finish(self) -> None:
        if self._came > self._needed:
            self._fail("broken")  # more than the length that was promised
            return
        whole = b"".join(self._chunks) if len(self._chunks) > 1 else self._chunks[0]
        head = whole[: self._head_end]
        reply = Reply(int(head[9:12]), time.monotonic(), head, whole[self._head_end :])
        self.exchanges += 1
        self.idle_since = reply.ended
        if self._closes:
            self.close()
        self._settle(reply)

    def _give_up(self) -> None:
        self._fail("late")

    def _fail(self, fault: str) -> None:
        self.close()
        self._settle(Reply(0, time.monotonic(), fault=fault))

    def _settle(self, reply: Reply) -> None:
        waiting, self._waiting = self._waiting, None
        self._chunks, self._came, self._head_end, self._needed = [], 0, 0, 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if waiting is not None and not waiting.done():
            waiting.set_result(reply)

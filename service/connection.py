"""One connection of a caller: uvicorn's HTTP/1.1 protocol, with bounds for those who send slowly, much, or never read.

uvicorn itself closes a connection on which nothing happens between two requests. Here are the other ways in which a
caller could hold one: a head that does not end, the rest of a body that nobody wants any more, an answer that is not
read. What is no HTTP is refused in the service's own form.
"""

import asyncio
import fcntl
import logging
import sys
import termios
from collections.abc import Callable
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from service.errors import HeadTooLarge, Malformed, ServiceError, TooSlow
from service.ids import new_id
from service.problem import refusal, status_of
from service.settings import Settings

MAX_HEAD_BYTES = 1 << 16  # of a request's line and headers, of trailers, and of what stands between chunks
MAX_HEADERS = 100
MAX_UNWANTED_BYTES = 1 << 20  # of a body whose request has been refused
LINGER_SECONDS = 2.0  # for which more is read, and dropped, behind a refusal

Tell = Callable[[dict[str, Any]], None]

log = logging.getLogger("headwater.access")


class Connection(HttpToolsProtocol):
    """A connection; `protocol_class` makes the class that uvicorn takes.

    At most two timers run, and neither ticks: one while a head (or an unwanted rest of a body) comes, one while an
    answer waits for its reader.
    """

    header_seconds = 10.0
    send_seconds = 60.0
    tell: Tell = staticmethod(lambda _: None)

    _coming: asyncio.TimerHandle | None = None
    _sending: asyncio.TimerHandle | None = None
    _unsent = 0  # bytes, when the timer was set
    _in_head = True
    _in_message = False
    _stray_bytes = 0  # that have come since the parser had a head, a part of a body or the end of a request
    _unwanted_bytes = 0
    _refused = False

    # --- what comes

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first head from here on."""
        super().connection_made(transport)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        """Feed the parser; refuse what it cannot read, and what makes it wait for too many bytes."""
        if self._refused:
            return
        self._unset_keepalive_if_required()
        self._stray_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # nothing but HTTP/1.1 is spoken here: the request is answered as it is, and the parser is at its end
            if self.cycle is not None:
                self.cycle.keep_alive = False
        except httptools.HttpParserError as error:
            self._refuse(Malformed(f"this is no HTTP/1.1 request: {error!s:.200}", code="malformed_request"))
        else:
            if self._stray_bytes > MAX_HEAD_BYTES:
                self._refuse_head(f"{self._stray_bytes} bytes of the head have come", "bytes", MAX_HEAD_BYTES)
            elif not self._in_message and self._is_answered():
                self._wait_for_head()  # blank lines, on which uvicorn has put an end to its own waiting

    def on_message_begin(self) -> None:
        """Wait for the next head from its first byte on."""
        super().on_message_begin()
        self._in_head = self._in_message = True
        self._unwanted_bytes = 0
        self._wait_for_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; a trailer, which comes behind the body, is none."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Begin with the request, if its head is within the bounds."""
        self._stray_bytes = 0
        self._stop_waiting()
        if self._refused:
            return
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > MAX_HEAD_BYTES:
            self._refuse_head(f"the head has {size} bytes", "bytes", MAX_HEAD_BYTES)
        elif len(self.headers) > MAX_HEADERS:
            self._refuse_head(f"the head has {len(self.headers)} headers", "headers", MAX_HEADERS)
        else:
            self._in_head = False
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Pass on a part of the body; of one that nobody wants any more, take little."""
        self._stray_bytes = 0
        if self._is_answered():
            self._unwanted_bytes += len(body)
            if self._unwanted_bytes > MAX_UNWANTED_BYTES:
                self._close()
        elif not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is there as a whole."""
        self._in_message, self._stray_bytes = False, 0
        self._stop_waiting()
        if not self._refused:
            super().on_message_complete()

    def _should_upgrade(self) -> bool:
        return False

    def _is_answered(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _wait_for_head(self) -> None:
        if self._coming is None and not self.transport.is_closing():
            self._coming = self.loop.call_later(self.header_seconds, self._too_slow)

    def _too_slow(self) -> None:
        self._coming = None
        if self.transport.is_closing():
            return
        if self._in_message and self._in_head:
            limit = f"{self.header_seconds:g} seconds, the limit header_timeout_seconds"
            self._refuse(TooSlow(f"the head of the request did not come within {limit}", code="header_timeout"))
        else:
            # not a byte came, or the rest of a body whose request has been answered
            self._close()

    def _stop_waiting(self) -> None:
        if self._coming is not None:
            self._coming.cancel()
            self._coming = None

    # --- what is refused

    def _refuse_head(self, what: str, unit: str, limit: int) -> None:
        self._refuse(HeadTooLarge(f"{what}, the limit is {limit} {unit}"))

    def _refuse(self, error: ServiceError) -> None:
        """Answer and close; requests that came before on this connection get their answers first."""
        self._refused = True
        self._stop_waiting()
        cycle = self.cycle
        if not self._is_answered():
            its_own = self._in_message and not self._in_head
            if not its_own:
                cycle.keep_alive = False  # it is the last one that is answered
                return
            cycle.disconnected = True
            cycle.message_event.set()
            if cycle.response_started or self.pipeline:
                self._close()
                return
        self._answer(error)

    def _answer(self, error: ServiceError) -> None:
        request_id = new_id()
        path = (getattr(self, "url", None) or b"").decode("latin-1").partition("?")[0]
        response = refusal(error, path)
        response.headers["x-request-id"] = request_id
        response.headers["connection"] = "close"
        head = [STATUS_LINE[response.status_code]]
        head += [name + b": " + value + b"\r\n" for name, value in response.raw_headers]
        self.transport.write(b"".join([*head, b"\r\n", bytes(response.body)]))
        line = {
            "request_id": request_id,
            "method": None,
            "status": status_of(error),
            "code": error.code,
            "route": None,
            "bytes_in": 0,
            "bytes_out": len(response.body),
            "ms": 0.0,
        }
        self.tell(line)
        log.info(line)
        # to close while more comes would reset the connection, and the caller might never read the answer
        self.transport.write_eof()
        self._watch_sending()
        self._coming = self.loop.call_later(min(LINGER_SECONDS, self.header_seconds), self._close)

    # --- what goes out

    def pause_writing(self) -> None:
        """The caller does not keep up."""
        super().pause_writing()
        self._stop_watching()
        self._watch_sending()

    def resume_writing(self) -> None:
        """The caller has read nearly all that waited."""
        super().resume_writing()
        self._stop_watching()

    def on_response_complete(self) -> None:
        """Watch over what is left: to be sent, and to come of a body that nobody waits for."""
        super().on_response_complete()
        self._stop_watching()
        self._watch_sending()
        if self._in_message and not self._in_head and self._is_answered():
            self._wait_for_head()  # behind the rest of the body

    def timeout_keep_alive_handler(self) -> None:
        """Nothing came for a while."""
        self._close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of the timers."""
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._stop_waiting()
        self._stop_watching()

    def _close(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()
        self._watch_sending()

    def _watch_sending(self) -> None:
        if self._sending is None and self.transport.get_write_buffer_size():
            self._unsent = self._unsent_bytes()
            self._sending = self.loop.call_later(self.send_seconds, self._check_sending)

    def _check_sending(self) -> None:
        self._sending = None
        if self.transport.get_write_buffer_size() and self._unsent_bytes() == self._unsent:
            self.transport.abort()
        else:
            self._watch_sending()

    def _unsent_bytes(self) -> int:
        """What waits here and in the kernel, which wants more of us only when much of its own has gone."""
        waiting = self.transport.get_write_buffer_size()
        try:
            in_kernel = fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
        except OSError:
            return waiting
        return waiting + int.from_bytes(in_kernel, sys.byteorder)

    def _stop_watching(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None


def protocol_class(settings: Settings, told: Tell = lambda _: None) -> type[HttpToolsProtocol]:
    """The protocol of a service with these settings, for uvicorn; `told` gets the log line of each refusal here."""

    class Configured(Connection):
        header_seconds = settings.header_timeout_seconds
        send_seconds = settings.send_timeout_seconds
        tell = staticmethod(told)

    return Configured

"""One request and its response, without the waiting: what both clients send, and what they make of what comes.

Nothing here writes an address or a key anywhere: log lines have the path, the status, the request's id and the time.
"""

import logging
import re
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import httpx

from headwater_client.call import JSON, SAFETENSORS, Body
from headwater_client.checks import positive, string
from headwater_client.errors import BrokenAnswer, HeadwaterError, TimedOut, Unreachable, error_of

PROBE_SECONDS, PAUSE_SECONDS = 5.0, 1.0  # of silence for a probe; between two of them at most
log = logging.getLogger("headwater_client")
CONNECT_SECONDS = 10.0
IDLE_SECONDS = 4.0  # that a connection is kept: less than the service keeps it, which would close it under a request
_SMALL_BYTES = 1 << 20
_within = ContextVar("within a call of this package", default=False)
_QUIETED = ("httpx", "httpcore.connection", "httpcore.proxy")


def _not_ours(record: logging.LogRecord) -> bool:
    return not _within.get()


for _name in _QUIETED:  # these loggers write the address of each request: not of ours, and of everybody else's as ever
    logging.getLogger(_name).addFilter(_not_ours)


@dataclass(frozen=True, repr=False)
class Service:
    """Where to ask and how, checked once."""

    url: httpx.URL
    headers: Mapping[str, str]
    timeout: httpx.Timeout
    verify: Any = True
    trust_env: bool = True

    @classmethod
    def at(
        cls, url: str, api_key: str | None, timeout: float | None, *, verify: Any = True, trust_env: bool = True
    ) -> "Service":
        """Raises ValueError, with the field's name and without its value where that is a secret."""
        try:
            parsed = httpx.URL(string("url", url).rstrip("/") + "/")
        except httpx.InvalidURL as error:
            raise ValueError(f"url: {error}") from None
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise ValueError("url: must be like http://127.0.0.1:8000")
        if parsed.port is not None and not 0 < parsed.port < 1 << 16:
            raise ValueError(f"url: a port is between 1 and 65535, not {parsed.port}")
        if parsed.userinfo or parsed.query or parsed.fragment:
            raise ValueError("url: takes no user, password, query or fragment; keys are given as api_key")
        if api_key is not None and not re.fullmatch(r"[!-~]+", string("api_key", api_key)):
            raise ValueError("api_key: must be printable ASCII without blanks")
        timeout = None if timeout is None else positive("timeout", timeout)
        # not packed: arrays hardly shrink, and what comes as it is goes into its buffer without another copy
        headers = {"Accept": SAFETENSORS, "Accept-Encoding": "identity", "User-Agent": "headwater-client"}
        if api_key is not None:
            headers["Authorization"] = f"Bearer {api_key}"
        connect = CONNECT_SECONDS if timeout is None else min(CONNECT_SECONDS, timeout)
        return cls(parsed, headers, httpx.Timeout(timeout, connect=connect, pool=None), verify, trust_env)

    def options(self) -> dict[str, Any]:
        """What httpx's clients are made with. There is no bound on connections: callers bound how much they ask."""
        return {
            "base_url": self.url,
            "headers": dict(self.headers),
            "timeout": self.timeout,
            "verify": self.verify,
            "trust_env": self.trust_env,
            "follow_redirects": False,  # the key would go elsewhere
            "limits": httpx.Limits(max_connections=None, keepalive_expiry=IDLE_SECONDS),
        }


@dataclass(frozen=True, repr=False)
class Request:
    """A request that may be sent several times, under one id: the service knows by it who comes again as told."""

    method: str
    path: str
    body: Body | None = None
    params: Mapping[str, str] = field(default_factory=dict)
    timeout: float | None = None  # seconds of silence, where it is not the client's own
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[!-~]{1,128}", string("request_id", self.id)):
            raise ValueError("request_id: must be 1 to 128 characters of printable ASCII without blanks")

    def arguments(self, *, asynchronous: bool = False) -> dict[str, Any]:
        """What `build_request` of httpx takes."""
        headers = {"X-Request-Id": self.id}
        content: Any = None
        if self.body is not None:
            headers |= {"Content-Type": self.body.content_type, "Content-Length": str(self.body.nbytes)}
            if self.is_large:
                content = self.body.sent_async() if asynchronous else self.body.sent()
            else:
                content = b"".join(self.body.buffers)
        return {
            "method": self.method,
            "url": self.path,
            "params": dict(self.params) or None,
            "headers": headers,
            "content": content,
            **({"timeout": self.timeout} if self.timeout is not None else {}),
        }

    @property
    def is_large(self) -> bool:
        """Whether its body may be refused before all of it is sent."""
        return self.body is not None and self.body.nbytes > _SMALL_BYTES

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Around the sending, until the response's head is there: errors become ours, other loggers are silent."""
        token, began = _within.set(True), time.monotonic()
        try:
            yield
        except httpx.ConnectTimeout:
            raise self._failed(Unreachable, "the service did not take the connection in time", began) from None
        except httpx.TimeoutException:
            raise self._failed(TimedOut, "the service was silent for longer than the client's timeout", began) from None
        except httpx.LocalProtocolError:  # its text has the headers
            raise self._failed(Unreachable, "the request cannot be sent", began) from None
        except httpx.TransportError as error:
            raise self._failed(Unreachable, f"no answer from the service: {error}", began) from None
        finally:
            _within.reset(token)

    @contextmanager
    def receiving(self) -> Iterator[None]:
        """Around the reading of an answer's body."""
        began = time.monotonic()
        try:
            yield
        except httpx.TimeoutException:
            raise self._failed(
                TimedOut, "the answer came to a halt for longer than the client's timeout", began
            ) from None
        except (httpx.TransportError, httpx.DecodingError) as error:
            raise self._failed(BrokenAnswer, f"the answer broke off: {error}", began) from None
        except BrokenAnswer as error:
            raise self._failed(BrokenAnswer, error.detail, began) from None

    def check(self, response: httpx.Response) -> None:
        """That a 200 is of the type asked for. Raises BrokenAnswer."""
        found = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        wanted = JSON if self.method == "GET" or "dry_run" in self.params else SAFETENSORS
        if found != wanted:
            raise BrokenAnswer(
                f"the answer is {found or 'of no type'}, not {wanted}: is this a Headwater service?",
                status=response.status_code,
                request_id=self.id,
            )

    def refusal(self, response: httpx.Response, body: bytes) -> HeadwaterError:
        """The error that a response is which is no 200."""
        error = error_of(response.status_code, response.headers, body, self.id)
        log.debug("%s %s: %s %s, request %s", self.method, self.path, error.status, error.code, self.id)
        return error

    def _failed(self, kind: type[HeadwaterError], detail: str, began: float) -> HeadwaterError:
        seconds = time.monotonic() - began
        log.debug("%s %s: %s after %.3f s, request %s", self.method, self.path, kind.__name__, seconds, self.id)
        return kind(detail, request_id=self.id)


def probe() -> Request:
    """Whether the service takes calls."""
    return Request("GET", "readyz", timeout=PROBE_SECONDS)


def pause_after(error: HeadwaterError) -> float:
    """The seconds until the next probe, after one that said no."""
    return min(PAUSE_SECONDS, error.retry_after or PAUSE_SECONDS / 4)


def announced_length(response: httpx.Response) -> int | None:
    """The bytes of the body as it is read, if that can be known before."""
    length = response.headers.get("content-length", "")
    packed = response.headers.get("content-encoding", "identity") != "identity"
    return int(length) if length.isdigit() and not packed else None

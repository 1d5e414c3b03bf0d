"""What can go wrong, one class a kind, all of them a `HeadwaterError`.

A message holds what the service said; never an address, a key or what was sent.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class FieldError:
    """Where in the request a fault is (a JSON pointer such as `/outputs/1/name`) and what is wrong there."""

    pointer: str
    message: str


class HeadwaterError(Exception):
    """Anything that kept an answer from coming.

    Attributes:
        status: the HTTP status of a refusal; None where no response came, or none that could be used.
        code: the service's stable name of the fault, such as `unknown_point`; None where it did not say.
        detail: one sentence.
        errors: the fields at fault.
        request_id: of the call, as it stands in the service's log; None for what is no call.
        retry_after: the seconds after which the service wants to be asked again; None where it did not say.
    """

    def __init__(
        self,
        detail: str,
        *,
        status: int | None = None,
        code: str | None = None,
        errors: tuple[FieldError, ...] = (),
        request_id: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.status = status
        self.code = code
        self.errors = errors
        self.request_id = request_id
        self.retry_after = retry_after

    def __str__(self) -> str:
        about = [str(self.status)] if self.status is not None else []
        about += [self.code] if self.code else []
        about += [f"request {self.request_id}"] if self.request_id else []
        return f"{self.detail} ({', '.join(about)})" if about else self.detail


class InvalidRequest(HeadwaterError):
    """The request is wrong, and will be wrong again: `errors` says in which fields."""


class UnknownPoint(InvalidRequest):
    """The loaded model has no such point; `detail` names the nearest one."""


class NonFiniteResult(InvalidRequest):
    """A result would be NaN, infinite, or too large for the dtype asked."""


class Unauthorized(HeadwaterError):
    """The service wants an API key, and none or a wrong one was sent."""


class NotFound(HeadwaterError):
    """There is no such route: most likely what answers is no Headwater, or the address has a path too many."""


class TooLarge(HeadwaterError):
    """Over a limit of the service; `detail` gives both numbers."""


class Busy(HeadwaterError):
    """The queue is full; `retry_after` is an appointment."""


class NotReady(HeadwaterError):
    """The service is loading its model, or going down."""


class DeadlineExceeded(HeadwaterError):
    """The answer was not there in time, or the body did not arrive in time."""


class TimedOut(DeadlineExceeded):
    """The service was silent for longer than the client's own `timeout`."""


class ServerFault(HeadwaterError):
    """A fault of the service; its log has it under `request_id`."""


class OutOfMemory(ServerFault):
    """The service has not enough memory for this request, alone."""


class BrokenAnswer(HeadwaterError):
    """An answer ended early, or is not what an answer is: a streamed one that failed on the way looks like this."""


class Unreachable(HeadwaterError):
    """No connection, or it was lost before the answer began."""


class ModelChanged(HeadwaterError):
    """Another model answers than the one that the run began with."""


class RunMismatch(HeadwaterError):
    """A directory holds a run of another model, of other outputs or of other inputs."""


class RunInUse(HeadwaterError):
    """Another process writes into the directory now."""


class ClientClosed(HeadwaterError):
    """The client was closed, by `close()` or at the end of its `with`, and asks nothing any more."""

    def __init__(self) -> None:
        super().__init__("the client is closed; make another one")


# RETRIED: asking again may help, and costs nobody but time, for a call changes nothing in the service.
RETRIED = (Busy, NotReady, Unreachable, BrokenAnswer)
# FATAL: not about one sequence but about all that would follow, so a run over many ends there.
FATAL = (UnknownPoint, Unauthorized, NotFound, NotReady, Unreachable, ModelChanged, RunMismatch, RunInUse, ClientClosed)

_BY_CODE: dict[str, type[HeadwaterError]] = {
    "unknown_point": UnknownPoint,
    "non_finite_result": NonFiniteResult,
    "out_of_memory": OutOfMemory,
}
_BY_STATUS: dict[int, type[HeadwaterError]] = {
    401: Unauthorized,
    403: Unauthorized,
    404: NotFound,
    405: NotFound,
    408: DeadlineExceeded,
    413: TooLarge,
    429: Busy,
    431: TooLarge,
    503: NotReady,
    504: DeadlineExceeded,
}


def kind_of(status: int, code: str | None) -> type[HeadwaterError]:
    """The class of a refusal, by its code where that says more than the status."""
    if code in _BY_CODE:
        return _BY_CODE[code]
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    return InvalidRequest if 400 <= status < 500 else ServerFault if status >= 500 else BrokenAnswer


def error_of(status: int, headers: Mapping[str, str], body: bytes, request_id: str) -> HeadwaterError:
    """The error that a response stands for which is no answer."""
    problem = _problem(body)
    code = problem.get("code") if isinstance(problem.get("code"), str) else None
    detail = problem.get("detail")
    fields = problem.get("errors")
    return kind_of(status, code)(
        detail if isinstance(detail, str) and detail else f"the service answered with status {status}",
        status=status,
        code=code,
        errors=tuple(
            FieldError(str(one.get("pointer", "")), str(one.get("message", "")))
            for one in (fields if isinstance(fields, list) else [])
            if isinstance(one, dict)
        ),
        request_id=headers.get("x-request-id", request_id),
        retry_after=_seconds(headers.get("retry-after")),
    )


def _problem(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except ValueError:  # a proxy's page, or half of a refusal
        return {}
    return found if isinstance(found, dict) else {}


def _seconds(header: str | None) -> float | None:
    """Retry-After in seconds. Its other form, a date, needs clocks that agree: it counts as not said."""
    try:
        seconds = float(header or "")
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None

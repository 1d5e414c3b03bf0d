"""What a caller can be told, in domain words; one table turns them into HTTP."""

from dataclasses import dataclass


@dataclass(frozen=True)
class FieldError:
    """Where in the request a fault is (a JSON pointer) and what is wrong there."""

    pointer: str
    message: str


class ServiceError(Exception):
    """A refusal: a sentence for the caller, and the fields at fault where there are any."""

    code = "internal_error"
    title = "The service failed"

    def __init__(
        self, detail: str, *fields: FieldError, code: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.fields = fields
        self.code = code or type(self).code
        self.retry_after = retry_after


class Malformed(ServiceError):
    """The body is not what its content type says."""

    code, title = "malformed_body", "The body cannot be read"


class NotFound(ServiceError):
    """No such route or model."""

    code, title = "not_found", "There is nothing here"


class MethodNotAllowed(ServiceError):
    """The route has no such method."""

    code, title = "method_not_allowed", "The method is not allowed here"


class NotAcceptable(ServiceError):
    """The answer cannot be given in a format that the caller takes."""

    code, title = "not_acceptable", "The format asked for is not offered"


class TooSlow(ServiceError):
    """The body did not arrive in time."""

    code, title = "body_timeout", "The body did not arrive in time"


class TooLarge(ServiceError):
    """Over a limit of the server."""

    code, title = "too_large", "Over a limit of the server"


class HeadTooLarge(ServiceError):
    """The head of a request is over a limit."""

    code, title = "head_too_large", "The head of the request is too large"


class UnsupportedMediaType(ServiceError):
    """The body's content type is not one that is read here."""

    code, title = "unsupported_media_type", "The content type is not supported"


class Unprocessable(ServiceError):
    """Well formed, and wrong for this model."""

    code, title = "invalid_request", "The request cannot be run"


class Unauthorized(ServiceError):
    """API keys are configured, and none or a wrong one came."""

    code, title = "unauthorized", "An API key is needed"


class QueueFull(ServiceError):
    """There is no room for the request now."""

    code, title = "queue_full", "The queue is full"


class NotReady(ServiceError):
    """The service is not up yet, or does not take work any more."""

    code, title = "not_ready", "The service is not ready"


class CallerLeft(ServiceError):
    """The caller left before its answer was there; this stands in the log and the metrics, for nobody reads it."""

    code, title = "caller_left", "The caller has left"


class Draining(NotReady):
    """The service is going down; the connection is closed with the answer, so that the next goes elsewhere."""


class NotAlive(NotReady):
    """The model thread has ended or shows no sign of life; only a new process helps."""

    code = "not_alive"


class DeadlinePassed(ServiceError):
    """The answer was not there in time."""

    code, title = "deadline_passed", "The deadline passed"


class ModelFailed(ServiceError):
    """The model raised; the log has it under the request's id."""

    code, title = "internal_error", "The service failed"


STATUS: dict[type[ServiceError], int] = {
    Malformed: 400,
    Unauthorized: 401,
    NotFound: 404,
    MethodNotAllowed: 405,
    NotAcceptable: 406,
    TooSlow: 408,
    TooLarge: 413,
    UnsupportedMediaType: 415,
    Unprocessable: 422,
    QueueFull: 429,
    HeadTooLarge: 431,
    CallerLeft: 499,
    ModelFailed: 500,
    NotReady: 503,
    DeadlinePassed: 504,
}

# Every code there is: that of each kind, and those given to special cases of one.
CODES = frozenset(
    {kind.code for kind in STATUS}
    | {"body_too_large", "json_too_large", "unknown_point", "non_finite_result", "not_alive", "out_of_memory"}
    | {"malformed_request", "header_timeout"}
)


def invalid(pointer: str, message: str, code: str | None = None) -> Unprocessable:
    """A field that is wrong; `message` gives its value and the limit that it broke."""
    return Unprocessable(f"{pointer}: {message}" if pointer else message, FieldError(pointer, message), code=code)

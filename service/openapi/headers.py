"""Headers and parameters, for /openapi.json."""

from typing import Any

from service.wire.v2_request import LENGTH_HEADER

Header = tuple[str, dict[str, Any]]


def _header(name: str, description: str, **schema: Any) -> Header:
    return name, {"description": description, "schema": {"type": "string"} | schema}


REQUEST_ID = _header("X-Request-Id", "the request's own id if it had one, else a new one; it stands in the log")
SERVER_TIMING = _header(
    "Server-Timing",
    "`queue;dur=MS, compute;dur=MS`: the longest time in milliseconds that a sequence of the call waited, and that its "
    "batch ran; of a streamed answer, the queue alone",
)
RETRY_AFTER = _header(
    "Retry-After",
    "seconds after which to come back; with a 429 room is kept then, for a second",
    type="integer",
    minimum=1,
)
WWW_AUTHENTICATE = _header("WWW-Authenticate", "`Bearer`: a key is to be sent in the header Authorization")
X_MANIFEST = _header("X-Manifest", "with an npy answer: its manifest, as JSON")
JSON_LENGTH = _header(
    LENGTH_HEADER, "bytes of JSON at the start of the answer, where tensors are behind it", type="integer", minimum=0
)
CONTENT_ENCODING = _header(
    "Content-Encoding", "how the answer is packed: zstd, gzip or deflate, as Accept-Encoding prefers"
)


def response_headers(*headers: Header) -> dict[str, Any]:
    """The headers of a response: these, and the request id that each has."""
    return dict([REQUEST_ID, *headers])


def parameter(where: str, name: str, description: str, *, required: bool = False, **schema: Any) -> dict[str, Any]:
    """A parameter in the path, the query or a header; a string unless its schema says otherwise."""
    return {
        "name": name,
        "in": where,
        "required": required,
        "description": description,
        "schema": {"type": "string"} | schema,
    }


REQUEST_ID_SENT = parameter(
    "header",
    "X-Request-Id",
    "an id for this request, 1 to 128 visible ASCII characters: it stands in the log and comes back. The same id with "
    "each try after a 429 keeps one's place",
)
TRACEPARENT = parameter(
    "header",
    "traceparent",
    "the trace that this request belongs to (W3C Trace Context), for the log and the traces",
)
JSON_LENGTH_SENT = parameter(
    "header", LENGTH_HEADER, "bytes of JSON at the start of the body, where tensors are behind it"
)
OF_EVERY_ROUTE = (REQUEST_ID_SENT, TRACEPARENT)
KEY = {
    "type": "http",
    "scheme": "bearer",
    "description": "The header `Authorization: Bearer KEY`, where the service was started with `--api-keys-file`; "
    "otherwise none is needed.",
}

"""A body in any of the formats to a call."""

import orjson

from service.errors import Malformed, invalid
from service.host_tensor import HostTensor
from service.wire import npy_format, safetensors_format
from service.wire.call import ForwardCall, build_call
from service.wire.formats import Format


def decode(body: bytearray, body_format: Format, request_parameter: str | None) -> ForwardCall:
    """The call that a body makes. Takes time and holds no lock: not for the event loop where bodies are large.

    `request_parameter` is the query parameter `request`, which goes with npy alone. Raises Malformed where the
    body is not what its content type says, Unprocessable where it is well formed and wrong.
    """
    if request_parameter is not None and body_format != "npy":
        raise invalid("/request", "the query parameter request goes with an npy body alone")
    match body_format:
        case "json":
            return build_call(_json(body, "the body"), {})
        case "safetensors":
            tensors, metadata = safetensors_format.read(body)
            return build_call(_json(metadata.get("request", "{}"), "the metadata key request"), tensors)
        case "npy":
            array = npy_format.read(body)
            fields = _json(request_parameter or "{}", "the query parameter request")
            return build_call(fields, {_npy_kind(array): array})


def _npy_kind(array: HostTensor) -> str:
    return "tokens" if array.is_integer else "x"


def _json(text: bytearray | str, what: str) -> object:
    if not text:
        raise Malformed(f"{what} is empty")
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise Malformed(f"{what} is not JSON: {error}") from None

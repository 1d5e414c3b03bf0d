"""A body in any of the formats to a call."""

from service.errors import invalid
from service.host_tensor import HostTensor
from service.wire import json_body, npy_format, safetensors_format
from service.wire.body import Body
from service.wire.call import ForwardCall, build_call
from service.wire.formats import Format


def decode(body: Body, body_format: Format, request_parameter: str | None) -> ForwardCall:
    """The call that a body makes. For a thread: it takes time where bodies are large.

    `request_parameter` is the query parameter `request`, which goes with npy alone. Raises Malformed where the
    body is not what its content type says, Unprocessable where it is well formed and wrong.
    """
    if request_parameter is not None and body_format != "npy":
        raise invalid("/request", "the query parameter request goes with an npy body alone")
    match body_format:
        case "json":
            return build_call(json_body.loads(body, "the body"), {})
        case "safetensors":
            tensors, metadata = safetensors_format.read(body)
            return build_call(
                json_body.loads(metadata.get("request", "{}").encode(), "the metadata key request"), tensors
            )
        case "npy":
            array = npy_format.read(body)
            fields = json_body.loads((request_parameter or "{}").encode(), "the query parameter request")
            return build_call(fields, {_npy_kind(array): array})


def _npy_kind(array: HostTensor) -> str:
    return "tokens" if array.is_integer else "x"

"""An answer as safetensors or npy: the bytes of the arrays as they are."""

import json
from collections.abc import Iterator

import orjson

from service.errors import NotAcceptable
from service.host_tensor import HostTensor
from service.wire import npy_format, safetensors_format
from service.wire.answer import Answer


def safetensors_header(answer: Answer) -> bytes:
    """What stands before the tensors; metadata has model, usage, manifest and tokens, each as JSON but model."""
    metadata = {
        "model": answer.model,
        "usage": orjson.dumps(answer.usage_json()).decode(),
        "manifest": orjson.dumps(answer.manifest).decode(),
    }
    tokens = answer.tokens_json()
    if tokens is not None:
        metadata["tokens"] = orjson.dumps(tokens).decode()
    return safetensors_format.header(answer.specs, metadata)


def encode_safetensors(answer: Answer) -> Iterator[bytes | memoryview]:
    """Header, then each tensor's bytes, in the order of the specs."""
    yield safetensors_header(answer)
    for spec in answer.specs:
        yield tensor_bytes(answer.tensors[spec.name])


def encode_npy(answer: Answer) -> Iterator[bytes | memoryview]:
    """The one tensor of an answer; `check_npy` has passed."""
    (spec,) = answer.specs
    yield npy_format.header(spec.shape, spec.dtype)
    yield tensor_bytes(answer.tensors[spec.name])


def npy_headers(answer: Answer) -> dict[str, str]:
    """The manifest, for which the format has no place, as a header; ASCII alone."""
    return {"X-Manifest": json.dumps(answer.manifest, separators=(",", ":"))}


def check_npy(dtypes: list[str]) -> None:
    """Refuse, before anything runs, what npy cannot carry. Raises NotAcceptable."""
    if len(dtypes) != 1:
        raise NotAcceptable(f"npy carries exactly one tensor, and {len(dtypes)} are asked for")
    if dtypes[0] == "bfloat16":
        raise NotAcceptable("npy carries no bfloat16; ask for float32 or float16, or for safetensors")


def tensor_bytes(tensor: HostTensor) -> memoryview:
    """The bytes of a tensor, without a copy."""
    return tensor.data.reshape(-1).view("u1").data

"""An answer as safetensors or npy: the bytes of the arrays as they are."""

from collections.abc import Iterator

import orjson

from service.errors import NotAcceptable
from service.host_tensor import HostTensor
from service.wire import npy_format, safetensors_format
from service.wire.answer import Answer


def encode_safetensors(answer: Answer) -> Iterator[bytes | memoryview]:
    """Header, then each tensor's bytes; metadata has model, usage, manifest and tokens, each as JSON but model."""
    metadata = {
        "model": answer.model,
        "usage": orjson.dumps(answer.usage_json()).decode(),
        "manifest": orjson.dumps(answer.manifest).decode(),
    }
    tokens = answer.tokens_json()
    if tokens is not None:
        metadata["tokens"] = orjson.dumps(tokens).decode()
    specs = safetensors_format.aligned(answer.specs)
    yield safetensors_format.header(specs, metadata)
    for spec in specs:
        yield _bytes(answer.tensors[spec.name])


def encode_npy(answer: Answer) -> Iterator[bytes | memoryview]:
    """The one tensor of an answer. Raises NotAcceptable where there are more, or numpy has no such dtype."""
    (spec,) = answer.specs
    yield npy_format.header(spec.shape, spec.dtype)
    yield _bytes(answer.tensors[spec.name])


def check_npy(dtypes: list[str]) -> None:
    """Refuse, before anything runs, what npy cannot carry."""
    if len(dtypes) != 1:
        raise NotAcceptable(f"npy carries exactly one tensor, and {len(dtypes)} are asked for")
    if dtypes[0] == "bfloat16":
        raise NotAcceptable("npy carries no bfloat16; ask for float32 or float16, or for safetensors")


def _bytes(tensor: HostTensor) -> memoryview:
    return tensor.data.reshape(-1).view("u1").data if tensor.data.size else memoryview(b"")

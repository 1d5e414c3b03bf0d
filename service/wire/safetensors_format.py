"""The safetensors format: an 8-byte length, a JSON header, then the tensors' bytes without a gap.

Read without a copy, and laid out before the numbers exist; the format's own library can do neither.
"""

import json
import struct
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import orjson

from model.selection import ResultSpec
from service.errors import Malformed
from service.host_tensor import MAX_RANK, MAX_SIZE, STORAGE, HostTensor
from service.wire.body import Body

_NAMES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8",
}  # fmt: skip
_CODES = {name: code for code, name in _NAMES.items()}
MAX_HEADER_BYTES = 8 << 20  # the library allows 100 MB; a header that long is no request


def read(body: Body) -> tuple[dict[str, HostTensor], dict[str, str]]:
    """The tensors of a body, as views of it, and its metadata. Raises Malformed."""
    if len(body) < 8:
        raise Malformed(f"a safetensors body has at least 8 bytes, this one has {len(body)}")
    (header_bytes,) = struct.unpack_from("<Q", body)
    if header_bytes > min(len(body) - 8, MAX_HEADER_BYTES):
        raise Malformed(
            f"the safetensors header should have {header_bytes} bytes, and {len(body) - 8} come after its length"
        )
    text = bytes(memoryview(body)[8 : 8 + header_bytes])
    try:
        # not orjson: it takes the last of two equal keys in silence, and another reader might take the first
        header = json.loads(text.decode(), object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"the safetensors header is not JSON: {error!s:.200}") from None
    if not isinstance(header, dict):
        raise Malformed("the safetensors header is not a JSON object")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise Malformed("the safetensors __metadata__ is not a table of strings")

    data = memoryview(body)[8 + header_bytes :]
    tensors: dict[str, HostTensor] = {}
    spans: list[tuple[int, int]] = []
    for name, entry in header.items():
        dtype, shape, begin, end = _entry(name, entry)
        if not begin <= end <= len(data):
            raise Malformed(f"tensor {name!r:.80}: bytes {begin} to {end} are not in the {len(data)} of the body")
        size = prod(shape) * STORAGE[dtype].itemsize
        if end - begin != size:
            raise Malformed(f"tensor {name!r:.80}: {dtype} {shape} takes {size} bytes, its offsets span {end - begin}")
        spans.append((begin, end))
        array = np.frombuffer(data[begin:end], dtype=STORAGE[dtype]).reshape(shape)
        # a tensor may start anywhere, and torch wants its numbers aligned
        tensors[name] = HostTensor(dtype, np.require(array, requirements="A"))
    at = 0
    for begin, end in sorted(spans):
        if begin != at:
            raise Malformed(f"the safetensors offsets have a gap or an overlap at byte {min(begin, at)}")
        at = end
    if at != len(data):
        raise Malformed(f"the safetensors offsets cover {at} bytes, {len(data)} came")
    return tensors, metadata


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        for text in (key, value):
            if isinstance(text, str):
                text.encode()  # half of a surrogate pair is no text, and raises
        if key in found:
            raise ValueError(f"key {key!r:.80} stands there twice")
        found[key] = value
    return found


def _entry(name: str, entry: object) -> tuple[str, list[int], int, int]:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise Malformed(f"tensor {name!r:.80}: needs dtype, shape and data_offsets, and nothing else")
    shape, offsets = entry["shape"], entry["data_offsets"]
    for numbers in (shape, offsets):
        if not isinstance(numbers, list) or not all(type(n) is int and 0 <= n < MAX_SIZE for n in numbers):
            raise Malformed(f"tensor {name!r:.80}: {numbers!r:.80} is no list of sizes")
    if len(shape) > MAX_RANK or len(offsets) != 2:
        raise Malformed(f"tensor {name!r:.80}: shape {shape!r:.80} or offsets {offsets!r:.80} are too long")
    code = entry["dtype"]
    if not isinstance(code, str) or code not in _NAMES:
        raise Malformed(f"tensor {name!r:.80}: dtype {code!r:.40} is not one of {', '.join(_NAMES)}")
    return _NAMES[code], shape, offsets[0], offsets[1]


def header(specs: Sequence[ResultSpec], metadata: dict[str, str]) -> bytes:
    """The length and header of a body whose tensors follow in this order."""
    entries: dict[str, object] = {"__metadata__": metadata}
    at = 0
    for spec in specs:
        entries[spec.name] = {
            "dtype": _CODES[spec.dtype],
            "shape": spec.shape,
            "data_offsets": [at, at + spec.nbytes],
        }
        at += spec.nbytes
    text = orjson.dumps(entries)
    text += b" " * (-len(text) % 8)  # so that the numbers are aligned
    return struct.pack("<Q", len(text)) + text


def aligned(specs: Sequence[ResultSpec]) -> list[ResultSpec]:
    """The specs in an order in which every tensor is aligned: theirs if it is so, else wide dtypes first."""
    at = 0
    for spec in specs:
        width = STORAGE[spec.dtype].itemsize
        if at % width:
            return sorted(specs, key=lambda s: -STORAGE[s.dtype].itemsize)
        at += spec.nbytes
    return list(specs)

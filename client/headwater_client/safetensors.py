"""The safetensors format: 8 bytes of length, a JSON header, then the tensors' bytes.

Of our own, because the format's library can neither give a tensor before all have come, nor read without a copy.
"""

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from headwater_client.errors import BrokenAnswer
from headwater_client.tensors import CODES, DTYPES, Array, Tensor

MAX_HEADER_BYTES = 100_000_000  # as the format's library has it
MAX_RANK, MAX_SIZE = 64, 1 << 48


@dataclass(frozen=True)
class Entry:
    """One tensor of a header: its place among the bytes that follow it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    def tensor(self, data: Array) -> Tensor:
        """The tensor over its own bytes `data`, uint8 [end - begin], without a copy."""
        return Tensor(self.dtype, data.view(DTYPES[CODES[self.dtype]][1]).reshape(self.shape))


@dataclass(frozen=True)
class Header:
    """What stands before the tensors; `entries` in the order of their bytes, which leave no gap."""

    entries: tuple[Entry, ...]
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def data_bytes(self) -> int:
        """The bytes of all tensors."""
        return self.entries[-1].end if self.entries else 0


def read_header(text: bytes) -> Header:
    """The header from its JSON. Raises BrokenAnswer."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise BrokenAnswer("the header of the tensors is not JSON") from None
    if not isinstance(found, dict):
        raise BrokenAnswer("the header of the tensors is not a JSON object")
    metadata = found.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise BrokenAnswer("the metadata of the tensors is not a table of strings")
    entries = sorted((_entry(name, about) for name, about in found.items()), key=lambda one: (one.begin, one.end))
    at = 0
    for one in entries:
        if one.begin != at:
            raise BrokenAnswer(
                f"tensor {one.name!r:.80} begins at byte {one.begin}, and the one before it ends at {at}"
            )
        at = one.end
    return Header(tuple(entries), metadata)


def header_length(first: bytes | memoryview) -> int:
    """The length of the header that follows these 8 bytes. Raises BrokenAnswer."""
    if len(first) != 8:
        raise BrokenAnswer(f"safetensors begins with 8 bytes of length, here are {len(first)}")
    (length,) = struct.unpack("<Q", first)
    if length > MAX_HEADER_BYTES:
        raise BrokenAnswer(f"the header of the tensors would have {length} bytes: this is no safetensors")
    return int(length)


def read(body: Array) -> tuple[dict[str, Tensor], Mapping[str, str]]:
    """The tensors of a whole body, uint8 [bytes], as views of it, and the metadata. Raises BrokenAnswer."""
    first = 8 + header_length(body[:8].tobytes())
    header = read_header(body[8:first].tobytes())
    if len(body) != first + header.data_bytes:
        raise BrokenAnswer(f"the body has {len(body)} bytes, its header says {first + header.data_bytes}")
    return {one.name: one.tensor(body[first + one.begin : first + one.end]) for one in header.entries}, header.metadata


def pieces(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    """The bytes of a body, the tensors' as they lie in memory. Wide dtypes first, so that all of them are aligned."""
    entries: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    ordered = sorted(tensors.items(), key=lambda pair: -pair[1].stored.itemsize)
    at = 0
    for name, tensor in ordered:
        entries[name] = {
            "dtype": CODES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [at, at + tensor.nbytes],
        }
        at += tensor.nbytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield struct.pack("<Q", len(text)) + text
    for _, tensor in ordered:
        yield np.ascontiguousarray(tensor.stored).reshape(-1).view(np.uint8).data


def _entry(name: str, about: Any) -> Entry:
    if not isinstance(about, dict):
        raise BrokenAnswer(f"tensor {name!r:.80} is not described")
    shape: Any = about.get("shape")
    offsets: Any = about.get("data_offsets")
    dtype = about.get("dtype")
    for numbers, longest in ((shape, MAX_RANK), (offsets, 2)):
        if (
            not isinstance(numbers, list)
            or len(numbers) > longest
            or not all(type(n) is int and 0 <= n < MAX_SIZE for n in numbers)
        ):
            raise BrokenAnswer(f"tensor {name!r:.80}: {numbers!r:.80} is no list of sizes")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise BrokenAnswer(f"tensor {name!r:.80}: dtype {dtype!r:.40} is not one of {', '.join(DTYPES)}")
    if len(offsets) != 2:
        raise BrokenAnswer(f"tensor {name!r:.80}: its offsets are {offsets!r:.80}")
    begin, end = offsets
    own, storage = DTYPES[dtype]
    size = prod(shape) * storage.itemsize
    if end - begin != size:
        raise BrokenAnswer(f"tensor {name!r:.80}: {dtype} {shape} takes {size} bytes, its offsets span {end - begin}")
    return Entry(name, own, tuple(shape), begin, end)

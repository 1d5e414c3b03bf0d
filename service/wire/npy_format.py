"""The npy format: one array. Read without a copy; what is not plain numbers (pickles, records) is refused.

The header is a Python dict as text. It is read by a pattern that knows its three keys and nothing else of Python: numpy
gives such text to Python's own parser, which takes its time, warns, and raises whatever it likes.
"""

import io
import math
import re
import struct

import numpy as np

from service.errors import Malformed
from service.host_tensor import MAX_RANK, MAX_SIZE, STORAGE, HostTensor
from service.wire.body import Body

_MAX_HEADER_BYTES = 65536
_MAGIC = b"\x93NUMPY"
_VERSIONS = {(1, 0): ("<H", "latin1"), (2, 0): ("<I", "latin1"), (3, 0): ("<I", "utf-8")}
_ENTRY = re.compile(
    r"""\s*+(['"])(?P<key>descr|fortran_order|shape)\1\s*+:\s*+"""
    r"""(?P<value>'[^'\\]*+'|"[^"\\]*+"|True|False|\([\s\d,L]*+\))\s*+"""
)
_DTYPE = re.compile(r"[<>=|]?[fiu]\d{1,2}")
_SHAPE = re.compile(r"\(\s*+(?:\d++L?\s*+(?:,\s*+\d++L?\s*+)*+,?\s*+)?+\)")  # Python 2 wrote 3L


def read(body: Body) -> HostTensor:
    """The array of a body, as a view of it where its byte order and layout allow. Raises Malformed."""
    entries, begin = _entries(body)
    descr, fortran, shape = _checked(entries)
    dtype = np.dtype(descr)
    name = dtype.newbyteorder("<").name
    if name not in STORAGE:
        raise Malformed(f"npy arrays of dtype {dtype!s:.80} are not read here")
    data = memoryview(body)[begin:]
    size = math.prod(shape) * dtype.itemsize
    if size != len(data):
        raise Malformed(f"npy {name} {list(shape)} takes {size} bytes, {len(data)} came")
    array = np.frombuffer(data, dtype=dtype).reshape(shape, order="F" if fortran else "C")
    return HostTensor(name, np.require(array, dtype=STORAGE[name], requirements=["C", "A"]))


def _entries(body: Body) -> tuple[dict[str, str], int]:
    """The header's keys with their values as they stand there, and where the numbers begin."""
    start = bytes(memoryview(body)[:12])
    if not start.startswith(_MAGIC) or len(start) < 12:
        raise Malformed("an npy body begins with the bytes \\x93NUMPY, a version and a header, and this one does not")
    version = start[6], start[7]
    if version not in _VERSIONS:
        raise Malformed(f"npy version {version[0]}.{version[1]} is not read here")
    length, encoding = _VERSIONS[version]
    first = 8 + struct.calcsize(length)
    (size,) = struct.unpack_from(length, start, 8)
    if size > min(len(body) - first, _MAX_HEADER_BYTES):
        raise Malformed(f"the npy header should have {size} bytes, and {len(body) - first} come after its length")
    text = bytes(memoryview(body)[first : first + size]).decode(encoding, "replace").strip()
    if not (text.startswith("{") and text.endswith("}")):
        raise Malformed(f"the npy header is no table: {text!r:.80}")
    entries: dict[str, str] = {}
    at, end = 1, len(text) - 1
    while text[at:end].strip():
        entry = _ENTRY.match(text, at, end)
        if entry is None or entry["key"] in entries or text[entry.end() : entry.end() + 1] not in ",}":
            raise Malformed(f"the npy header cannot be read at {text[at : at + 40]!r}")
        entries[entry["key"]] = entry["value"]
        at = min(entry.end() + 1, end)
    return entries, first + size


def _checked(entries: dict[str, str]) -> tuple[str, bool, tuple[int, ...]]:
    """The dtype, whether columns come first, and the shape."""
    if set(entries) != {"descr", "fortran_order", "shape"}:
        raise Malformed(f"the npy header needs descr, fortran_order and shape; it has {', '.join(entries) or 'none'}")
    descr, fortran, shape = entries["descr"][1:-1], entries["fortran_order"], entries["shape"]
    if entries["descr"][0] not in "'\"" or not _DTYPE.fullmatch(descr) or not _is_dtype(descr):
        raise Malformed(f"npy arrays of dtype {entries['descr']:.80} are not read here")
    if fortran not in ("True", "False"):
        raise Malformed(f"the npy fortran_order is {fortran:.40}, and must be True or False")
    sizes = re.findall(r"\d+", shape) if _SHAPE.fullmatch(shape) else None
    if sizes is None or len(sizes) > MAX_RANK or any(len(n) > 20 or int(n) >= MAX_SIZE for n in sizes):
        raise Malformed(f"the npy shape {shape:.80} is not a list of at most {MAX_RANK} sizes")
    return descr, fortran == "True", tuple(map(int, sizes))


def _is_dtype(descr: str) -> bool:
    try:
        np.dtype(descr)
    except TypeError:
        return False
    return True


def header(shape: tuple[int, ...], dtype: str) -> bytes:
    """The bytes before the numbers of an array."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": STORAGE[dtype].str, "fortran_order": False, "shape": shape})
    return file.getvalue()

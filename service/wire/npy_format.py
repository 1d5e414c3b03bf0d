"""The npy format: one array. Read without a copy; object arrays (pickles) are refused by their header."""

import io
import math
import warnings
from typing import Any

import numpy as np

from service.errors import Malformed
from service.host_tensor import MAX_RANK, MAX_SIZE, STORAGE, HostTensor
from service.wire.body import Body

_MAX_HEADER_BYTES = 65536


def read(body: Body) -> HostTensor:
    """The array of a body, as a view of it where its byte order and layout allow. Raises Malformed."""
    file = io.BytesIO(memoryview(body)[:_MAX_HEADER_BYTES])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # of numpy, about headers that it takes with a grain of salt
            shape, fortran, dtype = _read_header(file)
    except Exception as error:  # what numpy and Python's own parser raise on such text has no common name
        raise Malformed(f"the npy header cannot be read: {error!s:.200}") from None
    name = dtype.newbyteorder("<").name
    if name not in STORAGE or dtype.hasobject:
        raise Malformed(f"npy arrays of dtype {dtype!s:.80} are not read here")
    if len(shape) > MAX_RANK or any(type(n) is not int or not 0 <= n < MAX_SIZE for n in shape):
        raise Malformed(f"the npy shape {shape!r:.80} is not a list of at most {MAX_RANK} sizes")
    data = memoryview(body)[file.tell() :]
    size = math.prod(shape) * dtype.itemsize
    if size != len(data):
        raise Malformed(f"npy {name} {list(shape)} takes {size} bytes, {len(data)} came")
    array = np.frombuffer(data, dtype=dtype).reshape(shape, order="F" if fortran else "C")
    return HostTensor(name, np.require(array, dtype=STORAGE[name], requirements=["C", "A"]))


def _read_header(file: io.BytesIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(file)
    raise ValueError(f"version {version} is not read here")


def header(shape: tuple[int, ...], dtype: str) -> bytes:
    """The bytes before the numbers of an array."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": STORAGE[dtype].str, "fortran_order": False, "shape": shape})
    return file.getvalue()

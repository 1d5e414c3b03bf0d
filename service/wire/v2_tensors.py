"""Tensors of the Open Inference Protocol: its datatypes, and values that stand in JSON or in the bytes behind it."""

from math import prod
from typing import Any, Literal, get_args

import numpy as np
import torch

from service.errors import Malformed, invalid
from service.host_tensor import STORAGE, HostTensor, off_device
from service.wire import json_lists

Datatype = Literal[
    "FP64", "FP32", "FP16", "BF16", "INT64", "INT32", "INT16", "INT8", "UINT64", "UINT32", "UINT16", "UINT8"
]

_WORDS = {"FP": "float", "BF": "bfloat", "INT": "int", "UINT": "uint"}
DTYPES: dict[str, str] = {
    code: _WORDS[code.rstrip("0123456789")] + code.lstrip("BFPINTU") for code in get_args(Datatype)
}
DATATYPES = {dtype: code for code, dtype in DTYPES.items()}


def from_bytes(data: memoryview, datatype: Datatype, shape: list[int], name: str) -> HostTensor:
    """A tensor of these little-endian bytes, as a view of them where it can be. Raises Malformed."""
    storage = STORAGE[DTYPES[datatype]]
    size = prod(shape) * storage.itemsize
    if size != len(data):
        raise Malformed(
            f"input {name!r:.80}: {datatype} {shape} takes {size} bytes, its binary_data_size is {len(data)}"
        )
    array = np.frombuffer(data, dtype=storage) if size else np.empty(0, dtype=storage)
    # a tensor may start anywhere, and torch wants its numbers aligned
    return HostTensor(DTYPES[datatype], np.require(_reshaped(array, shape, name), requirements="A"))


def from_json(data: Any, datatype: Datatype, shape: list[int], name: str, pointer: str) -> HostTensor:
    """A tensor of numbers in JSON: floating point flat or as rows, integers flat. Raises Malformed, Unprocessable.

    Numbers are rounded to FP16 or BF16 as the datatype says; to float32 they are at the door, where a number that does
    not fit can still be shown as it came.
    """
    dtype = DTYPES[datatype]
    if "int" in dtype:
        values: Any = json_lists.integers(data, pointer)
        low, high = np.iinfo(STORAGE[dtype]).min, np.iinfo(STORAGE[dtype]).max
        outside = (values < low) | (values > high)
        if outside.any():
            i = int(outside.argmax())
            raise invalid(f"{pointer}/{i}", f"{values[i]} is outside {datatype}, {low} to {high}")
    else:
        values = json_lists.numbers(data, pointer)
    if values.size != prod(shape):
        raise Malformed(f"input {name!r:.80}: shape {shape} takes {prod(shape)} numbers, its data has {values.size}")
    if values.ndim != 1 and list(values.shape) != shape:
        raise invalid(pointer, f"is nested as {list(values.shape)}, the shape is {shape}")
    values = _reshaped(values, shape, name)
    if dtype == "bfloat16":
        return off_device(torch.from_numpy(values).to(torch.bfloat16))
    if dtype == "float32":
        return HostTensor("float64", values)
    with np.errstate(over="ignore"):
        return HostTensor(dtype, values.astype(STORAGE[dtype], copy=False))


def _reshaped(array: np.ndarray[Any, Any], shape: list[int], name: str) -> np.ndarray[Any, Any]:
    try:
        return array.reshape(shape)
    except ValueError:
        # numpy has a limit on shapes, with a zero in them too
        raise Malformed(f"input {name!r:.80}: there is no shape {shape}") from None

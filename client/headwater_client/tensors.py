"""Tensors as they stand on the wire: their bytes, and what numpy and torch make of them.

numpy has no bfloat16. `numbers()` widens it to float32, which is exact and the one thing that can be computed with: its
16 bits handed out as integers would give wrong numbers without a word. `bits()` has them for those who want them, and
`torch()` is a bfloat16 tensor over the same memory.
"""

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

Array = npt.NDArray[Any]

# Each dtype by its name on the wire: its own name, and what numpy keeps its bytes in.
DTYPES: dict[str, tuple[str, np.dtype[Any]]] = {
    "F64": ("float64", np.dtype("<f8")),
    "F32": ("float32", np.dtype("<f4")),
    "F16": ("float16", np.dtype("<f2")),
    "BF16": ("bfloat16", np.dtype("<u2")),
    "I64": ("int64", np.dtype("<i8")),
    "I32": ("int32", np.dtype("<i4")),
    "I16": ("int16", np.dtype("<i2")),
    "I8": ("int8", np.dtype("i1")),
    "U64": ("uint64", np.dtype("<u8")),
    "U32": ("uint32", np.dtype("<u4")),
    "U16": ("uint16", np.dtype("<u2")),
    "U8": ("uint8", np.dtype("u1")),
}
CODES = {name: code for code, (name, _) in DTYPES.items()}


@dataclass(frozen=True, repr=False)
class Tensor:
    """An array of any shape whose dtype is named, for bfloat16's is not numpy's."""

    dtype: str
    stored: Array

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each axis."""
        return self.stored.shape

    @property
    def nbytes(self) -> int:
        """Its size on the wire."""
        return self.stored.nbytes

    def numbers(self) -> Array:
        """The values, without a copy; of bfloat16 as float32, exactly, which is one."""
        if self.dtype != "bfloat16":
            return self.stored
        return (self.stored.astype(np.uint32) << 16).view(np.float32)

    def bits(self) -> Array:
        """What is stored, without a copy: of bfloat16 the 16 bits as uint16."""
        return self.stored

    def torch(self) -> "torch.Tensor":
        """A torch tensor over the same memory, in the same dtype."""
        import torch  # here alone: nobody who does not ask for tensors needs it

        stored = np.require(self.stored, requirements="A")  # it may start at any byte; torch wants words
        if self.dtype == "bfloat16":
            return torch.from_numpy(stored.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(stored)


def tensor_of(field: str, value: Any) -> Tensor:
    """What a caller gives for an array: numpy, torch (bfloat16 too), nested lists. Raises ValueError."""
    torch = sys.modules.get("torch")  # a tensor can only come from a torch that is loaded
    if torch is not None and isinstance(value, torch.Tensor):
        value = value.detach().cpu().contiguous()
        if value.dtype is torch.bfloat16:
            return Tensor("bfloat16", value.view(torch.int16).numpy().view("<u2"))
        value = value.numpy()
    try:
        array = np.asarray(value)
    except ValueError:
        raise ValueError(f"{field}: its rows are not of one length") from None
    if array.dtype.name == "bfloat16":  # as the package ml_dtypes registers it
        return Tensor("bfloat16", np.ascontiguousarray(array).view("<u2"))
    if array.size == 0 and not isinstance(value, np.ndarray):
        array = array.astype(np.int64 if field.endswith("tokens") else np.float32)  # numpy takes [] for float64
    code = CODES.get(array.dtype.name)
    if code is None:
        raise ValueError(f"{field}: an array of dtype {array.dtype} cannot be sent; {', '.join(CODES)} can")
    return Tensor(array.dtype.name, np.ascontiguousarray(array, dtype=DTYPES[code][1]).reshape(array.shape))

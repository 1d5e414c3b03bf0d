"""A tensor in main memory, as it comes from the wire and goes to it: numpy, and bfloat16 which numpy has not."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

# numpy's type for the bytes of each; bfloat16 is carried as its 16 bits
STORAGE: dict[str, np.dtype[Any]] = {
    "float64": np.dtype("<f8"),
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype("<u2"),
    "int64": np.dtype("<i8"),
    "int32": np.dtype("<i4"),
    "int16": np.dtype("<i2"),
    "int8": np.dtype("i1"),
    "uint64": np.dtype("<u8"),
    "uint32": np.dtype("<u4"),
    "uint16": np.dtype("<u2"),
    "uint8": np.dtype("u1"),
}


MAX_RANK = 8
# of an axis: far above every limit, far below where products of a few overflow what numpy counts in
MAX_SIZE = 1 << 40


@dataclass(frozen=True)
class HostTensor:
    """Numbers of one of the dtypes in STORAGE; `data` has that storage type and is C-contiguous."""

    dtype: str
    data: npt.NDArray[Any]

    @property
    def is_integer(self) -> bool:
        """Whether it can be token ids."""
        return "int" in self.dtype

    def numbers(self) -> npt.NDArray[Any]:
        """The values as numpy can compute with them: bfloat16 becomes float32, exactly."""
        if self.dtype != "bfloat16":
            return self.data
        return (self.data.astype(np.uint32) << 16).view(np.float32)


def off_device(tensor: Tensor) -> HostTensor:
    """A torch tensor in main memory; without a copy where it is there already."""
    tensor = tensor.cpu()
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.dtype is torch.bfloat16:
        return HostTensor(dtype, tensor.view(torch.int16).numpy().view(STORAGE[dtype]))
    return HostTensor(dtype, tensor.numpy())

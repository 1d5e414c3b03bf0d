"""The tensors of safetensors files, mapped into memory, each taken once under its checkpoint's own name."""

import math
import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from model.checkpoint.weight_files import WeightFiles
from model.errors import CheckpointError


class CheckpointTensors:
    """What is in a file, or in shards; `take` demands a shape, `finish` refuses what was not taken.

    Tensors are views of the mapped file: they cost memory only when they are converted. `prefix` may stand
    before every name of a family or be absent, file by file. Errors are CheckpointErrors that name the tensor; an
    index that disagrees with its shards is one, before any tensor is loaded.
    """

    def __init__(self, files: WeightFiles, prefix: str) -> None:
        self.path = files.path
        self._names: dict[str, str] = {}
        self._files: dict[str, Any] = {}  # by the same names
        stored: dict[str, str] = {}
        for path in files.files:
            file, names = _opened(path)
            for name in names:
                if files.listed is not None and files.listed.get(name) != path.name:
                    raise CheckpointError(f"{path}: tensor {name!r} is in it, and the index does not say so")
                stored[name] = path.name
                ours = name.removeprefix(prefix)
                if ours in self._names:
                    raise CheckpointError(f"{path}: {self._names[ours]} and {name} are one parameter")
                self._names[ours], self._files[ours] = name, file
        for name, place in (files.listed or {}).items():
            if name not in stored:
                raise CheckpointError(f"{files.path}: tensor {name!r} is not in {place!r}, where it should be")
        self._left = set(self._names)
        self._taken: dict[str, Tensor] = {}
        self._finite: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def take(self, name: str, *shape: int) -> Tensor:
        """The tensor of this name (without prefix), which must be there, of this shape, floating point and finite."""
        if name not in self._names:
            raise CheckpointError(f"{self.path}: tensor {name!r} is missing, so a parameter would stay unassigned")
        tensor = self._tensor(name)
        if tuple(tensor.shape) != shape:
            raise CheckpointError(
                f"{self.path}: tensor {name!r} has shape {list(tensor.shape)}, the config asks for {list(shape)}"
            )
        if not tensor.is_floating_point() or tensor.element_size() < 2:
            raise CheckpointError(f"{self.path}: tensor {name!r} is {tensor.dtype}, which is not supported")
        if name not in self._finite:
            check_finite(tensor, f"{self.path}: tensor {self._names[name]!r}")
            self._finite.add(name)
        self._left.discard(name)
        return tensor

    def _tensor(self, name: str) -> Tensor:
        """The same object each time, so that what is tied stays one."""
        if name not in self._taken:
            try:
                self._taken[name] = self._files[name].get_tensor(self._names[name])
            except SafetensorError as error:
                raise CheckpointError(f"{self.path}: tensor {name!r} cannot be read ({error})") from None
        return self._taken[name]

    def ignore(self, pattern: str) -> None:
        """Pass over what no point comes from: buffers of old files, and heads that work on one pooled row."""
        self._left = {name for name in self._left if not re.fullmatch(pattern, name)}

    def take_copy_of(self, original: str, name: str, *shape: int) -> None:
        """Pass over a second copy of a tied parameter, having made sure that it is one."""
        if name in self and not torch.equal(self.take(name, *shape), self.take(original, *shape)):
            raise CheckpointError(f"{self.path}: the config ties {name!r} to {original!r}, but the two differ")

    def finish(self) -> None:
        """Refuse a tensor that nobody took."""
        if self._left:
            names = sorted(self._left)
            more = f" and {len(names) - 1} more are" if len(names) > 1 else " is"
            raise CheckpointError(f"{self.path}: tensor {self._names[names[0]]!r}{more} not used by this family")


def check_finite(tensor: Tensor, what: str) -> None:
    """Refuse NaN and Inf: they would end in every answer, or worse, in none that shows them."""
    if tensor.numel() and not all(math.isfinite(end) for end in torch.aminmax(tensor)):
        flat = tensor.flatten()
        i = int((~torch.isfinite(flat)).nonzero()[0])
        place = [int(j) for j in torch.unravel_index(torch.tensor(i), tensor.shape)]
        raise CheckpointError(f"{what} is not finite: it has {flat[i].item()} at {place}")


def _opened(path: Path) -> tuple[Any, list[str]]:
    """A safetensors file, of which the header has been read, and its names."""
    try:
        path.open("rb").close()  # of a file that may not be read the library says that there is none
        file = safe_open(path, framework="pt")
        return file, list(file.keys())  # type: ignore[no-untyped-call]
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: not a readable safetensors file ({error})") from None

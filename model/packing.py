"""Where each sequence stands in the packed matrix X."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor

from model.rotary import Rotation

STEP, STEPS_TO_DOUBLE = 16, 16


def filler_for(rows: int) -> int:
    """Rows to add so that matrices come in few sizes: multiples of 16, and 16 of them from a power of 2 to the next.

    oneDNN prepares each product for its number of rows, and keeps half a megabyte for each size that it has met.
    """
    step = max(STEP, (1 << (rows.bit_length() - 1)) // STEPS_TO_DOUBLE)
    return -rows % step


@dataclass(frozen=True)
class Packing:
    """The rows of several sequences, one under the other, in one matrix of T rows.

    `members` are the sequences' numbers in their batch, `lengths` their row counts in the same order; behind them stand
    `filler` rows of zeros that are nobody's. `rotation` turns queries and keys to their positions, in families with
    rotary positions.
    """

    members: tuple[int, ...]
    lengths: tuple[int, ...]
    rotation: Rotation | None = None
    filler: int = 0
    _offsets: list[Tensor] = field(default_factory=list, compare=False, repr=False)

    @property
    def rows(self) -> int:
        """T, the rows of the packed matrix."""
        return sum(self.lengths) + self.filler

    @property
    def longest(self) -> int:
        """The most rows that one sequence has."""
        return max(self.lengths)

    def spans(self) -> Iterator[tuple[int, slice]]:
        """Each member with the rows that are its own."""
        first = 0
        for member, length in zip(self.members, self.lengths, strict=True):
            yield member, slice(first, first + length)
            first += length

    def offsets(self, device: torch.device) -> Tensor:
        """Where each sequence begins, and where the last one ends: int32, one more than there are sequences."""
        if not self._offsets:  # once for all layers
            places = list(accumulate(self.lengths, initial=0))
            self._offsets.append(torch.tensor(places, dtype=torch.int32, device=device))
        return self._offsets[0]

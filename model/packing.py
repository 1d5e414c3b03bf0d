"""Where each sequence stands in the packed matrix X."""

from collections.abc import Iterator
from dataclasses import dataclass

from model.rotary import Rotation


@dataclass(frozen=True)
class Packing:
    """The rows of several sequences, one under the other, in one matrix of T rows.

    `members` are the sequences' numbers in their batch, `lengths` their row counts in the same order;
    `rotation` turns queries and keys to their positions, in families with rotary positions.
    """

    members: tuple[int, ...]
    lengths: tuple[int, ...]
    rotation: Rotation | None = None

    @property
    def rows(self) -> int:
        """T, the rows of the packed matrix."""
        return sum(self.lengths)

    def spans(self) -> Iterator[tuple[int, slice]]:
        """Each member with the rows that are its own."""
        first = 0
        for member, length in zip(self.members, self.lengths, strict=True):
            yield member, slice(first, first + length)
            first += length

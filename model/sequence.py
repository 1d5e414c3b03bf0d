"""One sequence to run: its rows, where they enter the stack, and what is wanted of it."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from model.selection import Wanted

InputKind = Literal["x", "inputs_embeds", "tokens"]


@dataclass(frozen=True, eq=False)
class Sequence:
    """Rows of one caller, checked: a batch must not fail on them.

    `rows` is [N, d] float32 for `x` (the residual stream, as it is) and `inputs_embeds` (positions are added), and
    [N] int64 for `tokens`. Layers `start` to `stop` - 1 are run. `positions` is [N] int64, or None for 0..N-1.
    """

    kind: InputKind
    rows: npt.NDArray[np.float32] | npt.NDArray[np.int64]
    start: int
    stop: int
    wanted: tuple[Wanted, ...]
    positions: npt.NDArray[np.int64] | None = None

    @property
    def length(self) -> int:
        """N."""
        return len(self.rows)

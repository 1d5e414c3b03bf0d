"""What to keep of a batch: an argument that travels with it, so that nothing has to be hooked or remembered.

A `Keep` is made for one batch. Each layer gets the part of it that concerns the layer, shows it every matrix
that can be asked for, and gets the matrix back untouched. What was asked for is cut out on the device, and goes
to the sequence's `Sink` at once, layer by layer.
"""

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from model.config import DTYPES, StackConfig
from model.errors import NonFiniteResult
from model.maps import attention_map, map_parts
from model.mask import Mask
from model.packing import Packing
from model.points import HEAD_KINDS, layer_kinds
from model.selection import Wanted, result_names, select_heads, select_rows
from model.transfer import Transfer, has_bounds


class Sink(Protocol):
    """Where the results of one sequence go. Maps come in parts, as they are made, where it `takes_parts`."""

    takes_parts: bool

    def put_part(self, wanted: Wanted, at: int, part: Tensor) -> None:
        """Take a part of the one tensor of a wanted map; `at` numbers stand before it."""

    def put(self, wanted: Wanted, tensors: tuple[Tensor, ...]) -> None:
        """Take the tensors of one wanted point, in the order of its result specs."""

    def fail(self, error: NonFiniteResult) -> None:
        """Learn that this sequence has no proper answer; the others are not concerned."""


class Keep:
    """All that is wanted of a batch, found by layer and kind."""

    def __init__(self, wanted: list[tuple[Wanted, ...]], sinks: list[Sink], *, later: bool = False) -> None:
        """`wanted` and `sinks` have one entry for each sequence of the batch.

        `later`: results gather in `transfer`, on the device, but for those of sinks that take parts.
        """
        self.sinks = sinks
        self.transfer = Transfer(self._take) if later else None
        self._plan: dict[tuple[int | None, str], list[tuple[int, Wanted]]] = {}
        for member, of_one in enumerate(wanted):
            for want in of_one:
                key = (want.point.layer, want.point.kind)
                self._plan.setdefault(key, []).append((member, want))

    def at(self, layer: int | None, packing: Packing) -> "LayerKeep":
        """The part for one layer (None: what comes after the last), whose matrices are packed like this."""
        return LayerKeep(self, layer, packing)

    def of(self, layer: int | None, kind: str) -> list[tuple[int, Wanted]]:
        """Who wants this kind of this layer, and what of it, in the order in which they asked."""
        return self._plan.get((layer, kind), [])

    def wants_within(self, layer: int) -> bool:
        """Whether anything of a layer is wanted but what enters it and what leaves it."""
        return any(of == layer and kind not in ("resid_pre", "resid_post") for of, kind in self._plan)

    def wants_between(self, layer: int) -> bool:
        """Whether what leaves a layer is wanted, or what enters the next."""
        return bool(self.of(layer, "resid_post") or self.of(layer + 1, "resid_pre"))

    def hand_over(self, member: int, wanted: Wanted, tensors: tuple[Tensor, ...]) -> None:
        """Give results to the member's sink, or fail it where a value is not finite; or let them gather."""
        if self.transfer is not None and not self.sinks[member].takes_parts:
            self.transfer.add(member, wanted, tensors)
        elif self._check(member, wanted, *tensors):
            self.sinks[member].put(wanted, tensors)

    def hand_over_parts(self, member: int, wanted: Wanted, parts: Iterable[Tensor]) -> None:
        """Give a result to the member's sink part by part, or fail it at the first value that is not finite."""
        at = 0
        for part in parts:
            if not self._check(member, wanted, part):
                return
            self.sinks[member].put_part(wanted, at, part.contiguous())
            at += part.numel()

    def _take(
        self, member: int, wanted: Wanted, tensors: tuple[Tensor, ...], bounds: list[tuple[float, float]]
    ) -> None:
        """Take what the transfer has brought."""
        if self._check_bounds(member, wanted, bounds):
            self.sinks[member].put(wanted, tensors)

    def _check(self, member: int, wanted: Wanted, *tensors: Tensor) -> bool:
        bounds = [(low.item(), high.item()) for low, high in (x.aminmax() for x in tensors if has_bounds(x))]
        return self._check_bounds(member, wanted, bounds)

    def _check_bounds(self, member: int, wanted: Wanted, bounds: list[tuple[float, float]]) -> bool:
        """Whether all values are finite; -inf is proper in scores, where it stands for a masked entry."""
        least = -math.inf if wanted.point.kind == "attn_scores" else -sys.float_info.max
        proper = all(least <= low and high < math.inf for low, high in bounds)  # NaN compares false
        if not proper:
            self.sinks[member].fail(NonFiniteResult(wanted.point.name, wanted.dtype))
        return proper


class LayerKeep:
    """What is wanted of one layer."""

    def __init__(self, keep: Keep, layer: int | None, packing: Packing) -> None:
        self._keep, self._layer = keep, layer
        self._spans = dict(packing.spans())

    def rows(self, kind: str, x_TD: Tensor) -> Tensor:
        """Show a matrix of rows; gives it back."""
        self._cut(kind, x_TD, select_rows)
        return x_TD

    def heads(self, kind: str, x_TAK: Tensor) -> None:
        """Show heads side by side."""
        self._cut(kind, x_TAK, select_heads)

    def maps(self, q_TAK: Tensor, k_TBK: Tensor, scale: float, mask: Mask) -> None:
        """Show queries and keys as they enter QK^T; maps are computed for those alone who want one."""
        for kind in ("attn_scores", "attn_probs"):
            for member, wanted, span in self._wanted(kind):
                of_sequence = q_TAK[span], k_TBK[span], scale, mask, wanted
                if self._keep.sinks[member].takes_parts and wanted.top_k is None:
                    self._keep.hand_over_parts(member, wanted, (part for (part,) in map_parts(*of_sequence)))
                else:
                    self._keep.hand_over(member, wanted, attention_map(*of_sequence))

    def _wanted(self, kind: str) -> Iterator[tuple[int, Wanted, slice]]:
        for member, wanted in self._keep.of(self._layer, kind):
            yield member, wanted, self._spans[member]

    def _cut(self, kind: str, x: Tensor, select: Callable[[Tensor, Wanted], Tensor]) -> None:
        for member, wanted, span in self._wanted(kind):
            part = select(x[span], wanted).to(DTYPES[wanted.dtype])
            # A view of a part would hold the memory of all of the batch's rows as long as the answer lives.
            if part.numel() != x.numel() and part.untyped_storage().data_ptr() == x.untyped_storage().data_ptr():
                part = part.clone(memory_format=torch.contiguous_format)
            self._keep.hand_over(member, wanted, (part.contiguous(),))


def names_as_made(wanted: Sequence[tuple[Wanted, ...]], config: StackConfig) -> list[str]:
    """The names of all results of sequences that run in one batch, in the order in which they are handed over."""
    kinds = {kind: i for i, kind in enumerate((*layer_kinds(config), *HEAD_KINDS))}
    made: list[tuple[int, int, int, int, tuple[str, ...]]] = []
    for member, of_one in enumerate(wanted):
        for i, want in enumerate(of_one):
            layer = config.n_layers if want.point.layer is None else want.point.layer
            # the first logits of every sequence are made together, then the second, ...
            turn = (i, member) if want.point.kind == "logits" else (member, i)
            made.append((layer, kinds[want.point.kind], *turn, result_names(want)))
    return [name for *_, names in sorted(made) for name in names]

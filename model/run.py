"""One pass of a batch of sequences through the stack, in one packed matrix.

A sequence joins the matrix at its first layer and leaves it at its deepest; no layer is run for nobody.

Names end in their dimensions: T rows of the packed matrix, N of one sequence, D model width, V vocabulary.
"""

from collections.abc import Callable
from collections.abc import Sequence as ListOf
from itertools import zip_longest

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from model.errors import NobodyWaits
from model.keep import Keep, Sink
from model.packing import Packing
from model.selection import Wanted, largest, result_specs, take
from model.sequence import Sequence
from model.stack import Stack

UNEMBEDDING_BYTES = 128 << 20  # of the logits that are computed at a time


def always() -> bool:
    """For runs that are never given up."""
    return True


def run(stack: Stack, sequences: ListOf[Sequence], sinks: list[Sink], is_wanted: Callable[[], bool] = always) -> None:
    """Run the sequences together; what each wants goes to its sink (same order).

    `is_wanted` is asked before each layer; when it says no the run ends with NobodyWaits.
    """
    finish = begin(stack, sequences, sinks, is_wanted)
    if finish is not None:
        finish()


@torch.inference_mode()
def begin(
    stack: Stack,
    sequences: ListOf[Sequence],
    sinks: list[Sink],
    is_wanted: Callable[[], bool] = always,
    *,
    later: bool | None = None,
) -> Callable[[], None] | None:
    """Run the sequences, and leave what they want where it was computed, on its way to main memory.

    What is returned is to be called, before the sinks are looked at: it waits for the device, and fills them. Another
    run may begin before. None: all is there already, as always where the device is the CPU, unless `later` is asked
    for; then each result went to its sink as soon as it was made.
    """
    later = stack.device.type != "cpu" if later is None else later
    keep = Keep([sequence.wanted for sequence in sequences], sinks, later=later)
    positions = [_positions(stack, sequence) for sequence in sequences]
    entering = _enter(stack, sequences, positions)
    n_layers = stack.config.n_layers

    members: tuple[int, ...] = ()
    x_TD = torch.empty(0)
    packing = Packing((), ())
    for depth in range(n_layers + 1):
        if not is_wanted():
            raise NobodyWaits
        joining = [i for i, sequence in enumerate(sequences) if sequence.start == depth]
        if joining:
            members, x_TD = _join(packing, x_TD, joining, entering)
            packing, x_TD = _pack(stack, members, sequences, positions, x_TD)
        if members and depth < n_layers:
            keep.at(depth, packing).rows("resid_pre", x_TD)
        staying = tuple(i for i in members if sequences[i].stop > depth or depth == n_layers)
        if staying != members:
            x_TD = _rows_of(x_TD, packing, set(staying))
            members = staying
            packing, x_TD = _pack(stack, members, sequences, positions, x_TD)
        if members and depth < n_layers:
            x_TD = _layer(stack, depth, x_TD, packing, keep)
    if members:
        _finish(stack, x_TD, packing, keep)
    if keep.transfer is None:
        return None
    keep.transfer.begin()
    return keep.transfer.finish


def _layer(stack: Stack, depth: int, x_TD: Tensor, packing: Packing, keep: Keep) -> Tensor:
    """What the layer makes of the rows; by a recording where there is one and nothing is wanted that it hides."""
    recording = None
    if stack.replays is not None and not keep.wants_within(depth):
        recording = stack.replays.of(packing)
    if recording is None:
        return stack.layers[depth](x_TD, packing, keep.at(depth, packing))  # type: ignore[no-any-return]
    x_TD = recording.layer(depth, x_TD, packing)
    if keep.wants_between(depth) or depth + 1 == stack.config.n_layers:
        x_TD = x_TD.clone()  # the next batch is written where it stands
    return keep.at(depth, packing).rows("resid_post", x_TD)


def _enter(stack: Stack, sequences: ListOf[Sequence], positions: list[Tensor]) -> dict[int, Tensor]:
    """What each sequence enters the stack with, [N, d]."""
    entered: dict[int, Tensor] = {}
    for i, sequence in enumerate(sequences):
        rows = torch.from_numpy(np.ascontiguousarray(sequence.rows)).to(stack.device)
        if sequence.kind == "x":
            entered[i] = rows.to(stack.dtype)
            continue
        embedded_ND = stack.embed_tokens(rows) if sequence.kind == "tokens" else rows.to(stack.dtype)
        entered[i] = stack.enter(embedded_ND, positions[i])
    return entered


def _positions(stack: Stack, sequence: Sequence) -> Tensor:
    if sequence.positions is None:
        return torch.arange(sequence.length, device=stack.device)
    return torch.from_numpy(sequence.positions).to(stack.device)


def _join(
    packing: Packing, x_TD: Tensor, joining: list[int], entering: dict[int, Tensor]
) -> tuple[tuple[int, ...], Tensor]:
    """The matrix with the rows of those who join under it; they are let go of elsewhere."""
    rows = [entering.pop(i) for i in joining]
    if packing.members:
        rows.insert(0, x_TD[: sum(packing.lengths)])
    return (*packing.members, *joining), rows[0] if len(rows) == 1 else torch.cat(rows)


def _rows_of(x_TD: Tensor, packing: Packing, staying: set[int]) -> Tensor:
    """The matrix without the rows of those who leave."""
    rows = [x_TD[span] for member, span in packing.spans() if member in staying]
    return torch.cat(rows) if rows else x_TD[:0]


def _pack(
    stack: Stack, members: tuple[int, ...], sequences: ListOf[Sequence], positions: list[Tensor], x_TD: Tensor
) -> tuple[Packing, Tensor]:
    """The packing of the members' rows, and the matrix of them with its filler."""
    lengths = tuple(sequences[i].length for i in members)
    if not members:
        return Packing((), ()), x_TD
    filler = stack.filler(lengths)
    positions_T = F.pad(torch.cat([positions[i] for i in members]), (0, filler))
    packing = Packing(members, lengths, stack.rotation(positions_T), filler)
    return packing, F.pad(x_TD, (0, 0, 0, filler)) if filler else x_TD


def _finish(stack: Stack, x_TD: Tensor, packing: Packing, keep: Keep) -> None:
    """The final norm and the unembedding, for those who want them."""
    if not keep.of(None, "final_norm") and not keep.of(None, "logits"):
        return
    normed_TD = keep.at(None, packing).rows("final_norm", stack.final_norm(x_TD))
    by_member: dict[int, list[Wanted]] = {}
    for member, wanted in keep.of(None, "logits"):
        by_member.setdefault(member, []).append(wanted)
    spans = dict(packing.spans())
    # The first logits of every sequence are computed together, then the second, ...: so many sequences share a
    # product, and yet what else a sequence asks for never changes the shape of one.
    for together in zip_longest(*([(i, w) for w in of_one] for i, of_one in by_member.items())):
        _unembed(stack, normed_TD, spans, [pair for pair in together if pair is not None], keep)


def _unembed(
    stack: Stack,
    normed_TD: Tensor,
    spans: dict[int, slice],
    asked: list[tuple[int, Wanted]],
    keep: Keep,
) -> None:
    """Logits of the chosen rows alone, a bounded number at a time."""
    outputs: list[tuple[Tensor, ...]] = []
    rows_of: list[Tensor] = []
    for member, wanted in asked:
        x_ND = normed_TD[spans[member]]
        rows_of.append(take(x_ND, wanted.rows, 0))
        outputs.append(
            tuple(
                normed_TD.new_empty(spec.shape, dtype=getattr(torch, spec.dtype))
                for spec in result_specs(wanted, stack.config, len(x_ND))
            )
        )
    x_RD = rows_of[0] if len(rows_of) == 1 else torch.cat(rows_of)
    size = max(1, UNEMBEDDING_BYTES // (4 * stack.config.vocab_size))
    for first in range(0, len(x_RD), size):
        logits_SV = stack.unembed(x_RD[first : first + size])
        base = -first
        for (_, wanted), output, rows in zip(asked, outputs, rows_of, strict=True):
            low, high = max(0, base), min(len(logits_SV), base + len(rows))
            if low < high:
                part_SV = logits_SV[low:high]
                made = (part_SV,) if wanted.top_k is None else largest(part_SV, wanted.top_k)
                for whole, block in zip(output, made, strict=True):
                    whole[low - base : high - base] = block
            base += len(rows)
    for (member, wanted), output in zip(asked, outputs, strict=True):
        keep.hand_over(member, wanted, output)

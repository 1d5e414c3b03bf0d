"""Attention maps, exact and in blocks of query rows: no memory beyond what was asked for, whatever N is.

scores = mask(QK^T * scale), probs = softmax(scores) (Jurafsky & Martin, eq. 7.33), both in float32.

Names end in their dimensions: N rows of the sequence, A query heads, B key/value heads, K head width, H chosen
heads, R chosen query rows, C columns; G heads and S rows of one block.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from model.config import DTYPES
from model.mask import Mask
from model.selection import Index, Wanted, largest, length_of, take

BLOCK_BYTES = 32 << 20  # of one block of float32 scores
_INF = float("inf")


def attention_map(q_NAK: Tensor, k_NBK: Tensor, scale: float, mask: Mask, wanted: Wanted) -> tuple[Tensor, ...]:
    """The chosen heads, rows and columns of one sequence's map: [H, R, C], or values and indices of its top k.

    Masked entries are exactly 0 in `attn_probs` and -inf in `attn_scores`; in a top k their index is -1.
    """
    n, n_heads = q_NAK.shape[:2]
    heads = n_heads if wanted.heads is None else len(wanted.heads)
    columns = length_of(wanted.keys, n)
    shape = heads, length_of(wanted.rows, n), columns if wanted.top_k is None else min(wanted.top_k, columns)
    dtypes = (DTYPES[wanted.dtype],) if wanted.top_k is None else (DTYPES[wanted.dtype], torch.int32)
    whole: tuple[Tensor, ...] = ()
    at = 0
    for parts in map_parts(q_NAK, k_NBK, scale, mask, wanted):
        if not whole:
            if parts[0].shape == shape:
                return parts
            whole = tuple(q_NAK.new_empty(shape, dtype=dtype) for dtype in dtypes)
        for tensor, part in zip(whole, parts, strict=True):
            tensor.view(-1)[at : at + part.numel()] = part.reshape(-1)
        at += parts[0].numel()
    return whole


def map_parts(q_NAK: Tensor, k_NBK: Tensor, scale: float, mask: Mask, wanted: Wanted) -> Iterator[tuple[Tensor, ...]]:
    """The same in parts that follow each other in memory: some whole heads [G, R, C], or some rows of one [1, S, C]."""
    n, n_heads = q_NAK.shape[:2]
    probs = wanted.point.kind == "attn_probs"
    heads = tuple(range(n_heads)) if wanted.heads is None else wanted.heads
    kv_heads = tuple(h * k_NBK.shape[1] // n_heads for h in heads)
    rows_R = take(torch.arange(n, device=q_NAK.device), wanted.rows, 0)
    # as float32: half precision would be too coarse for scores, and could overflow
    q_HRK = take(take(q_NAK, wanted.rows, 0), heads, 1).transpose(0, 1).float()
    k_HKN = take(k_NBK, kv_heads, 1).permute(1, 2, 0).float()
    # Scores need the chosen columns alone; the softmax needs all of a row.
    positions_C = torch.arange(n, device=q_NAK.device)
    if not probs:
        k_HKN, positions_C = take(k_HKN, wanted.keys, 2), take(positions_C, wanted.keys, 0)
    for group, block in _blocks(len(heads), len(rows_R), len(positions_C)):
        block_GSC = torch.matmul(q_HRK[group, block], k_HKN[group]).mul_(scale)
        # up to its first row's own key every row of a block sees everything: as a rule that is nearly all of it
        seen = 0
        if wanted.top_k is None and mask.window is None and (probs or wanted.keys is None):
            seen = _first_row(wanted.rows, block) + 1
        masked_SC = mask.hidden(rows_R[block], positions_C[seen:])
        if masked_SC is not None:
            block_GSC[..., seen:].masked_fill_(masked_SC, -_INF)
        if probs:
            block_GSC = take(torch.softmax(block_GSC, dim=-1), wanted.keys, 2)
        if wanted.top_k is None:
            yield (_narrowed(block_GSC, wanted.dtype),)
        else:
            values, indices = _largest_unmasked(block_GSC, masked_SC, wanted.top_k, wanted)
            yield _narrowed(values, wanted.dtype), indices


def _blocks(heads: int, rows: int, columns: int) -> Iterator[tuple[slice, slice]]:
    """Heads and rows of each part, in the order of memory."""
    fit = max(1, BLOCK_BYTES // (4 * columns))
    if rows <= fit:
        group = fit // rows
        for head in range(0, heads, group):
            yield slice(head, head + group), slice(0, rows)
    else:
        for head in range(heads):
            for row in range(0, rows, fit):
                yield slice(head, head + 1), slice(row, row + fit)


def _first_row(rows: Index | None, block: slice) -> int:
    """The first, in the sequence, of the chosen rows that stand in this block."""
    if isinstance(rows, tuple):
        return min(rows[block])
    first: int = block.start
    return first if rows is None else first + rows.start


def _largest_unmasked(block_GSC: Tensor, masked_SC: Tensor | None, k: int, wanted: Wanted) -> tuple[Tensor, Tensor]:
    """The top k, in which a masked entry comes after every other and has index -1."""
    if wanted.point.kind == "attn_probs" and masked_SC is not None:
        # below the smallest probability, so that one that underflowed to 0 still comes before
        block_GSC = block_GSC.masked_fill(take(masked_SC, wanted.keys, 1), -1.0)
        values, indices = largest(block_GSC, k)
        return values.clamp(min=0.0), indices.masked_fill(values < 0, -1)
    values, indices = largest(block_GSC, k)
    return values, indices.masked_fill(values == -_INF, -1)


def _narrowed(block: Tensor, dtype: str) -> Tensor:
    """In the dtype asked for, where a score too low for it becomes NaN: -inf would pass for a masked one."""
    if dtype == "float32":
        return block
    narrow = block.to(DTYPES[dtype])
    return narrow.masked_fill_((narrow == -_INF) & (block != -_INF), torch.nan)

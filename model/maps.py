"""Attention maps, exact and in blocks of query rows: no memory beyond what was asked for, whatever N is.

scores = mask(QK^T * scale), probs = softmax(scores) (Jurafsky & Martin, eq. 7.33), both in float32.

Names end in their dimensions: N rows of the sequence, A query heads, B key/value heads, K head width, H chosen
heads, R chosen query rows, S rows of one block, C columns.
"""

import torch
from torch import Tensor

from model.config import DTYPES
from model.mask import Mask
from model.selection import Wanted, largest, length_of, take

BLOCK_BYTES = 32 << 20  # of one block of float32 scores
_INF = float("inf")


def attention_map(q_NAK: Tensor, k_NBK: Tensor, scale: float, mask: Mask, wanted: Wanted) -> tuple[Tensor, ...]:
    """The chosen heads, rows and columns of one sequence's map: [H, R, C], or values and indices of its top k.

    Masked entries are exactly 0 in `attn_probs` and -inf in `attn_scores`; in a top k their index is -1.
    """
    n, n_heads = q_NAK.shape[:2]
    probs = wanted.point.kind == "attn_probs"
    heads = tuple(range(n_heads)) if wanted.heads is None else wanted.heads
    kv_heads = tuple(h * k_NBK.shape[1] // n_heads for h in heads)
    rows_R = take(torch.arange(n, device=q_NAK.device), wanted.rows, 0)
    # as float32: half precision would be too coarse for scores, and could overflow
    q_HRK = take(take(q_NAK, wanted.rows, 0), heads, 1).transpose(0, 1).float()
    k_HKN = take(k_NBK, kv_heads, 1).permute(1, 2, 0).float()

    columns = length_of(wanted.keys, n)
    shape = (len(heads), len(rows_R), columns if wanted.top_k is None else min(wanted.top_k, columns))
    values_HRC = q_NAK.new_empty(shape, dtype=DTYPES[wanted.dtype])
    indices_HRC = None if wanted.top_k is None else q_NAK.new_empty(shape, dtype=torch.int32)

    # Scores need the chosen columns alone; the softmax needs all of a row.
    positions_C = torch.arange(n, device=q_NAK.device)
    if not probs:
        k_HKN, positions_C = take(k_HKN, wanted.keys, 2), take(positions_C, wanted.keys, 0)
    size = max(1, BLOCK_BYTES // (4 * len(heads) * max(1, len(positions_C))))
    for first in range(0, len(rows_R), size):
        block = slice(first, first + size)
        block_HSC = torch.matmul(q_HRK[:, block], k_HKN).mul_(scale)
        masked_SC = mask.hidden(rows_R[block], positions_C)
        if masked_SC is not None:
            block_HSC.masked_fill_(masked_SC, -_INF)
        if probs:
            block_HSC = torch.softmax(block_HSC, dim=-1)
            block_HSC = take(block_HSC, wanted.keys, 2)
        if indices_HRC is None:
            values_HRC[:, block] = _narrowed(block_HSC, wanted.dtype)
        else:
            values, indices = _largest_unmasked(block_HSC, masked_SC, shape[-1], wanted)
            values_HRC[:, block] = _narrowed(values, wanted.dtype)
            indices_HRC[:, block] = indices
    return (values_HRC,) if indices_HRC is None else (values_HRC, indices_HRC)


def _largest_unmasked(block_HSC: Tensor, masked_SC: Tensor | None, k: int, wanted: Wanted) -> tuple[Tensor, Tensor]:
    """The top k, in which a masked entry comes after every other and has index -1."""
    if wanted.point.kind == "attn_probs" and masked_SC is not None:
        # below the smallest probability, so that one that underflowed to 0 still comes before
        block_HSC = block_HSC.masked_fill(take(masked_SC, wanted.keys, 1), -1.0)
        values, indices = largest(block_HSC, k)
        return values.clamp(min=0.0), indices.masked_fill(values < 0, -1)
    values, indices = largest(block_HSC, k)
    return values, indices.masked_fill(values == -_INF, -1)


def _narrowed(block: Tensor, dtype: str) -> Tensor:
    """In the dtype asked for, where a score too low for it becomes NaN: -inf would pass for a masked one."""
    if dtype == "float32":
        return block
    narrow = block.to(DTYPES[dtype])
    return narrow.masked_fill_((narrow == -_INF) & (block != -_INF), torch.nan)

"""In place of a GPU's attention kernels what their documentation says of them, in float64."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

import model.together
from model.together import is_right


def each_by_itself(q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, scale: float, seen: Any) -> Tensor:
    """softmax(QK^T * scale) V of the rows between two offsets; `seen` says of a distance i - j whether j is seen."""
    assert offsets.dtype == torch.int32
    assert all(x.is_contiguous() and x.shape[-1] % 8 == 0 for x in (q, k, v))
    assert q.shape == k.shape == v.shape
    z = torch.full_like(q, torch.nan)
    for first, last in pairwise(offsets.tolist()):
        n = torch.arange(last - first)
        scores = torch.einsum("iak,jak->aij", q[first:last].double(), k[first:last].double()) * scale
        scores = scores.masked_fill(~seen(n[:, None] - n), -torch.inf)
        z[first:last] = torch.einsum("aij,jak->iak", scores.softmax(-1), v[first:last].double()).to(z.dtype)
    return z


def flash(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, max_q: int, max_k: int, *,
    scale: float, window_size: tuple[int, int],
) -> Tensor:  # fmt: skip
    """torch.nn.attention.varlen.varlen_attn: (left, right) keys around a row's own are seen, -1 for all of them."""
    assert q.dtype in (torch.float16, torch.bfloat16)
    assert max_q == max_k >= int(cu_q.diff().max())
    left, right = (10**9 if size < 0 else size for size in window_size)
    return each_by_itself(q, k, v, cu_q, scale, lambda distance: (distance <= left) & (distance >= -right))


def efficient(
    q: Tensor, k: Tensor, v: Tensor, bias: None, cu_q: Tensor, cu_k: Tensor, max_q: int, max_k: int,
    dropout: float, mask_type: int, logsumexp: bool, *, scale: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    """torch's memory-efficient forward: one batch of all rows; mask type 1 is causal, 0 is none."""
    assert (bias, dropout, logsumexp) == (None, 0.0, False)
    assert max_q == max_k >= int(cu_q.diff().max())
    seen = (lambda distance: distance >= 0) if mask_type else (lambda distance: distance == distance)
    return each_by_itself(q[0], k[0], v[0], cu_q, scale, seen)[None], torch.empty(0)


def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let them stand in for the kernels."""
    monkeypatch.setattr(model.together, "flash_kernel", lambda: flash)
    monkeypatch.setattr(torch.ops.aten, "_efficient_attention_forward", efficient)
    is_right.cache_clear()

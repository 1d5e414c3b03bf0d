"""Attention of all sequences of a packed matrix in one kernel call, for devices on which calls cost more than sums.

Each kernel gets the places where sequences begin, and works on each by itself: nothing of one is an operand of another,
so that not even a NaN crosses; there is no mask over the whole matrix, and no padding.

Names end in their dimensions: T rows of the packed matrix, A query heads, B key/value heads, K width of a head,
N rows of one sequence, S sequences.
"""

import logging
from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from model.mask import Mask
from model.packing import Packing

log = logging.getLogger("headwater.attention")

WIDEST_HEAD = 256  # of the flash kernel
HALVES = (torch.float16, torch.bfloat16)  # that it computes in
FROM_TOP_LEFT = 1  # the memory-efficient kernel's name for a causal mask

Kernel = Callable[[Tensor, Tensor, Tensor, Packing, float, Mask], Tensor]


def attend_together(
    q_TAK: Tensor, k_TBK: Tensor, v_TBK: Tensor, packing: Packing, scale: float, mask: Mask
) -> Tensor | None:
    """softmax(mask(QK^T * scale)) V of each sequence by itself, [T, A, K]; None where no kernel can do that."""
    kernel: Kernel = by_flash
    if q_TAK.dtype not in HALVES or _padded(q_TAK.shape[-1]) > WIDEST_HEAD:
        kernel = by_efficient
        if mask.hides_within(packing.longest):
            return None  # it knows no window
    if not is_right(kernel, q_TAK.device, q_TAK.dtype, q_TAK.shape[-1], mask):
        return None
    return kernel(q_TAK, k_TBK, v_TBK, packing, scale, mask)


@cache
def is_right(kernel: Kernel, device: torch.device, dtype: torch.dtype, width: int, mask: Mask) -> bool:
    """Whether a kernel is there and gives here what the formula says, of two sequences of which one is NaN.

    It is tried once: what it is depends on the card, and on the version of torch, in which it is no settled interface.
    """
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(24, heads, width, generator=generator).to(device, dtype) for heads in (4, 2, 2))
    for x in (q, k, v):
        x[17:] = torch.nan
    packing, mask = Packing((0, 1), (17, 7)), mask if mask.window is None else Mask(mask.causal, 5)
    try:
        found_NAK = kernel(q, k, v, packing, 0.3, mask)[:17].double().cpu()
    except Exception as error:
        log.warning("%s cannot be used here: %.200s", kernel.__name__, error)
        return False
    q, k, v = (x[:17].double().cpu().transpose(0, 1) for x in (q, k, v))
    numbers = torch.arange(17)
    scores_ANN = q @ k.repeat_interleave(2, 0).transpose(1, 2) * 0.3
    if (hidden_NN := mask.hidden(numbers, numbers)) is not None:
        scores_ANN = scores_ANN.masked_fill(hidden_NN, -torch.inf)
    exact_NAK = (scores_ANN.softmax(-1) @ v.repeat_interleave(2, 0)).transpose(0, 1)
    worst = float((found_NAK - exact_NAK).abs().max())
    if not worst < 8 * max(torch.finfo(dtype).eps, 2e-4):  # NaN compares false; float32 may be computed in TF32
        log.warning("%s is not used: it is wrong by %.1e here", kernel.__name__, worst)
        return False
    return True


def flash_kernel() -> Callable[..., object]:
    """torch's kernel for sequences of any length. Raises ImportError before torch 2.10.

    Imported where it is first needed: it brings torch's compiler along, a second of every start.
    """
    from torch.nn.attention.varlen import varlen_attn

    return varlen_attn


def by_flash(q_TAK: Tensor, k_TBK: Tensor, v_TBK: Tensor, packing: Packing, scale: float, mask: Mask) -> Tensor:
    """By the flash kernel for sequences of any length, in half precision; it knows windows."""
    q_TAK, k_TAK, v_TAK, width = _as_wanted(q_TAK, k_TBK, v_TBK)
    offsets_S, longest = packing.offsets(q_TAK.device), packing.longest
    before = -1 if mask.window is None else mask.window - 1  # keys before a row's own; -1: all of them
    window = (before, 0) if mask.causal else (-1, -1)
    z_TAK = flash_kernel()(q_TAK, k_TAK, v_TAK, offsets_S, offsets_S, longest, longest, scale=scale, window_size=window)
    assert isinstance(z_TAK, Tensor)  # a second one comes where it is asked for
    return z_TAK[..., :width]


def by_efficient(q_TAK: Tensor, k_TBK: Tensor, v_TBK: Tensor, packing: Packing, scale: float, mask: Mask) -> Tensor:
    """By the memory-efficient kernel, in any dtype: what torch itself takes for nested tensors.

    Nested tensors themselves cannot be made in inference mode.
    """
    q_TAK, k_TAK, v_TAK, width = _as_wanted(q_TAK, k_TBK, v_TBK)
    offsets_S, longest = packing.offsets(q_TAK.device), packing.longest
    z_1TAK: Tensor
    z_1TAK, *_ = torch.ops.aten._efficient_attention_forward(
        q_TAK[None],
        k_TAK[None],
        v_TAK[None],
        None,
        offsets_S,
        offsets_S,
        longest,
        longest,
        0.0,
        FROM_TOP_LEFT if mask.causal else 0,
        False,
        scale=scale,
    )
    return z_1TAK[0][..., :width]


def _as_wanted(q_TAK: Tensor, k_TBK: Tensor, v_TBK: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
    """Queries, keys and values with a head each, of a width that kernels take, one row behind the other; the width."""
    width = q_TAK.shape[-1]
    missing = _padded(width) - width
    if missing:
        q_TAK, k_TBK, v_TBK = (F.pad(x, (0, missing)) for x in (q_TAK, k_TBK, v_TBK))
    shared = q_TAK.shape[1] // k_TBK.shape[1]
    if shared > 1:  # not every version shares key/value heads by itself
        k_TBK, v_TBK = (x.repeat_interleave(shared, dim=1) for x in (k_TBK, v_TBK))
    return q_TAK.contiguous(), k_TBK.contiguous(), v_TBK.contiguous(), width


def _padded(width: int) -> int:
    """The next multiple of 8, which the kernels want."""
    return width + -width % 8

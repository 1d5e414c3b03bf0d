"""Multi-head attention over a packed matrix: the only part of a layer that knows where a sequence begins.

Names end in their dimensions: T rows of the packed matrix, D model width, A query heads, B key/value heads,
K width of a query or key head, V width of a value head, N rows of one sequence, R query rows and C keys of a block.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.config import StackConfig
from model.keep import LayerKeep
from model.linear import Linear
from model.mask import Mask
from model.packing import Packing

WINDOW_ROWS = 256  # query rows of one block, where a window hides keys


class Attention(nn.Module):
    """MHA(X) = concat(head_1 .. head_A) W_O, head = softmax(mask(QK^T * scale)) V; [T, d] in and out.

    Jurafsky & Martin, eq. 7.33-7.37, with scale = 1 / sqrt(d_k) unless the family says otherwise. Query head h
    uses key/value head h // (A / B).
    """

    def __init__(self, config: StackConfig, index: int) -> None:
        super().__init__()
        self.d_k, self.d_v = config.d_k, config.d_v
        self.scale, self.mask = config.attention_scales[index], config.mask(index)
        self.q = Linear(config.d_model, config.n_heads * config.d_k, bias=config.qkv_bias)
        self.k = Linear(config.d_model, config.n_kv_heads * config.d_k, bias=config.qkv_bias)
        self.v = Linear(config.d_model, config.n_kv_heads * config.d_v, bias=config.qkv_bias)
        self.o = Linear(config.n_heads * config.d_v, config.d_model, bias=config.attention_out_bias)

    def forward(self, x_TD: Tensor, packing: Packing, keep: LayerKeep) -> Tensor:
        q_TAK = self.q(x_TD).unflatten(-1, (-1, self.d_k))
        k_TBK = self.k(x_TD).unflatten(-1, (-1, self.d_k))
        v_TBV = self.v(x_TD).unflatten(-1, (-1, self.d_v))
        if packing.rotation is not None:
            q_TAK, k_TBK = packing.rotation(q_TAK), packing.rotation(k_TBK)
        keep.heads("q", q_TAK)
        keep.heads("k", k_TBK)
        keep.heads("v", v_TBV)
        keep.maps(q_TAK, k_TBK, self.scale, self.mask)
        z_TAV = attend(q_TAK, k_TBK, v_TBV, packing, self.scale, self.mask)
        keep.heads("z", z_TAV)
        return self.o(z_TAV.flatten(-2))  # type: ignore[no-any-return]


def attend(q_TAK: Tensor, k_TBK: Tensor, v_TBV: Tensor, packing: Packing, scale: float, mask: Mask) -> Tensor:
    """softmax(mask(QK^T * scale)) V of each sequence by itself, [T, A, V], by a fused kernel.

    One kernel call a sequence: no row of another sequence is ever an operand, so that not even a NaN crosses.
    """
    heads_NAV = [_attend_one(q_TAK[span], k_TBK[span], v_TBV[span], scale, mask) for _, span in packing.spans()]
    return heads_NAV[0] if len(heads_NAV) == 1 else torch.cat(heads_NAV)


def _attend_one(q_NAK: Tensor, k_NBK: Tensor, v_NBV: Tensor, scale: float, mask: Mask) -> Tensor:
    d_k, d_v = q_NAK.shape[-1], v_NBV.shape[-1]
    # The fused kernels want one width for all three, and fall back to an N x N matrix otherwise. Columns of
    # zeros change neither QK^T nor the columns of V that are kept.
    if d_k < d_v:
        q_NAK, k_NBK = F.pad(q_NAK, (0, d_v - d_k)), F.pad(k_NBK, (0, d_v - d_k))
    elif d_v < d_k:
        v_NBV = F.pad(v_NBV, (0, d_k - d_v))
    if mask.hides_within(len(q_NAK)):
        return _attend_in_window(q_NAK, k_NBK, v_NBV, scale, mask)[..., :d_v]
    return _kernel(q_NAK, k_NBK, v_NBV, scale, causal=mask.causal)[..., :d_v]


def _attend_in_window(q_NAK: Tensor, k_NBK: Tensor, v_NBV: Tensor, scale: float, mask: Mask) -> Tensor:
    """Blocks of query rows, each with the keys that its rows can see: work and memory grow with N, not with N x N."""
    n = len(q_NAK)
    numbers_N = torch.arange(n, device=q_NAK.device)
    z_NAV = v_NBV.new_empty(n, q_NAK.shape[1], v_NBV.shape[2])
    for first in range(0, n, WINDOW_ROWS):
        rows = slice(first, min(n, first + WINDOW_ROWS))
        keys = mask.keys_of(rows.start, rows.stop)
        hidden_RC = mask.hidden(numbers_N[rows], numbers_N[keys])
        assert hidden_RC is not None
        z_NAV[rows] = _kernel(q_NAK[rows], k_NBK[keys], v_NBV[keys], scale, seen_RC=~hidden_RC)
    return z_NAV


def _kernel(
    q_NAK: Tensor, k_CBK: Tensor, v_CBV: Tensor, scale: float, *, causal: bool = False, seen_RC: Tensor | None = None
) -> Tensor:
    """torch's fused kernel for one sequence, with heads in the middle as everywhere here: [N, A, V]."""
    z_1ANV = F.scaled_dot_product_attention(
        q_NAK.transpose(0, 1)[None],
        k_CBK.transpose(0, 1)[None],
        v_CBV.transpose(0, 1)[None],
        attn_mask=seen_RC,
        is_causal=causal,
        scale=scale,
        enable_gqa=q_NAK.shape[1] != k_CBK.shape[1],
    )
    return z_1ANV[0].transpose(0, 1)

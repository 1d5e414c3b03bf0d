"""Multi-head attention over a packed matrix: the only part of a layer that knows where a sequence begins.

Names end in their dimensions: T rows of the packed matrix, D model width, A query heads, B key/value heads,
K width of a query or key head, V width of a value head, N rows of one sequence.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.config import StackConfig
from model.keep import LayerKeep
from model.linear import Linear
from model.packing import Packing


class Attention(nn.Module):
    """MHA(X) = concat(head_1 .. head_A) W_O, head = softmax(mask(QK^T * scale)) V; [T, d] in and out.

    Jurafsky & Martin, eq. 7.33-7.37, with scale = 1 / sqrt(d_k) unless the family says otherwise. Query head h
    uses key/value head h // (A / B).
    """

    def __init__(self, config: StackConfig, index: int) -> None:
        super().__init__()
        self.d_k, self.d_v = config.d_k, config.d_v
        self.scale, self.causal = config.attention_scales[index], config.causal
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
        keep.maps(q_TAK, k_TBK, self.scale, self.causal)
        z_TAV = attend(q_TAK, k_TBK, v_TBV, packing, self.scale, self.causal)
        keep.heads("z", z_TAV)
        return self.o(z_TAV.flatten(-2))  # type: ignore[no-any-return]


def attend(q_TAK: Tensor, k_TBK: Tensor, v_TBV: Tensor, packing: Packing, scale: float, causal: bool) -> Tensor:
    """softmax(mask(QK^T * scale)) V of each sequence by itself, [T, A, V], by a fused kernel.

    One kernel call a sequence: no row of another sequence is ever an operand, so that not even a NaN crosses.
    """
    heads_NAV = [_attend_one(q_TAK[span], k_TBK[span], v_TBV[span], scale, causal) for _, span in packing.spans()]
    return heads_NAV[0] if len(heads_NAV) == 1 else torch.cat(heads_NAV)


def _attend_one(q_NAK: Tensor, k_NBK: Tensor, v_NBV: Tensor, scale: float, causal: bool) -> Tensor:
    d_k, d_v = q_NAK.shape[-1], v_NBV.shape[-1]
    # The fused kernels want one width for all three, and fall back to an N x N matrix otherwise. Columns of
    # zeros change neither QK^T nor the columns of V that are kept.
    if d_k < d_v:
        q_NAK, k_NBK = F.pad(q_NAK, (0, d_v - d_k)), F.pad(k_NBK, (0, d_v - d_k))
    elif d_v < d_k:
        v_NBV = F.pad(v_NBV, (0, d_k - d_v))
    z_1ANV = F.scaled_dot_product_attention(
        q_NAK.transpose(0, 1)[None],
        k_NBK.transpose(0, 1)[None],
        v_NBV.transpose(0, 1)[None],
        is_causal=causal,
        scale=scale,
        enable_gqa=q_NAK.shape[1] != k_NBK.shape[1],
    )
    return z_1ANV[0].transpose(0, 1)[..., :d_v]

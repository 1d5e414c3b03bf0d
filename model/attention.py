"""Multi-head attention over a packed matrix: the only part of a layer that knows where a sequence begins.

Names end in their dimensions: T rows of the packed matrix, D model width, A query heads, B key/value heads,
K width of a query or key head, V width of a value head, N rows of one sequence, R query rows and C keys of a block.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.config import StackConfig
from model.keep import LayerKeep
from model.linear import Linear, side_by_side
from model.mask import Mask
from model.packing import Packing
from model.together import attend_together

TOGETHER_ON = ("cuda",)  # devices on which one kernel call for all sequences is tried
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
        self.heads = [config.n_heads, config.n_kv_heads]
        self.qkv: Linear | None = None

    def join(self) -> None:
        """Make one product of the three, which are not to be used any more."""
        self.qkv = side_by_side(self.q, self.k, self.v)

    def forward(self, x_TD: Tensor, packing: Packing, keep: LayerKeep) -> Tensor:
        q_TAK, k_TBK, v_TBV = self._project(x_TD, packing)
        keep.heads("q", q_TAK)
        keep.heads("k", k_TBK)
        keep.heads("v", v_TBV)
        keep.maps(q_TAK, k_TBK, self.scale, self.mask)
        z_TAV = attend(q_TAK, k_TBK, v_TBV, packing, self.scale, self.mask)
        keep.heads("z", z_TAV)
        return self.o(z_TAV.flatten(-2))  # type: ignore[no-any-return]

    def _project(self, x_TD: Tensor, packing: Packing) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys, turned to their positions, and values: [T, A, K], [T, B, K], [T, B, V]."""
        turned = packing.rotation or (lambda x: x)
        if self.qkv is None:
            q_TAK = turned(self.q(x_TD).unflatten(-1, (-1, self.d_k)))
            k_TBK = turned(self.k(x_TD).unflatten(-1, (-1, self.d_k)))
            return q_TAK, k_TBK, self.v(x_TD).unflatten(-1, (-1, self.d_v))
        widths = [sum(self.heads) * self.d_k, self.heads[1] * self.d_v]
        qk_T, v_T = self.qkv(x_TD).split_with_sizes(widths, dim=-1)
        q_TAK, k_TBK = turned(qk_T.unflatten(-1, (-1, self.d_k))).split_with_sizes(self.heads, dim=1)
        return q_TAK, k_TBK, v_T.unflatten(-1, (-1, self.d_v))


def attend(q_TAK: Tensor, k_TBK: Tensor, v_TBV: Tensor, packing: Packing, scale: float, mask: Mask) -> Tensor:
    """softmax(mask(QK^T * scale)) V of each sequence by itself, [T, A, V], by a fused kernel.

    No row of another sequence is ever an operand, so that not even a NaN crosses: on the CPU there is one kernel call
    a sequence, on other devices one for all where there is such a kernel. What else can be done for all of them at once
    is: each call into torch may wait for the interpreter, which other threads want too.
    """
    d_k, d_v = q_TAK.shape[-1], v_TBV.shape[-1]
    # The fused kernels want one width for all three, and fall back to an N x N matrix otherwise. Columns of
    # zeros change neither QK^T nor the columns of V that are kept.
    if d_k < d_v:
        q_TAK, k_TBK = F.pad(q_TAK, (0, d_v - d_k)), F.pad(k_TBK, (0, d_v - d_k))
    elif d_v < d_k:
        v_TBV = F.pad(v_TBV, (0, d_k - d_v))
    if q_TAK.device.type in TOGETHER_ON:
        z_TAV = attend_together(q_TAK, k_TBK, v_TBV, packing, scale, mask)
        if z_TAV is not None:
            return z_TAV[..., :d_v]
    sizes = [*packing.lengths, packing.filler]
    q, k, v = (x.transpose(0, 1)[None].split_with_sizes(sizes, dim=2)[:-1] for x in (q_TAK, k_TBK, v_TBV))
    # the kernel writes its heads side by side, so that rows follow each other in memory if they are put together so
    z_1NAV = [_attend_one(*of_one, scale=scale, mask=mask).transpose(1, 2) for of_one in zip(q, k, v, strict=True)]
    if packing.filler:
        z_1NAV.append(v_TBV.new_zeros(1, packing.filler, q_TAK.shape[1], v_TBV.shape[-1]))
    z_1TAV = z_1NAV[0] if len(z_1NAV) == 1 else torch.cat(z_1NAV, dim=1)
    return z_1TAV[0][..., :d_v]


def _attend_one(q_1ANK: Tensor, k_1BNK: Tensor, v_1BNV: Tensor, scale: float, mask: Mask) -> Tensor:
    if mask.hides_within(q_1ANK.shape[2]):
        return _attend_in_window(q_1ANK, k_1BNK, v_1BNV, scale, mask)
    return _kernel(q_1ANK, k_1BNK, v_1BNV, scale, causal=mask.causal)


def _attend_in_window(q_1ANK: Tensor, k_1BNK: Tensor, v_1BNV: Tensor, scale: float, mask: Mask) -> Tensor:
    """Blocks of query rows, each with the keys that its rows can see: work and memory grow with N, not with N x N."""
    n = q_1ANK.shape[2]
    numbers_N = torch.arange(n, device=q_1ANK.device)
    z_1ANV = v_1BNV.new_empty(1, q_1ANK.shape[1], n, v_1BNV.shape[3])
    for first in range(0, n, WINDOW_ROWS):
        rows = slice(first, min(n, first + WINDOW_ROWS))
        keys = mask.keys_of(rows.start, rows.stop)
        hidden_RC = mask.hidden(numbers_N[rows], numbers_N[keys])
        assert hidden_RC is not None
        z_1ANV[:, :, rows] = _kernel(
            q_1ANK[:, :, rows], k_1BNK[:, :, keys], v_1BNV[:, :, keys], scale, seen_RC=~hidden_RC
        )
    return z_1ANV


def _kernel(
    q_1ANK: Tensor, k_1BCK: Tensor, v_1BCV: Tensor, scale: float, *, causal: bool = False, seen_RC: Tensor | None = None
) -> Tensor:
    """torch's fused kernel for one sequence, [1, A, N, V]."""
    return F.scaled_dot_product_attention(
        q_1ANK,
        k_1BCK,
        v_1BCV,
        attn_mask=seen_RC,
        is_causal=causal,
        scale=scale,
        enable_gqa=q_1ANK.shape[1] != k_1BCK.shape[1],
    )

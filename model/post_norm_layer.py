"""One post-norm transformer layer, as the first transformers had it (Vaswani et al., 2017, 3.1: LN(x + Sublayer(x))).

T2 = MHA(X)
T3 = X + T2
O  = LN(T3)
T5 = FFN(O)
H  = LN(O + T5)

Names end in their dimensions: T rows of the packed matrix, D model width.
"""

from torch import Tensor, nn

from model.attention import Attention
from model.config import StackConfig
from model.feed_forward import feed_forward
from model.keep import LayerKeep
from model.norms import norm
from model.packing import Packing


class PostNormLayer(nn.Module):
    """O = LN(X + MHA(X)), H = LN(O + FFN(O)); [T, d] in and out.

    `keep` takes what was asked for on the way and gives every matrix back as it is. What leaves is both `ln2` and
    `resid_post`.
    """

    def __init__(self, config: StackConfig, index: int) -> None:
        super().__init__()
        self.attention = Attention(config, index)
        self.ln1 = norm(config)
        self.feed_forward = feed_forward(config)
        self.ln2 = norm(config)

    def forward(self, x_TD: Tensor, packing: Packing, keep: LayerKeep) -> Tensor:
        t2_TD = keep.rows("attn_out", self.attention(x_TD, packing, keep))
        t3_TD = keep.rows("resid_mid", x_TD + t2_TD)
        o_TD = keep.rows("ln1", self.ln1(t3_TD))
        t5_TD = keep.rows("mlp_out", self.feed_forward(o_TD))
        h_TD = keep.rows("ln2", self.ln2(o_TD + t5_TD))
        return keep.rows("resid_post", h_TD)

"""One pre-norm transformer layer, as the textbook writes it (Jurafsky & Martin 7.3, eq. 7.39-7.44).

T1 = LN(X)
T2 = MHA(T1)
T3 = X + T2          which is O
T4 = LN(T3)
T5 = FFN(T4)
H  = T3 + T5

Names end in their dimensions: T rows of the packed matrix, D model width.
"""

from torch import Tensor, nn

from model.attention import Attention
from model.config import StackConfig
from model.feed_forward import feed_forward
from model.keep import LayerKeep
from model.norms import norm
from model.packing import Packing


class TransformerLayer(nn.Module):
    """O = X + MHA(LN(X)), H = O + FFN(LN(O)); [T, d] in and out.

    `keep` takes what was asked for on the way and gives every matrix back as it is.
    """

    def __init__(self, config: StackConfig, index: int) -> None:
        super().__init__()
        self.ln1 = norm(config)
        self.attention = Attention(config, index)
        self.ln2 = norm(config)
        self.feed_forward = feed_forward(config)

    def forward(self, x_TD: Tensor, packing: Packing, keep: LayerKeep) -> Tensor:
        t1_TD = keep.rows("ln1", self.ln1(x_TD))
        t2_TD = keep.rows("attn_out", self.attention(t1_TD, packing, keep))
        t3_TD = keep.rows("resid_mid", x_TD + t2_TD)
        t4_TD = keep.rows("ln2", self.ln2(t3_TD))
        t5_TD = keep.rows("mlp_out", self.feed_forward(t4_TD))
        return keep.rows("resid_post", t3_TD + t5_TD)

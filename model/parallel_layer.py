"""One transformer layer whose attention and feed-forward network stand side by side (Wang & Komatsuzaki, GPT-J, 2021).

T1 = LN(X)
T2 = MHA(T1)
T4 = LN(X)           a norm of its own
T5 = FFN(T4)
H  = X + T2 + T5

There is no O between the two. Names end in their dimensions: T rows of the packed matrix, D model width.
"""

from torch import Tensor, nn

from model.attention import Attention
from model.config import StackConfig
from model.feed_forward import feed_forward
from model.keep import LayerKeep
from model.norms import norm
from model.packing import Packing


class ParallelLayer(nn.Module):
    """H = X + MHA(LN(X)) + FFN(LN(X)), with two norms; [T, d] in and out.

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
        t4_TD = keep.rows("ln2", self.ln2(x_TD))
        t5_TD = keep.rows("mlp_out", self.feed_forward(t4_TD))
        return keep.rows("resid_post", x_TD + t2_TD + t5_TD)

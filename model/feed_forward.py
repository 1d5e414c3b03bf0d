"""The feed-forward network of a layer: each row by itself.

Names end in their dimensions: T rows of the packed matrix, D model width, S rows of one block, F inner width.
"""

import torch
from torch import Tensor, nn

from model.activations import ACTIVATIONS
from model.config import StackConfig
from model.linear import Linear, side_by_side

BLOCK_ROWS = 512  # whose inner numbers stay in the processor's cache between the two products


class FeedForward(nn.Module):
    """FFN(x) = act(x W_1 + b_1) W_2 + b_2 (Jurafsky & Martin, eq. 7.21); [T, d] in and out."""

    def __init__(self, config: StackConfig) -> None:
        super().__init__()
        self.act = ACTIVATIONS[config.activation]
        self.up = Linear(config.d_model, config.d_ff, bias=config.feed_forward_bias)
        self.down = Linear(config.d_ff, config.d_model, bias=config.feed_forward_bias)

    def join(self) -> None:
        """Make one product of those with the same inputs, if there are several."""

    def forward(self, x_TD: Tensor) -> Tensor:
        if len(x_TD) <= 2 * BLOCK_ROWS or not self.down.is_packed:  # others' rows depend on how many there are
            return self._rows(x_TD)
        out_TD = torch.empty_like(x_TD)
        for first in range(0, len(x_TD), BLOCK_ROWS):
            out_TD[first : first + BLOCK_ROWS] = self._rows(x_TD[first : first + BLOCK_ROWS])
        return out_TD

    def _rows(self, x_SD: Tensor) -> Tensor:
        return self.down(self.act(self.up(x_SD)))  # type: ignore[no-any-return]


class GatedFeedForward(FeedForward):
    """FFN(x) = (act(x W_gate) * x W_up) W_down (Shazeer, GLU Variants, 2020); [T, d] in and out."""

    def __init__(self, config: StackConfig) -> None:
        super().__init__(config)
        self.gate = Linear(config.d_model, config.d_ff, bias=config.feed_forward_bias)
        self.gate_up: Linear | None = None

    def join(self) -> None:
        """Make one product of the gate's and the other's, which are not to be used any more."""
        self.gate_up = side_by_side(self.gate, self.up)

    def _rows(self, x_SD: Tensor) -> Tensor:
        if self.gate_up is None:
            gate_SF, up_SF = self.gate(x_SD), self.up(x_SD)
        else:
            gate_SF, up_SF = self.gate_up(x_SD).chunk(2, dim=-1)
        return self.down(self.act(gate_SF).mul_(up_SF))  # type: ignore[no-any-return]


def feed_forward(config: StackConfig) -> FeedForward:
    """The feed-forward network that the config describes."""
    return GatedFeedForward(config) if config.gated else FeedForward(config)

"""The parameters of a transformer: embeddings, layers, final norm, unembedding.

Names end in their dimensions: T rows of the packed matrix, D model width, V vocabulary.
"""

import torch
from torch import Tensor, nn

from model.config import StackConfig
from model.layer import TransformerLayer
from model.linear import Linear
from model.norms import norm
from model.rotary import Rotation, rotation


class Stack(nn.Module):
    """A stack of layers and what stands before and after them, where the checkpoint has it."""

    def __init__(self, config: StackConfig) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab_size, config.d_model) if config.vocab_size else None
        self.position_embedding = (
            nn.Embedding(config.max_positions, config.d_model) if config.learned_positions else None
        )
        self.layers = nn.ModuleList(TransformerLayer(config, i) for i in range(config.n_layers))
        self.final_norm = norm(config) if config.final_norm else nn.Identity()
        self.unembedding = Linear(config.d_model, config.vocab_size, bias=False) if config.unembedding else None

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which the stack computes."""
        return next(self.parameters()).dtype

    def embed_tokens(self, tokens_T: Tensor) -> Tensor:
        """Token embeddings [T, d], without positions."""
        assert self.token_embedding is not None
        return self.token_embedding(tokens_T)  # type: ignore[no-any-return]

    def add_positions(self, x_TD: Tensor, positions_T: Tensor) -> Tensor:
        """Token embeddings with the positions that this family adds before the first layer, if any."""
        if self.position_embedding is None:
            return x_TD
        return x_TD + self.position_embedding(positions_T)  # type: ignore[no-any-return]

    def rotation(self, positions_T: Tensor) -> Rotation | None:
        """How queries and keys at these positions are turned; None in families without rotary positions."""
        if self.config.rotary_theta is None:
            return None
        return rotation(positions_T, self.config.d_k, self.config.rotary_theta, self.dtype)

    def unembed(self, x_TD: Tensor) -> Tensor:
        """Logits [T, V] of rows after the final norm."""
        assert self.unembedding is not None
        return self.unembedding(x_TD)  # type: ignore[no-any-return]

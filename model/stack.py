"""The parameters of a transformer: embeddings, layers, final norm, unembedding.

Names end in their dimensions: T rows of the packed matrix, D model width, V vocabulary.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from model.attention import Attention
from model.config import Arrangement, StackConfig
from model.feed_forward import FeedForward
from model.head_transform import HeadTransform
from model.layer import TransformerLayer
from model.linear import Linear, can_pack
from model.norms import norm
from model.packing import filler_for
from model.parallel_layer import ParallelLayer
from model.post_norm_layer import PostNormLayer
from model.rotary import Rotation, rotation

if TYPE_CHECKING:
    from model.replay import Replays

LAYERS: dict[Arrangement, type[TransformerLayer | PostNormLayer | ParallelLayer]] = {
    "pre_norm": TransformerLayer,
    "post_norm": PostNormLayer,
    "parallel": ParallelLayer,
}


class Embedding(nn.Embedding):
    """A row for each id: [T] to [T, d]."""

    def reset_parameters(self) -> None:
        """As of Linear: nothing on the meta device."""
        if not self.weight.is_meta:
            super().reset_parameters()


class Stack(nn.Module):
    """A stack of layers and what stands before and after them, where the checkpoint has it."""

    def __init__(self, config: StackConfig) -> None:
        super().__init__()
        self.config = config
        self.is_packed = False
        self.replays: Replays | None = None
        self.token_embedding = Embedding(config.vocab_size, config.d_model) if config.vocab_size else None
        self.position_embedding = Embedding(config.max_positions, config.d_model) if config.learned_positions else None
        self.token_type_embedding = Embedding(config.token_types, config.d_model) if config.token_types else None
        self.embedding_norm = norm(config) if config.embedding_norm else nn.Identity()
        layer = LAYERS[config.arrangement]
        self.layers = nn.ModuleList(layer(config, i) for i in range(config.n_layers))
        self.final_norm = norm(config) if config.final_norm else nn.Identity()
        self.head_transform = HeadTransform(config) if config.head_transform else nn.Identity()
        self.unembedding = (
            Linear(config.d_model, config.vocab_size, bias=config.unembedding_bias) if config.unembedding else None
        )

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which the stack computes."""
        return next(self.parameters()).dtype

    def pack(self) -> None:
        """Lay the layers' weights out for the CPU, where that can be done.

        The unembedding stays as it is: it is large, needed for few rows, and often one with the embeddings.
        """
        if self.dtype is torch.float32 and self.device.type == "cpu" and can_pack():
            for module in list(self.layers.modules()):
                if isinstance(module, Attention | FeedForward):
                    module.join()
            for module in self.layers.modules():
                if isinstance(module, Linear) and module.weight is not None:
                    module.pack()
            self.is_packed = True

    def filler(self, lengths: tuple[int, ...]) -> int:
        """Rows of nobody to add to sequences of these lengths."""
        if self.replays is not None:
            return self.replays.filler(lengths)
        return filler_for(sum(lengths)) if self.is_packed else 0

    def embed_tokens(self, tokens_T: Tensor) -> Tensor:
        """Token embeddings [T, d], without positions."""
        assert self.token_embedding is not None
        return self.token_embedding(tokens_T)  # type: ignore[no-any-return]

    def enter(self, x_TD: Tensor, positions_T: Tensor) -> Tensor:
        """Token embeddings with what this family adds and does to them before the first layer, positions above all."""
        if self.token_type_embedding is not None:
            x_TD = x_TD + self.token_type_embedding.weight[0]
        if self.position_embedding is not None:
            x_TD = x_TD + self.position_embedding(positions_T)
        return self.embedding_norm(x_TD)  # type: ignore[no-any-return]

    def rotation(self, positions_T: Tensor) -> Rotation | None:
        """How queries and keys at these positions are turned; None in families without rotary positions."""
        if self.config.rotary_theta is None:
            return None
        width = self.config.rotary_width or self.config.d_k
        return rotation(positions_T, width, self.config.rotary_theta, self.dtype)

    def unembed(self, x_TD: Tensor) -> Tensor:
        """Logits [T, V] of rows after the final norm."""
        assert self.unembedding is not None
        return self.unembedding(self.head_transform(x_TD))  # type: ignore[no-any-return]

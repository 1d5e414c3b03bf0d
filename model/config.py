"""What a stack is made of, in our own terms, whatever family its checkpoint is of."""

from dataclasses import dataclass
from typing import Literal

import torch

from model.activations import ACTIVATIONS
from model.errors import CheckpointError
from model.mask import Mask

Arrangement = Literal["pre_norm", "post_norm", "parallel"]
"""How norms, attention and feed-forward network stand in a layer; each has a file of its own."""

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


@dataclass(frozen=True, kw_only=True)
class StackConfig:
    """The shape of a stack and the choices inside its layers.

    Widths are counts of numbers, `vocab_size` 0 means that there is no token embedding, `max_positions` 0
    that tokens are not limited. `attention_scales` has one factor a layer, by which QK^T is multiplied; `windows`,
    where it is not empty, one a layer too: how many keys a row sees, None for all. `rotary_width` numbers of a head
    are turned, the first ones (None: all). `token_types` is the length of a table whose row 0 is added to every token.
    Raises CheckpointError where the numbers cannot make a stack.
    """

    family: str
    n_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    d_k: int
    d_v: int
    d_ff: int
    vocab_size: int
    max_positions: int
    norm: Literal["layer_norm", "rms_norm"]
    norm_eps: float
    activation: str
    attention_scales: tuple[float, ...]
    gated: bool = False
    qkv_bias: bool = False
    attention_out_bias: bool = False
    feed_forward_bias: bool = False
    arrangement: Arrangement = "pre_norm"
    learned_positions: bool = False
    token_types: int = 0
    embedding_norm: bool = False
    rotary_theta: float | None = None
    rotary_width: int | None = None
    causal: bool = True
    windows: tuple[int | None, ...] = ()
    final_norm: bool = True
    head_transform: bool = False
    unembedding: bool = True
    unembedding_bias: bool = False
    tied: bool = False

    def __post_init__(self) -> None:
        for name in ("n_layers", "d_model", "n_heads", "n_kv_heads", "d_k", "d_v", "d_ff"):
            if getattr(self, name) < 1:
                raise CheckpointError(f"config: {name} is {getattr(self, name)}, and must be at least 1")
        if self.n_heads % self.n_kv_heads:
            raise CheckpointError(
                f"config: {self.n_heads} query heads cannot share {self.n_kv_heads} key/value heads evenly"
            )
        if self.rotary_theta is not None and self.rotary_width is None and self.d_k % 2:
            raise CheckpointError(f"config: rotary positions need an even head width, not {self.d_k}")
        if self.rotary_width is not None and (self.rotary_width % 2 or not 2 <= self.rotary_width <= self.d_k):
            raise CheckpointError(
                f"config: {self.rotary_width} numbers of a head of {self.d_k} cannot be turned in pairs"
            )
        if self.activation not in ACTIVATIONS:
            raise CheckpointError(f"config: activation {self.activation!r} is not supported")
        if self.learned_positions and not self.max_positions:
            raise CheckpointError("config: learned positions need the length of their table")
        if len(self.attention_scales) != self.n_layers:
            raise CheckpointError("config: there must be one attention scale a layer")
        if self.windows and len(self.windows) != self.n_layers:
            raise CheckpointError(f"config: {len(self.windows)} layers have a window or none, not {self.n_layers}")
        if any(window is not None and (window < 1 or not self.causal) for window in self.windows):
            raise CheckpointError("config: a window needs at least 1 key, and a causal model")
        if self.unembedding and not self.vocab_size:
            raise CheckpointError("config: an unembedding needs a vocabulary")

    def mask(self, layer: int) -> Mask:
        """Which keys a row of this layer sees."""
        return Mask(self.causal, self.windows[layer] if self.windows else None)

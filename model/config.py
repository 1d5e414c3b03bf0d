"""What a stack is made of, in our own terms, whatever family its checkpoint is of."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from model.errors import CheckpointError

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


@dataclass(frozen=True, kw_only=True)
class StackConfig:
    """The shape of a stack and the choices inside its layers.

    Widths are counts of numbers, `vocab_size` 0 means that there is no token embedding, `max_positions` 0
    that tokens are not limited. `attention_scales` has one factor a layer, by which QK^T is multiplied.
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
    learned_positions: bool = False
    rotary_theta: float | None = None
    causal: bool = True
    final_norm: bool = True
    unembedding: bool = True
    tied: bool = False

    def __post_init__(self) -> None:
        for name in ("n_layers", "d_model", "n_heads", "n_kv_heads", "d_k", "d_v", "d_ff"):
            if getattr(self, name) < 1:
                raise CheckpointError(f"config: {name} is {getattr(self, name)}, and must be at least 1")
        if self.n_heads % self.n_kv_heads:
            raise CheckpointError(
                f"config: {self.n_heads} query heads cannot share {self.n_kv_heads} key/value heads evenly"
            )
        if self.rotary_theta is not None and self.d_k % 2:
            raise CheckpointError(f"config: rotary positions need an even head width, not {self.d_k}")
        if self.activation not in ACTIVATIONS:
            raise CheckpointError(f"config: activation {self.activation!r} is not supported")
        if self.learned_positions and not self.max_positions:
            raise CheckpointError("config: learned positions need the length of their table")
        if len(self.attention_scales) != self.n_layers:
            raise CheckpointError("config: there must be one attention scale a layer")
        if self.unembedding and not self.vocab_size:
            raise CheckpointError("config: an unembedding needs a vocabulary")

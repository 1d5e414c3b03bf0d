"""Family `textbook`: the chapter's own layer, with its own names (Jurafsky & Martin 7.3).

W_Q, W_K [A, d, d_k] and W_V [A, d, d_v] have one matrix a head, W_O is [A d_v, d]; LayerNorm has gamma and beta;
FFN(x) = act(x W_1 + b_1) W_2 + b_2. With a vocabulary there are E [V, d], used both ways, and the position
table P [N, d]; without one the stack takes and gives matrices only.
"""

from typing import Any

import torch
from torch import Tensor

from model.checkpoint.config_keys import ConfigKeys
from model.checkpoint.family import Family, Weights
from model.checkpoint.tensors import CheckpointTensors
from model.config import StackConfig

_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_tanh": "gelu_tanh", "silu": "silu"}


def read_config(keys: ConfigKeys) -> StackConfig:
    """The stack that a textbook config describes; d_k and d_v default to d / A."""
    d_model, n_heads = keys.integer("d_model"), keys.integer("n_heads")
    n_layers = keys.layers("n_layers")
    d_k = keys.integer("d_k", max(1, d_model // n_heads))
    vocab_size = keys.integer("vocab_size", 0, minimum=0)
    max_positions = keys.integer("max_positions", 0, minimum=0)
    if bool(vocab_size) != bool(max_positions):
        raise keys.fault(f"vocab_size is {vocab_size} and max_positions {max_positions}: both or neither must be 0")
    return StackConfig(
        family="textbook",
        n_layers=n_layers,
        d_model=d_model,
        n_heads=n_heads,
        n_kv_heads=n_heads,
        d_k=d_k,
        d_v=keys.integer("d_v", max(1, d_model // n_heads)),
        d_ff=keys.integer("d_ff", 4 * d_model),
        vocab_size=vocab_size,
        max_positions=max_positions,
        norm="layer_norm",
        norm_eps=keys.number("norm_eps", 1e-5),
        activation=keys.choice("activation", _ACTIVATIONS, "relu"),
        attention_scales=(d_k**-0.5,) * n_layers,
        feed_forward_bias=True,
        learned_positions=bool(vocab_size),
        causal=keys.flag("causal", True),
        final_norm=keys.flag("final_norm", True),
        unembedding=bool(vocab_size),
        tied=bool(vocab_size),
    )


def tensor_shapes(config: StackConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of such a checkpoint and its shape."""
    a, d, d_k, d_v, d_ff = config.n_heads, config.d_model, config.d_k, config.d_v, config.d_ff
    shapes: dict[str, tuple[int, ...]] = {}
    if config.vocab_size:
        shapes |= {"E": (config.vocab_size, d), "P": (config.max_positions, d)}
    for i in range(config.n_layers):
        of_layer: dict[str, tuple[int, ...]] = {
            "ln1.gamma": (d,),
            "ln1.beta": (d,),
            "W_Q": (a, d, d_k),
            "W_K": (a, d, d_k),
            "W_V": (a, d, d_v),
            "W_O": (a * d_v, d),
            "ln2.gamma": (d,),
            "ln2.beta": (d,),
            "W_1": (d, d_ff),
            "b_1": (d_ff,),
            "W_2": (d_ff, d),
            "b_2": (d,),
        }
        shapes |= {f"layers.{i}.{name}": shape for name, shape in of_layer.items()}
    if config.final_norm:
        shapes |= {"final_norm.gamma": (d,), "final_norm.beta": (d,)}
    return shapes


def weights(config: StackConfig, tensors: CheckpointTensors) -> Weights:
    """The tensors under the stack's names; the per-head matrices side by side, as one product wants them."""
    shapes = tensor_shapes(config)

    def take(name: str) -> Tensor:
        return tensors.take(name, *shapes[name])

    if config.vocab_size:
        yield "token_embedding.weight", take("E")
        yield "unembedding.weight", take("E")
        yield "position_embedding.weight", take("P")
    for i in range(config.n_layers):
        ours = f"layers.{i}"
        for name in ("ln1", "ln2"):
            yield f"{ours}.{name}.weight", take(f"{ours}.{name}.gamma")
            yield f"{ours}.{name}.bias", take(f"{ours}.{name}.beta")
        for name in ("Q", "K", "V"):
            per_head = take(f"{ours}.W_{name}")
            yield f"{ours}.attention.{name.lower()}.weight", per_head.transpose(1, 2).flatten(0, 1)
        yield f"{ours}.attention.o.weight", take(f"{ours}.W_O").T
        yield f"{ours}.feed_forward.up.weight", take(f"{ours}.W_1").T
        yield f"{ours}.feed_forward.up.bias", take(f"{ours}.b_1")
        yield f"{ours}.feed_forward.down.weight", take(f"{ours}.W_2").T
        yield f"{ours}.feed_forward.down.bias", take(f"{ours}.b_2")
    if config.final_norm:
        yield "final_norm.weight", take("final_norm.gamma")
        yield "final_norm.bias", take("final_norm.beta")


def random_tensors(config: StackConfig, seed: int) -> dict[str, Tensor]:
    """Seeded random weights in which every parameter matters: no gamma is 1, no bias 0.

    Matrices are normal with variance 1 / (rows that they sum over), so that rows keep their size.
    """
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for name, shape in tensor_shapes(config).items():
        values = torch.randn(shape, generator=generator)
        kind = name.rpartition(".")[2]
        if kind == "gamma":
            values = 1 + 0.1 * values
        elif kind in ("beta", "b_1", "b_2"):
            values = 0.1 * values
        elif kind not in ("E", "P"):
            values = values * shape[-2] ** -0.5
        tensors[name] = values
    return tensors


def config_json(config: StackConfig) -> dict[str, Any]:
    """The config.json from which `read_config` makes the same stack."""
    names = "n_layers d_model n_heads d_k d_v d_ff activation norm_eps causal final_norm vocab_size max_positions"
    return {"model_type": "textbook"} | {name: getattr(config, name) for name in names.split()}


FAMILY = Family("textbook", "", frozenset(), read_config, weights)

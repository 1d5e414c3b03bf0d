"""The models that all servers read: written once as Hugging Face checkpoints, with random weights of a fixed seed.

How fast a stack is does not depend on its weights, so random ones of the shape of GPT-2 do; the packaged SmolLM2-135M
has trained ones.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from model.checkpoint.packages import DEFAULT, cache_directory, packaged_model
from model.checkpoint.write import new_directory, write_config, write_weights

SEED = 5
DEVIATION = 0.02  # of the weights, as GPT-2 itself begins
FOLDER = "bench"


@dataclass(frozen=True)
class Shape:
    """A GPT-2 of random weights; its feed-forward network has four times the width of the model."""

    layers: int
    width: int
    heads: int
    vocabulary: int = 50257
    positions: int = 1024


SHAPES = {"gpt2-small-shape": Shape(12, 768, 12), "small": Shape(4, 128, 4)}
GPT2, SMALL, SMOLLM2 = "gpt2-small-shape", "small", DEFAULT


def folder() -> Path:
    """Where models and environments of the benchmark are kept."""
    return cache_directory() / FOLDER


def model_directory(name: str) -> Path:
    """The directory of one of the three models; what is not there yet is written, or fetched."""
    if name == SMOLLM2:
        return packaged_model(name, lambda _: None)
    directory = folder() / "models" / name
    if not directory.is_dir():
        write_gpt2(directory, SHAPES[name])
    return directory


def write_gpt2(directory: Path, shape: Shape, seed: int = SEED) -> None:
    """config.json and model.safetensors as transformers would write them."""
    config = {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "n_layer": shape.layers,
        "n_embd": shape.width,
        "n_head": shape.heads,
        "n_positions": shape.positions,
        "vocab_size": shape.vocabulary,
    }
    with new_directory(directory) as partial:
        write_config(partial, config)
        write_weights(partial, dict(_tensors(shape, torch.Generator().manual_seed(seed))))


def _tensors(shape: Shape, random: torch.Generator) -> list[tuple[str, Tensor]]:
    d = shape.width

    def normal(*size: int) -> Tensor:
        return DEVIATION * torch.randn(*size, generator=random)

    found = [("wte.weight", normal(shape.vocabulary, d)), ("wpe.weight", normal(shape.positions, d))]
    for i in range(shape.layers):
        for name, inputs, outputs in (
            ("attn.c_attn", d, 3 * d),
            ("attn.c_proj", d, d),
            ("mlp.c_fc", d, 4 * d),
            ("mlp.c_proj", 4 * d, d),
        ):
            found += [(f"h.{i}.{name}.weight", normal(inputs, outputs)), (f"h.{i}.{name}.bias", normal(outputs))]
        for name in ("ln_1", "ln_2"):
            found += [(f"h.{i}.{name}.weight", 1 + normal(d)), (f"h.{i}.{name}.bias", normal(d))]
    return [*found, ("ln_f.weight", 1 + normal(d)), ("ln_f.bias", normal(d))]

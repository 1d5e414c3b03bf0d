"""Long sequences: right at the model's limit, and never a matrix of N x N numbers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM

from model.checkpoint.initialise import initialise
from model.checkpoint.load import LoadedModel, load_model
from tests.model.collect import ask, errors_above, select
from tests.model.english import english
from tests.model.huggingface import queries_keys_values, scores, watched

LENGTH = 8192  # SmolLM2's limit
ROWS = (0, 1, 4095, 8191)
DEPTH = 3  # layers that the reference runs; all of them would take minutes
MAPPED = (0, DEPTH - 1)


class LargestTensor(TorchDispatchMode):
    """Remembers the size of the largest tensor that any operation made."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for x in made if isinstance(made, tuple | list) else (made,):
            if isinstance(x, torch.Tensor):
                self.numbers = max(self.numbers, x.numel())
        return made


@pytest.fixture(scope="module")
def first_layers(smollm2_directory: Path) -> Iterator[nn.Module]:
    """The first layers of the transformers model, with its fused attention: eager maps would take 72 GB."""
    model = AutoModelForCausalLM.from_pretrained(
        smollm2_directory, dtype=torch.float32, attn_implementation="sdpa"
    ).eval()
    model.model.layers = model.model.layers[:DEPTH]
    return model.model


def test_rows_of_maps_and_layers_are_right_at_8192_tokens(smollm2: LoadedModel, first_layers: nn.Module) -> None:
    ids = english(smollm2.tokenizer, LENGTH)
    names = [f"layers.{i}.{kind}" for i in MAPPED for kind in ("attn_probs", "attn_scores", "resid_post")]

    with LargestTensor() as largest:
        found = ask(smollm2.stack, "tokens", ids, *(select(smollm2.config, name, rows=ROWS) for name in names))

    assert largest.numbers < LENGTH * LENGTH / 2, "somewhere a matrix of the order of N x N was made"
    with torch.inference_mode(), watched(first_layers) as seen:
        first_layers(torch.tensor([ids]), use_cache=False)
    for i in MAPPED:
        q, k, _ = queries_keys_values(first_layers, i, seen, list(range(LENGTH)))
        expected = scores(q, k, q.shape[-1] ** -0.5, ROWS)
        reference = {
            f"layers.{i}.attn_scores": expected,
            f"layers.{i}.attn_probs": expected.softmax(dim=-1),
            f"layers.{i}.resid_post": seen[f"{i}.post"][0, list(ROWS)],
        }
        assert errors_above(5e-5, found, reference) == {}


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("d_k", "d_v"), [(5, 5), (5, 11), (11, 5)])
def test_no_head_width_makes_a_layer_need_n_by_n_memory(tmp_path: Path, d_k: int, d_v: int, causal: bool) -> None:
    initialise(tmp_path / "m", seed=1, n_layers=1, d_model=31, n_heads=3, d_k=d_k, d_v=d_v, d_ff=37, causal=causal)
    stack = load_model(tmp_path / "m", name="m").stack
    n = 2003
    x = np.random.default_rng(2).standard_normal((n, 31))
    with LargestTensor() as largest:
        ask(stack, "x", x, "layers.*.resid_post", select(stack.config, "layers.0.attn_probs", rows=(0, n - 1)))
    assert largest.numbers < n * n / 10


def test_the_watch_for_large_tensors_sees_an_attention_that_is_not_fused() -> None:
    q = torch.ones(1, 3, 101, 5)
    with sdpa_kernel(SDPBackend.MATH), LargestTensor() as largest:
        nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    assert largest.numbers == 3 * 101 * 101

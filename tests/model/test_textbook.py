"""The textbook family is the chapter's formulas, written out once more in float64."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from model.checkpoint.initialise import initialise
from model.checkpoint.load import load_model
from model.stack import Stack
from tests.model.collect import ask, errors_above
from tests.reference import FFN_ACTIVATIONS, Matrix, embed, textbook

N, L, D = 7, 3, 31
SIZES = {"n_layers": L, "d_model": D, "n_heads": 3, "d_k": 5, "d_v": 11, "d_ff": 37}
WORDS = {"vocab_size": 41, "max_positions": 43}
TOLERANCE = 5e-5


@dataclass(frozen=True)
class Textbook:
    """A stack and the weights in its file, as float64."""

    stack: Stack
    weights: dict[str, Matrix]


Make = Callable[..., Textbook]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def made(**options: Any) -> Textbook:
        initialise(tmp_path / "m", seed=3, **SIZES | options)
        weights = load_file(tmp_path / "m" / "model.safetensors")
        return Textbook(
            load_model(tmp_path / "m", name="m").stack,
            {name: x.astype(np.float64) for name, x in weights.items()},
        )

    return made


def check(found: dict[str, Any], expected: dict[str, Matrix]) -> None:
    assert sorted(found) == sorted(expected)
    assert errors_above(TOLERANCE, found, expected) == {}


def matrix(seed: int = 5) -> Matrix:
    # rounded, so that the reference sees the very numbers that the stack sees
    return np.random.default_rng(seed).standard_normal((N, D)).astype(np.float32).astype(np.float64)


@pytest.mark.parametrize("act", FFN_ACTIVATIONS)
@pytest.mark.parametrize("causal", [True, False])
def test_every_point_is_the_chapters_formula(make: Make, causal: bool, act: str) -> None:
    model = make(causal=causal, activation=act, **WORDS)
    tokens = [40, 0, 7, 7, 23, 11, 2]
    expected = textbook(embed(tokens, model.weights), model.weights, n_layers=L, causal=causal, act=act)
    assert len(expected) == 1 + 13 * L + 2
    check(ask(model.stack, "tokens", tokens, *expected), expected)


@pytest.mark.parametrize("start", range(L + 1))
@pytest.mark.parametrize("causal", [True, False])
def test_a_matrix_enters_the_layer_that_it_is_given_for(make: Make, causal: bool, start: int) -> None:
    model = make(causal=causal, **WORDS)
    expected = textbook(matrix(), model.weights, n_layers=L, causal=causal, start=start)
    check(ask(model.stack, "x", matrix(), *expected, start=start), expected)


def test_embeddings_of_ones_own_get_positions_and_a_matrix_does_not(make: Make) -> None:
    model = make(**WORDS)
    positions = [3, 42, 3, 0, 1, 19, 7]
    for given in (None, positions):
        placed = matrix() + model.weights["P"][range(N) if given is None else given]
        expected = textbook(placed, model.weights, n_layers=L, causal=True)
        check(ask(model.stack, "inputs_embeds", matrix(), *expected, positions=given), expected)
    expected = textbook(matrix(), model.weights, n_layers=L, causal=True)
    check(ask(model.stack, "x", matrix(), *expected), expected)


def test_tokens_stand_at_the_positions_given(make: Make) -> None:
    model = make(**WORDS)
    tokens, positions = [40, 0, 7, 7, 23, 11, 2], [42, 0, 5, 5, 3, 2, 1]
    expected = textbook(embed(tokens, model.weights, positions), model.weights, n_layers=L, causal=True)
    check(ask(model.stack, "tokens", tokens, *expected, positions=positions), expected)


@pytest.mark.parametrize("final_norm", [True, False])
def test_a_stack_without_words_has_the_same_layers_and_no_logits(make: Make, final_norm: bool) -> None:
    model = make(final_norm=final_norm)
    expected = textbook(matrix(), model.weights, n_layers=L, causal=True)
    assert ("final_norm" in expected) is final_norm
    assert "logits" not in expected
    check(ask(model.stack, "x", matrix(), *expected), expected)


def test_logits_without_a_final_norm_are_those_of_the_last_layer(make: Make) -> None:
    model = make(final_norm=False, **WORDS)
    expected = textbook(matrix(), model.weights, n_layers=L, causal=True)
    check(ask(model.stack, "x", matrix(), *expected), expected)


@pytest.mark.parametrize("sizes", [{"n_heads": 1}, {"d_k": 1, "d_v": 1}, {"d_k": 17, "d_v": 2}, {"d_ff": 1}])
def test_any_sizes_make_a_stack(make: Make, sizes: dict[str, int]) -> None:
    model = make(**sizes)
    expected = textbook(matrix(), model.weights, n_layers=L, causal=True)
    check(ask(model.stack, "x", matrix(), *expected), expected)


def test_hidden_states_are_numbered_as_transformers_does(make: Make) -> None:
    model = make()
    expected = textbook(matrix(), model.weights, n_layers=L, causal=True)
    alias = {f"hidden_states.{k}": expected[f"layers.{k}.resid_pre"] for k in range(L)}
    check(
        ask(model.stack, "x", matrix(), *alias, f"hidden_states.{L}"),
        alias | {f"hidden_states.{L}": expected["final_norm"]},
    )


def test_eps_of_the_norms_is_the_configs(make: Make) -> None:
    model = make(norm_eps=0.5)
    w = model.weights
    x = matrix()
    centred = x - x.mean(axis=1, keepdims=True)
    expected = w["layers.0.ln1.gamma"] * centred / np.sqrt(x.var(axis=1, keepdims=True) + 0.5)
    found = ask(model.stack, "x", x, "layers.0.ln1")
    check(found, {"layers.0.ln1": expected + w["layers.0.ln1.beta"]})

"""Real weights give the numbers of the reference implementation, layer by layer and point by point."""

import numpy as np
import pytest
from torch import nn

from model.checkpoint.load import LoadedModel
from model.points import points_of as points_of_config
from model.tokenizer import encode, strings
from tests.model.collect import ask, errors_above
from tests.model.english import english
from tests.model.huggingface import points_of

TOLERANCE = 5e-5  # of a row's largest magnitude; float32 on CPU on both sides
LENGTHS = (1, 2, 7, 64, 512)


def check(model: LoadedModel, reference: nn.Module, ids: list[int], *, every_kind: bool) -> None:
    expected = points_of(reference, ids, every_kind=every_kind)
    found = ask(model.stack, "tokens", ids, *expected)
    assert errors_above(TOLERANCE, found, expected) == {}
    if every_kind:
        assert {point.name for point in points_of_config(model.config)} <= set(expected)


@pytest.mark.parametrize("length", LENGTHS)
def test_gpt2_weights_give_the_points_of_transformers(mgm: LoadedModel, mgm_reference: nn.Module, length: int) -> None:
    # mgm was trained on microbial genera, none twice in a sample
    ids = np.random.default_rng(length).permutation(mgm.config.vocab_size)[:length].tolist()
    check(mgm, mgm_reference, ids, every_kind=length == 7)


@pytest.mark.parametrize("length", LENGTHS)
def test_llama_weights_give_the_points_of_transformers(
    smollm2: LoadedModel, smollm2_reference: nn.Module, length: int
) -> None:
    # English, not random ids: on 512 of those transformers itself, in float32, is up to 8e-5 away from its own
    # float64, because a residual stream of magnitude 19,900 leaves few digits to a small row.
    check(smollm2, smollm2_reference, english(smollm2.tokenizer, length), every_kind=length == 7)


def test_positions_given_to_a_rotary_model_are_those_of_transformers(
    smollm2: LoadedModel, smollm2_reference: nn.Module
) -> None:
    positions = [5, 0, 3, 8191, 3, 100, 4097]
    ids = english(smollm2.tokenizer, len(positions))
    # Up to layer 8: further on the residual stream is so large, and text in such an order so unlike English, that
    # both implementations are 3e-5 away from float64, each in its own direction.
    names = [f"layers.{i}.{kind}" for i in range(9) for kind in ("q", "k", "attn_probs", "resid_post")]
    expected = points_of(smollm2_reference, ids, every_kind=True, positions=positions)
    found = ask(smollm2.stack, "tokens", ids, *names, positions=positions)
    assert errors_above(TOLERANCE, found, {name: expected[name] for name in names}) == {}


def test_positions_given_to_a_model_with_a_position_table_are_those_of_transformers(
    mgm: LoadedModel, mgm_reference: nn.Module
) -> None:
    positions, ids = [5, 0, 3, 511, 3, 100, 7], [11, 2, 9668, 13, 17, 19, 23]
    expected = points_of(mgm_reference, ids, positions=positions)
    found = ask(mgm.stack, "tokens", ids, *expected, positions=positions)
    assert errors_above(TOLERANCE, found, expected) == {}


def test_smollm2_knows_the_capital_of_france(smollm2: LoadedModel) -> None:
    ids = encode(smollm2.tokenizer, "The capital of France is", add_special_tokens=True)
    logits = ask(smollm2.stack, "tokens", ids, "logits")["logits"]
    assert strings(smollm2.tokenizer, [int(logits[-1].argmax())]) == [" Paris"]


def test_smollm2_reads_digits_one_by_one(smollm2: LoadedModel) -> None:
    ids = encode(smollm2.tokenizer, "In 1871 the 4 mills burned", add_special_tokens=False)
    assert strings(smollm2.tokenizer, ids) == [
        "In", " ", "1", "8", "7", "1", " the", " ", "4", " mills", " burned"
    ]  # fmt: skip
    assert smollm2.tokenizer.decode(ids) == "In 1871 the 4 mills burned"


def test_smollm2_reads_its_control_tokens_as_one_token_each(smollm2: LoadedModel) -> None:
    ids = encode(smollm2.tokenizer, "<|im_start|>user\nHi<|im_end|>", add_special_tokens=False)
    assert strings(smollm2.tokenizer, ids) == ["<|im_start|>", "user", "\n", "Hi", "<|im_end|>"]
    assert ids[0] == 1
    assert ids[-1] == 2

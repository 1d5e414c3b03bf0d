"""Names and patterns: each stands for the points that it says, and for nothing before the start."""

import pytest

from model.config import StackConfig
from model.points import LAYER_KINDS, UnknownPoint, expand, points_of
from model.stack import Stack
from tests.model.tiny import L


@pytest.fixture
def config(every_stack: dict[str, Stack]) -> StackConfig:
    return every_stack["llama"].config


def expanded(config: StackConfig, name: str, start: int = 0) -> list[tuple[str, str]]:
    return [(answered, point.name) for answered, point in expand(name, config, start)]


def test_every_point_is_found_under_its_own_name(config: StackConfig) -> None:
    names = [point.name for point in points_of(config)]
    assert len(names) == len({*names}) == L * len(LAYER_KINDS) + 2
    assert all(expanded(config, name) == [(name, name)] for name in names)


@pytest.mark.parametrize(
    ("pattern", "start", "layers"),
    [("*", 0, [0, 1, 2]), ("*", 2, [2]), ("0-1", 0, [0, 1]), ("1-1", 0, [1]), ("0-2", 1, [1, 2])],
)
def test_a_pattern_stands_for_layers_from_the_start_on(
    config: StackConfig, pattern: str, start: int, layers: list[int]
) -> None:
    found = expanded(config, f"layers.{pattern}.q", start)
    assert [point for _, point in found] == [f"layers.{i}.q" for i in layers]


def test_aliases_keep_the_name_asked(config: StackConfig) -> None:
    assert expanded(config, "embeddings") == [("embeddings", "layers.0.resid_pre")]
    assert expanded(config, "hidden_states.1") == [("hidden_states.1", "layers.1.resid_pre")]
    assert expanded(config, f"hidden_states.{L}") == [(f"hidden_states.{L}", "final_norm")]


@pytest.mark.parametrize(
    ("name", "start", "word"),
    [
        ("layers.0.resid_pst", 0, "layers.0.resid_post"),
        ("layer.1.attn_probs", 0, "layers.1.attn_probs"),
        ("logit", 0, "logits"),
        ("", 0, "nearest"),
        ("layers.3.q", 0, "0 to 2"),
        (f"layers.{'9' * 5000}.q", 0, "0 to 2"),
        ("layers.-1.q", 0, "nearest"),
        ("layers.2-1.q", 0, "empty"),
        ("layers.0-3.q", 0, "0 to 2"),
        ("layers.٣.q", 0, "is not a point"),
        ("layers.00.q", 0, "layers.0.q"),
        ("hidden_states.4", 0, "hidden_states.3"),
        (f"hidden_states.{'9' * 5000}", 0, "hidden_states.3"),
        ("embeddings", 1, "before layer 1"),
        ("hidden_states.0", 1, "before layer 1"),
        ("layers.0.q", 1, "before layer 1"),
        ("layers.0-1.q", 2, "start 2"),
        ("layers.*.q", L, f"start {L}"),
    ],
)
def test_a_name_that_is_no_point_is_refused_in_words(config: StackConfig, name: str, start: int, word: str) -> None:
    with pytest.raises(UnknownPoint) as caught:
        expand(name, config, start)
    assert word in str(caught.value)
    assert len(str(caught.value)) < 200 + len(name)

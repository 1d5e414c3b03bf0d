"""Many sequences in one matrix: nobody's answer depends on who shares it, nor on what else is asked."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.points import LAYER_KINDS
from model.selection import Wanted
from model.sequence import Sequence
from model.stack import Stack
from tests.model.collect import (
    alone,
    ask,
    errors_above,
    row_error,
    same_bits,
    select,
    sequence,
    together,
    wants,
)
from tests.model.tiny import POSITIONS, L, V

pytestmark = pytest.mark.usefixtures("one_thread")

LIMIT = 2e-5  # of a row's largest magnitude, between a run in company and the same alone
EVERYTHING = ("embeddings", *(f"layers.*.{kind}" for kind in LAYER_KINDS), "final_norm", "logits")
ROWS_ONLY = ("layers.*.resid_pre", "layers.*.resid_mid", "layers.*.resid_post", "final_norm", "logits")

seeds = st.integers(0, 2**32 - 1)
lengths = st.integers(1, 40) | st.just(7)  # so that some are equal


def reals(stack: Stack, length: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((length, stack.config.d_model), dtype=np.float32)


def outputs_from(start: int) -> st.SearchStrategy[list[str]]:
    names = [f"layers.{i}.{kind}" for i in range(start, L) for kind in LAYER_KINDS]
    names += [] if start else ["embeddings"]
    return st.lists(st.sampled_from([*names, "final_norm", "logits"]), min_size=1, max_size=6, unique=True)


@st.composite
def sequences(draw: st.DrawFn, stack: Stack) -> Sequence:
    """Any sequence that this stack can run."""
    kind = draw(st.sampled_from(["x", "inputs_embeds", "tokens"]))
    length, seed = draw(lengths), draw(seeds)
    start = draw(st.integers(0, L)) if kind == "x" else 0
    takes_positions = stack.config.rotary_theta is not None or (stack.config.learned_positions and kind != "x")
    positions = None
    if takes_positions and draw(st.booleans()):
        positions = np.random.default_rng(seed).integers(0, POSITIONS, length).tolist()
    tokens = np.random.default_rng(seed).integers(0, V, length)
    rows = tokens if kind == "tokens" else reals(stack, length, seed)
    return sequence(stack, kind, rows, draw(outputs_from(start)), start=start, positions=positions)


@given(data=st.data())
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
def test_a_sequence_gets_the_same_answer_alone_and_in_company(stack: Stack, data: st.DataObject) -> None:
    batch = data.draw(st.lists(sequences(stack), min_size=2, max_size=7))
    for one, sink in zip(batch, together(stack, batch), strict=True):
        expected = alone(stack, one)
        assert sink.failed == []
        assert sorted(sink.found) == sorted(expected)
        assert errors_above(LIMIT, sink.found, expected) == {}


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_reaches_no_neighbour(stack: Stack, poison: float) -> None:
    def batch(middle: np.ndarray) -> list[Sequence]:
        rows = [reals(stack, 7, 1), middle, reals(stack, 13, 3)]
        return [sequence(stack, "x", x, EVERYTHING) for x in rows]

    clean = reals(stack, 11, 2)
    poisoned = clean.copy()
    poisoned[5, 3] = poison
    before, first, after = together(stack, batch(poisoned))
    expected = together(stack, batch(clean))
    for sink, of_clean in ((before, expected[0]), (after, expected[2])):
        assert sink.failed == []
        assert [name for name, x in of_clean.found.items() if not same_bits(sink.found[name], x)] == []
    assert {"layers.0.ln1", "layers.0.attn_probs", f"layers.{L - 1}.resid_post", "logits"} <= {*first.failed}


def test_asking_for_attention_maps_does_not_change_the_layer_outputs(stack: Stack) -> None:
    x = reals(stack, 37, 1)
    without = ask(stack, "x", x, *ROWS_ONLY)
    within = ask(stack, "x", x, *ROWS_ONLY, "layers.*.attn_probs", "layers.*.attn_scores")
    assert [name for name in without if not same_bits(without[name], within[name])] == []


@given(data=st.data())
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
def test_asking_for_more_changes_no_bit_of_the_rest(stack: Stack, data: st.DataObject) -> None:
    """Alone, and in company: what else a caller wants has no part in how its numbers are computed."""
    neighbour = data.draw(sequences(stack))
    one = data.draw(sequences(stack))
    more_names = data.draw(outputs_from(one.start))
    more = [w for w in wants(stack.config, *more_names, start=one.start) if w not in one.wanted]
    fewer_rows = select(stack.config, "logits", rows=(0,))
    more.append(Wanted("one row of logits", fewer_rows.point, rows=(0,)))
    both = data.draw(st.permutations([*one.wanted, *more]))
    asking_more = sequence(
        stack, one.kind, one.rows, both, start=one.start,
        positions=None if one.positions is None else one.positions.tolist(),
    )  # fmt: skip
    for company in ([], [neighbour]):
        little, much = (together(stack, [x, *company])[0].found for x in (one, asking_more))
        assert [name for name in little if not same_bits(little[name], much[name])] == []


def test_embeddings_posted_back_as_x_give_the_same_layers(stack: Stack) -> None:
    found = ask(stack, "tokens", np.arange(37) % V, *EVERYTHING)
    again = ask(stack, "x", found["embeddings"], *EVERYTHING)
    assert [name for name in found if not same_bits(found[name], again[name])] == []


@pytest.mark.parametrize("length", [1, 2, 7, 37])
@pytest.mark.parametrize("start", range(1, L + 1))
def test_a_layers_output_posted_as_x_to_the_next_goes_on_as_if_it_had_never_left(
    stack: Stack, start: int, length: int
) -> None:
    whole = ask(stack, "tokens", np.arange(length), *EVERYTHING)
    later = [name for name in EVERYTHING if start < L and name.startswith("layers.")]
    rest = ask(stack, "x", whole[f"layers.{start - 1}.resid_post"], *later, "final_norm", "logits", start=start)
    assert [name for name in rest if not same_bits(rest[name], whole[name])] == []


def test_rows_of_the_token_embedding_posted_as_inputs_embeds_are_tokens(stack: Stack) -> None:
    tokens = [40, 0, 7, 7, 23, 11, 2]
    assert stack.token_embedding is not None
    embedded = stack.token_embedding.weight[tokens].numpy()
    found, again = (
        ask(stack, kind, rows, *EVERYTHING) for kind, rows in (("tokens", tokens), ("inputs_embeds", embedded))
    )
    assert [name for name in found if not same_bits(found[name], again[name])] == []


def test_a_row_sees_no_later_row_where_the_family_is_causal(stack: Stack) -> None:
    x = reals(stack, 11, 1)
    changed = x.copy()
    changed[7:] = reals(stack, 4, 2)
    first, second = (ask(stack, "x", rows, *ROWS_ONLY) for rows in (x, changed))
    for name in first:
        seen = row_error(first[name][:7], second[name][:7]) > LIMIT
        assert seen is (not stack.config.causal and name not in ("layers.0.resid_pre",)), name


@contextmanager
def rows_run(stack: Stack) -> Iterator[Counter[int]]:
    """How many rows each layer is called with."""
    counted: Counter[int] = Counter()

    def watch(i: int) -> torch.utils.hooks.RemovableHandle:
        return stack.layers[i].register_forward_pre_hook(lambda _, args: counted.update({i: sum(args[1].lengths)}))

    handles = [watch(i) for i in range(L)]
    try:
        yield counted
    finally:
        for handle in handles:
            handle.remove()


@pytest.mark.parametrize(
    ("name", "start", "layers"),
    [
        ("embeddings", 0, []),
        ("layers.0.resid_pre", 0, []),
        ("layers.0.attn_probs", 0, [0]),
        ("layers.0.resid_post", 0, [0]),
        ("layers.1.resid_pre", 0, [0]),
        ("layers.1.resid_pre", 1, []),
        ("layers.1.q", 1, [1]),
        ("hidden_states.2", 0, [0, 1]),
        (f"layers.{L - 1}.resid_post", 0, [0, 1, 2]),
        (f"layers.{L - 1}.resid_post", 2, [2]),
        ("final_norm", 0, [0, 1, 2]),
        ("logits", 1, [1, 2]),
        ("logits", L, []),
    ],
)
def test_no_layer_runs_before_the_start_or_past_the_deepest_point_asked(
    stack: Stack, name: str, start: int, layers: list[int]
) -> None:
    with rows_run(stack) as counted:
        ask(stack, "x", reals(stack, 7, 1), name, start=start)
    assert counted == dict.fromkeys(layers, 7)


@given(data=st.data())
@settings(max_examples=40, deadline=None, derandomize=True, database=None)
def test_each_layer_runs_once_for_those_alone_who_need_it(stack: Stack, data: st.DataObject) -> None:
    batch = data.draw(st.lists(sequences(stack), min_size=1, max_size=7))
    with rows_run(stack) as counted:
        together(stack, batch)
    needed = {i: sum(one.length for one in batch if one.start <= i < one.stop) for i in range(L)}
    assert counted == {i: rows for i, rows in needed.items() if rows}


def test_query_head_h_uses_key_head_h_over_the_group_size(every_stack: dict[str, Stack]) -> None:
    stack = every_stack["llama"]
    assert (stack.config.n_heads, stack.config.n_kv_heads) == (6, 2)
    found = ask(stack, "x", reals(stack, 7, 1), *(f"layers.1.{kind}" for kind in ("q", "k", "v", "attn_probs", "z")))
    q, k, v, probs, z = (x.double() for x in found.values())
    above = torch.ones(7, 7, dtype=torch.bool).triu(1)
    for head in range(6):
        mine = (q[head] @ k[head // 3].T / 10**0.5).masked_fill(above, -torch.inf).softmax(-1)
        assert row_error(probs[head], mine) <= LIMIT
        assert row_error(z[head], mine @ v[head // 3]) <= LIMIT


@pytest.mark.parametrize("length", [1, 2, 37])
def test_masked_entries_are_exactly_zero_and_minus_infinity_and_rows_sum_to_one(stack: Stack, length: int) -> None:
    # large rows, so that some probabilities are very small without being masked
    x = 100 * reals(stack, length, 1)
    neighbours = [sequence(stack, "x", reals(stack, n, n), EVERYTHING) for n in (5, 11)]
    maps = sequence(stack, "x", x, ["layers.*.attn_probs", "layers.*.attn_scores"])
    found = together(stack, [neighbours[0], maps, neighbours[1]])[1].found
    masked = torch.full((length, length), stack.config.causal).triu(1)
    for i in range(L):
        probs, scores = found[f"layers.{i}.attn_probs"], found[f"layers.{i}.attn_scores"]
        assert (probs[:, masked] == 0).all()
        assert (scores[:, masked] == -torch.inf).all()
        assert scores[:, ~masked].isfinite().all()
        assert ((probs.double().sum(-1) - 1).abs() < 1e-6).all()
        assert (probs >= 0).all()

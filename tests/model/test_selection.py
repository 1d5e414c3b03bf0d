"""What is selected on the way out is what one would cut from the whole, in the shape announced beforehand."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

import model.maps
import model.run
from model.checkpoint.load import load_model
from model.points import HEAD_KINDS, LAYER_KINDS
from model.selection import Index, Wanted, heads_of, largest
from model.stack import Stack
from tests.model.collect import ask, point_error, row_error, same_bits, select, sequence, together
from tests.model.tiny import L, textbook

pytestmark = pytest.mark.usefixtures("one_thread")

N = 13
MAPS = ("attn_probs", "attn_scores")
# Products of another size round differently; the narrow dtypes keep 11 and 8 binary digits.
LIMIT = {"float32": 2e-5, "float16": 1e-3, "bfloat16": 8e-3}


def rows_of(stack: Stack, n: int = N, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, stack.config.d_model), dtype=np.float32)


def cut(x: Tensor, index: Index | None, axis: int) -> Tensor:
    if index is None:
        return x
    chosen = list(range(x.shape[axis]))[index] if isinstance(index, slice) else list(index)
    return torch.from_numpy(np.take(x.numpy(), chosen, axis=axis))


def cut_from_whole(whole: Tensor, wanted: Wanted) -> Tensor:
    """All of the selection but `top_k` and `dtype`."""
    row_axis = 1 if wanted.point.axes in ("heads", "map") else 0
    part = cut(whole, wanted.rows, row_axis)
    if wanted.heads is not None:
        part = cut(part, wanted.heads, 0)
    if wanted.keys is not None:
        part = cut(part, wanted.keys, 2)
    return part.double().mean(dim=0) if wanted.pool else part


def indices(n: int, *, runs: bool = True) -> st.SearchStrategy[Any]:
    """All, a list in any order with repeats, or a run of positions."""
    lists = st.lists(st.integers(0, n - 1), min_size=1, max_size=n + 3).map(tuple)
    starts = st.tuples(st.integers(0, n - 1), st.integers(1, n))
    spans = starts.map(lambda pair: slice(pair[0], min(n, pair[0] + pair[1])))
    return st.none() | lists | spans if runs else st.none() | lists


@st.composite
def selections(draw: st.DrawFn, stack: Stack) -> Wanted:
    layer = draw(st.integers(0, L - 1))
    kind = draw(st.sampled_from([*LAYER_KINDS, *HEAD_KINDS, *MAPS, "logits"]))
    whole = select(stack.config, kind if kind in HEAD_KINDS else f"layers.{layer}.{kind}")
    axes = whole.point.axes
    chosen: dict[str, Any] = {
        "rows": draw(indices(N)),
        "dtype": draw(st.sampled_from(["float32", "float16", "bfloat16"])),
    }
    if axes in ("heads", "map"):
        chosen["heads"] = draw(indices(heads_of(whole.point, stack.config), runs=False))
    if axes == "map":
        chosen["keys"] = draw(indices(N))
    if axes in ("map", "vocabulary"):
        chosen["top_k"] = draw(st.none() | st.integers(1, N + 2) | st.just(1000))
    if axes == "rows":
        chosen["pool"] = draw(st.booleans())
    return select(stack.config, whole.name, **chosen)


@given(data=st.data())
@settings(max_examples=150, deadline=None, derandomize=True, database=None)
def test_a_selection_is_what_one_would_cut_from_the_whole(stack: Stack, data: st.DataObject) -> None:
    wanted = data.draw(selections(stack))
    x = rows_of(stack)
    found = ask(stack, "x", x, wanted)  # whose sink compares shapes and dtypes with those announced
    part = cut_from_whole(ask(stack, "x", x, wanted.name)[wanted.name], wanted)
    if wanted.top_k is not None:
        check_top(found[f"{wanted.name}.values"], found[f"{wanted.name}.indices"], part, wanted)
    elif wanted.point.axes in ("map", "vocabulary") or wanted.pool:
        part = part.to(found[wanted.name].dtype)
        assert point_error(wanted.name, found[wanted.name], part) <= LIMIT[wanted.dtype]
    else:
        assert same_bits(found[wanted.name], part.to(found[wanted.name].dtype))


def check_top(values: Tensor, indices: Tensor, part: Tensor, wanted: Wanted) -> None:
    """Against a sort of what one would cut, but for the order of those that rounding makes equal."""
    k = min(wanted.top_k or 0, part.shape[-1])
    masked = {"attn_probs": 0.0, "attn_scores": -torch.inf}.get(wanted.point.kind)
    expected = part.sort(dim=-1, descending=True).values[..., :k]
    assert point_error(wanted.name, values, expected.to(values.dtype)) <= LIMIT[wanted.dtype]
    assert (values.diff(dim=-1) <= 0).all() or masked == -torch.inf  # -inf - -inf is no number
    gathered = part.gather(-1, indices.clamp(min=0).long())
    if masked is None:
        assert (indices >= 0).all()
    else:
        assert torch.equal(indices < 0, expected == masked)
        gathered = gathered.where(indices >= 0, masked)
    assert point_error(wanted.name, values, gathered.to(values.dtype)) <= LIMIT[wanted.dtype]
    for row in indices.reshape(-1, k).tolist():
        real = [i for i in row if i >= 0]
        assert len(set(real)) == len(real)


@given(data=st.data())
@settings(max_examples=200, deadline=None, derandomize=True, database=None)
def test_the_largest_come_first_and_among_equals_the_lowest_index(data: st.DataObject) -> None:
    columns, k = data.draw(st.integers(1, 50)), data.draw(st.integers(1, 50))
    few = [-np.inf, -1.0, 0.0, 0.5, 2.0]
    x = np.array(data.draw(st.lists(st.sampled_from(few), min_size=3 * columns, max_size=3 * columns)))
    x = x.reshape(3, columns)
    values, indices = largest(torch.from_numpy(x), k)
    order = np.argsort(-x, axis=-1, kind="stable")[:, :k]
    assert np.array_equal(indices.numpy(), order)
    assert indices.dtype == torch.int32
    assert np.array_equal(values.numpy(), np.take_along_axis(x, order, axis=-1))


Edit = Callable[[dict[str, Tensor]], None]


@pytest.fixture
def edited(tmp_path: Path) -> Callable[..., Stack]:
    """A textbook stack some of whose weights are changed first."""

    def made(edit: Edit, **keys: Any) -> Stack:
        textbook(tmp_path / "m", **keys)
        tensors = load_file(tmp_path / "m" / "model.safetensors")
        edit(tensors)
        save_file(tensors, tmp_path / "m" / "model.safetensors")
        return load_model(tmp_path / "m", name="m").stack

    return made


def times(name: str, factor: float) -> Edit:
    def edit(tensors: dict[str, Tensor]) -> None:
        tensors[name] *= factor

    return edit


def test_equal_entries_of_a_map_or_of_logits_are_taken_by_lowest_index(
    edited: Callable[..., Stack],
) -> None:
    def no_query_and_no_word(tensors: dict[str, Tensor]) -> None:
        tensors["layers.0.W_Q"].zero_()
        tensors["E"].zero_()

    stack = edited(no_query_and_no_word)
    found = ask(
        stack, "x", rows_of(stack, 5),
        *(select(stack.config, name, top_k=3) for name in ("layers.0.attn_probs", "layers.0.attn_scores", "logits")),
    )  # fmt: skip
    ranks = torch.tensor([[0, -1, -1], [0, 1, -1], [0, 1, 2], [0, 1, 2], [0, 1, 2]], dtype=torch.int32)
    for kind, masked in (("attn_probs", 0), ("attn_scores", -torch.inf)):
        assert torch.equal(found[f"layers.0.{kind}.indices"], ranks.expand(3, 5, 3))
        values = found[f"layers.0.{kind}.values"]
        assert (values[:, ranks < 0] == masked).all()
    assert torch.allclose(found["layers.0.attn_probs.values"][0, :, 0], 1 / torch.arange(1.0, 6))
    assert (found["logits.indices"] == torch.arange(3)).all()


def test_a_probability_too_small_for_float32_is_not_taken_for_a_masked_one(
    edited: Callable[..., Stack],
) -> None:
    stack = edited(times("layers.0.W_Q", 1e5))
    found = ask(
        stack, "x", rows_of(stack, 7),
        select(stack.config, "layers.0.attn_probs", top_k=7), "layers.0.attn_probs",
    )  # fmt: skip
    whole, indices = found["layers.0.attn_probs"], found["layers.0.attn_probs.indices"]
    assert (whole[:, 6] == 0).any()  # or the test shows nothing
    for head in indices.tolist():
        for row, of_row in enumerate(head):
            assert sorted(of_row) == [-1] * (6 - row) + list(range(row + 1))


@pytest.mark.parametrize("rows_a_block", [1, 2, 5])
def test_results_made_in_blocks_are_the_same(stack: Stack, monkeypatch: pytest.MonkeyPatch, rows_a_block: int) -> None:
    config, x = stack.config, rows_of(stack)
    selected = [
        select(config, name, **chosen)
        for name in ("layers.1.attn_probs", "layers.1.attn_scores")
        for chosen in ({}, {"top_k": 3}, {"keys": (7, 0), "rows": (12, 3, 3), "heads": (2, 0)})
    ]
    selected += [select(config, "logits", **chosen) for chosen in ({}, {"top_k": 3}, {"rows": slice(2, 9)})]
    whole = [ask(stack, "x", x, wanted) for wanted in selected]
    # of a map of 13 columns and all heads, and of 4-byte logits
    monkeypatch.setattr(model.maps, "BLOCK_BYTES", rows_a_block * 4 * N * config.n_heads)
    monkeypatch.setattr(model.run, "UNEMBEDDING_BYTES", rows_a_block * 4 * config.vocab_size)
    for wanted, expected in zip(selected, whole, strict=True):
        found = ask(stack, "x", x, wanted)
        for name in expected:
            if name.endswith("indices"):
                assert torch.equal(found[name], expected[name])
            else:
                assert point_error(name, found[name], expected[name]) <= 2e-5
    # blocks of logits may hold rows of several sequences
    batch = [sequence(stack, "x", rows_of(stack, n, n), ["logits"]) for n in (3, 1, 7)]
    for one, sink in zip(batch, together(stack, batch), strict=True):
        monkeypatch.setattr(model.run, "UNEMBEDDING_BYTES", 1 << 20)
        assert row_error(sink.found["logits"], ask(stack, "x", one.rows, "logits")["logits"]) <= 2e-5


def failures(stack: Stack, x: np.ndarray, *outputs: str | Wanted) -> tuple[list[str], list[str]]:
    """Points that failed, and names that were put."""
    (sink,) = together(stack, [sequence(stack, "x", x, outputs)])
    return sink.failed, sorted(sink.found)


def test_an_overflow_of_the_dtype_asked_fails_and_names_the_point(stack: Stack) -> None:
    x = rows_of(stack)
    x[5, 3] = 1e5
    half, brain = (select(stack.config, "layers.0.resid_pre", dtype=dtype) for dtype in ("float16", "bfloat16"))
    assert failures(stack, x, half, "layers.0.ln1") == (["layers.0.resid_pre"], ["layers.0.ln1"])
    assert failures(stack, x, brain) == ([], ["layers.0.resid_pre"])
    other_rows = select(stack.config, "layers.0.resid_pre", dtype="float16", rows=(4, 6))
    assert failures(stack, x, other_rows) == ([], ["layers.0.resid_pre"])
    pooled = select(stack.config, "layers.0.resid_pre", dtype="float16", pool=True)
    assert failures(stack, x, pooled) == ([], ["layers.0.resid_pre"])


@pytest.mark.parametrize("top_k", [None, 1])
def test_a_score_too_low_for_float16_fails_and_does_not_pass_for_a_masked_one(
    edited: Callable[..., Stack], top_k: int | None
) -> None:
    stack = edited(times("layers.0.W_Q", 1e6))
    x = rows_of(stack, 1)
    whole = ask(stack, "x", x, "layers.0.attn_scores")["layers.0.attn_scores"].flatten()
    low, high = int(whole.argmin()), int(whole.argmax())
    assert whole[low] < -65504 < 65504 < whole[high]  # of one row, so that nothing is masked
    for head in (low, high):
        half = select(stack.config, "layers.0.attn_scores", heads=(head,), dtype="float16", top_k=top_k)
        assert failures(stack, x, half) == (["layers.0.attn_scores"], [])
    masked = select(stack.config, "layers.1.attn_scores", dtype="float16")
    assert failures(stack, rows_of(stack, 7), masked) == ([], ["layers.1.attn_scores"])


@pytest.mark.parametrize("top_k", [None, 2])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_result_that_is_not_finite_fails_and_names_the_point(stack: Stack, value: float, top_k: int | None) -> None:
    x = rows_of(stack)
    x[5, 3] = value
    wanted = [
        select(stack.config, name, top_k=top_k) for name in ("layers.0.attn_probs", "layers.1.attn_scores", "logits")
    ]
    names = ["layers.0.resid_pre", "layers.0.q", "layers.0.z", "layers.2.mlp_out", "final_norm"]
    failed, found = failures(stack, x, *wanted, *names, "hidden_states.1")
    assert sorted(failed) == sorted([*(want.name for want in wanted), *names, "layers.1.resid_pre"])
    assert found == []


def test_an_alias_is_answered_under_the_name_asked(stack: Stack) -> None:
    found = ask(stack, "x", rows_of(stack), "embeddings", "hidden_states.0", "layers.0.resid_pre")
    assert len({name: x for name, x in found.items() if same_bits(x, found["embeddings"])}) == 3

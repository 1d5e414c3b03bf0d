"""What is asked for is what comes: every selection equals the same cut of the full answer."""

from typing import Any

import httpx
import numpy as np
import pytest

from tests.service.calls import Array, ask, assert_rows_close, ids, post, rows, same_bits

N, L, D, A, V = 11, 3, 30, 2, 101
KINDS = "resid_pre ln1 q k v attn_scores attn_probs z attn_out resid_mid ln2 mlp_out resid_post".split()
SHAPES = {
    **dict.fromkeys(KINDS, (N, D)),
    **dict.fromkeys(("q", "k"), (A, N, 7)),
    **dict.fromkeys(("v", "z"), (A, N, 5)),
    **dict.fromkeys(("attn_scores", "attn_probs"), (A, N, N)),
}


@pytest.fixture(scope="module")
def full(tiny: httpx.Client) -> dict[str, Array]:
    """Every point of one sequence."""
    asked = ["embeddings", *(f"layers.*.{kind}" for kind in KINDS), "final_norm", "logits"]
    return ask(tiny, {"tokens": ids(N), "outputs": asked})


def one(client: httpx.Client, output: Any, **fields: Any) -> Array:
    """The only tensor that an output gives."""
    (array,) = ask(client, {"tokens": ids(N)} | fields | {"outputs": [output]}).values()
    return array


def test_every_point_has_its_shape(full: dict[str, Array]) -> None:
    shapes = {f"layers.{i}.{kind}": SHAPES[kind] for i in range(L) for kind in KINDS}
    shapes |= {"embeddings": (N, D), "final_norm": (N, D), "logits": (N, V)}
    assert {name: array.shape for name, array in full.items()} == shapes
    assert {array.dtype for array in full.values()} == {np.dtype(np.float32)}


def test_the_points_of_a_layer_fit_together(full: dict[str, Array]) -> None:
    for i in range(L):
        at = {kind: full[f"layers.{i}.{kind}"] for kind in KINDS}
        np.testing.assert_allclose(at["resid_mid"], at["resid_pre"] + at["attn_out"], atol=1e-6)
        np.testing.assert_allclose(at["resid_post"], at["resid_mid"] + at["mlp_out"], atol=1e-6)
        np.testing.assert_allclose(at["z"], at["attn_probs"] @ at["v"], atol=1e-5)
        np.testing.assert_allclose(at["attn_probs"].sum(-1), 1, atol=1e-6)
        assert (at["attn_probs"][:, ~np.tri(N, dtype=bool)] == 0).all()
        if i:
            assert same_bits(at["resid_pre"], full[f"layers.{i - 1}.resid_post"])
    assert same_bits(full["embeddings"], full["layers.0.resid_pre"])


def test_an_output_may_be_a_list_a_bare_string_or_an_object(tiny: httpx.Client, full: dict[str, Array]) -> None:
    name = "layers.1.ln2"
    for asked in (name, [name], {"name": name}, [{"name": name}]):
        assert same_bits(ask(tiny, {"tokens": ids(N), "outputs": asked})[name], full[name])


@pytest.mark.parametrize("name", [f"layers.1.{kind}" for kind in KINDS] + ["embeddings", "final_norm", "logits"])
def test_what_else_is_asked_for_changes_nothing(tiny: httpx.Client, full: dict[str, Array], name: str) -> None:
    assert same_bits(one(tiny, name), full[name])


def test_outputs_come_in_the_order_asked(tiny: httpx.Client) -> None:
    asked = ["logits", "layers.2.q", "embeddings", "layers.0-1.v", "layers.0.q"]
    response = post(tiny, {"tokens": ids(3), "outputs": asked})
    expected = ["logits", "layers.2.q", "embeddings", "layers.0.v", "layers.1.v", "layers.0.q"]
    assert list(response.json()["outputs"]) == expected


@pytest.mark.parametrize(
    ("pattern", "layers"),
    [("layers.*.z", [0, 1, 2]), ("layers.1-2.z", [1, 2]), ("layers.0-2.z", [0, 1, 2]), ("layers.1-1.z", [1])],
)
def test_a_pattern_stands_for_its_layers_both_ends_included(
    tiny: httpx.Client, full: dict[str, Array], pattern: str, layers: list[int]
) -> None:
    found = ask(tiny, {"tokens": ids(N), "outputs": [pattern]})
    assert sorted(found) == [f"layers.{i}.z" for i in layers]
    assert all(same_bits(array, full[name]) for name, array in found.items())


def test_a_result_may_be_renamed(tiny: httpx.Client, full: dict[str, Array]) -> None:
    asked = [{"name": "layers.0.q", "as": "ours"}, {"name": "layers.0.q", "as": "layers.0.k"}, "layers.0.q"]
    found = ask(tiny, {"tokens": ids(N), "outputs": asked})
    assert set(found) == {"ours", "layers.0.k", "layers.0.q"}
    assert all(same_bits(array, full["layers.0.q"]) for array in found.values())


def test_a_pattern_may_be_given_a_prefix(tiny: httpx.Client, full: dict[str, Array]) -> None:
    asked = [{"name": "layers.1-2.q", "as": "last", "rows": [-1]}, "layers.*.q"]
    found = ask(tiny, {"tokens": ids(N), "outputs": asked})
    assert {name for name in found if name.startswith("last")} == {"last.layers.1.q", "last.layers.2.q"}
    assert same_bits(found["last.layers.2.q"], full["layers.2.q"][:, -1:])


@pytest.mark.parametrize("kind", ["q", "k", "v", "z", "attn_scores", "attn_probs"])
@pytest.mark.parametrize("heads", [[1], [0], [1, 0], [1, 1, 0]])
def test_heads_are_cut_out(tiny: httpx.Client, full: dict[str, Array], kind: str, heads: list[int]) -> None:
    found, expected = one(tiny, {"name": f"layers.1.{kind}", "heads": heads}), full[f"layers.1.{kind}"][heads]
    if kind in ("attn_scores", "attn_probs"):  # fewer heads may be another product, and differ in the last bit
        assert_rows_close(found, expected, 1e-6)
    else:
        assert same_bits(found, expected)


ROWS: list[tuple[Any, Any]] = [
    ([3], [3]),
    ([-1], [-1]),
    ([5, -11, 5, 10, 0], [5, 0, 5, 10, 0]),
    ({"start": 2, "stop": 7}, slice(2, 7)),
    ({"start": 3}, slice(3, None)),
    ({"stop": 4}, slice(0, 4)),
    ({"start": -4, "stop": -1}, slice(-4, -1)),
    ({}, slice(None)),
]


@pytest.mark.parametrize("kind", ["resid_post", "ln1", "v", "attn_scores", "attn_probs"])
@pytest.mark.parametrize(("rows_asked", "cut"), ROWS)
def test_rows_are_cut_out(tiny: httpx.Client, full: dict[str, Array], kind: str, rows_asked: Any, cut: Any) -> None:
    whole = full[f"layers.1.{kind}"]
    expected = np.ascontiguousarray(whole[cut] if whole.ndim == 2 else whole[:, cut])
    assert_rows_close(one(tiny, {"name": f"layers.1.{kind}", "rows": rows_asked}), expected, 1e-6)


@pytest.mark.parametrize("name", ["final_norm", "logits", "embeddings"])
@pytest.mark.parametrize(("rows_asked", "cut"), ROWS)
def test_rows_of_points_outside_the_layers_are_cut_out(
    tiny: httpx.Client, full: dict[str, Array], name: str, rows_asked: Any, cut: Any
) -> None:
    assert_rows_close(one(tiny, {"name": name, "rows": rows_asked}), np.ascontiguousarray(full[name][cut]), 1e-6)


@pytest.mark.parametrize("kind", ["attn_scores", "attn_probs"])
@pytest.mark.parametrize(("keys", "cut"), ROWS)
def test_keys_are_columns_of_maps(tiny: httpx.Client, full: dict[str, Array], kind: str, keys: Any, cut: Any) -> None:
    expected = np.ascontiguousarray(full[f"layers.1.{kind}"][:, :, cut])
    found = one(tiny, {"name": f"layers.1.{kind}", "keys": keys})
    np.testing.assert_array_equal(np.isneginf(found), np.isneginf(expected))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["attn_scores", "attn_probs"])
def test_heads_rows_and_keys_go_together(tiny: httpx.Client, full: dict[str, Array], kind: str) -> None:
    asked = {"name": f"layers.2.{kind}", "heads": [1, 0], "rows": [10, 3, -3], "keys": {"start": 1, "stop": 6}}
    expected = full[f"layers.2.{kind}"][[1, 0]][:, [10, 3, 8]][:, :, 1:6]
    np.testing.assert_allclose(one(tiny, asked), expected, rtol=1e-5, atol=1e-6)


def largest(whole: Array, k: int, masked: float | None) -> tuple[Array, Array]:
    """The k largest of each row by numpy: ties by lowest index, index -1 where nothing unmasked is left."""
    order = np.argsort(-whole, axis=-1, kind="stable")[..., :k]
    values = np.take_along_axis(whole, order, -1)
    gone = np.take_along_axis(np.zeros(whole.shape, bool) | (whole == masked), order, -1)
    return np.where(gone, masked, values) if masked is not None else values, np.where(gone, -1, order)


@pytest.mark.parametrize("k", [1, 4, N, 89])
@pytest.mark.parametrize(("name", "masked"), [("attn_probs", 0.0), ("attn_scores", -np.inf), ("logits", None)])
def test_top_k_is_the_largest_of_each_row(
    tiny: httpx.Client, full: dict[str, Array], name: str, masked: float | None, k: int
) -> None:
    point = name if name == "logits" else f"layers.1.{name}"
    whole = full[point]
    found = ask(tiny, {"tokens": ids(N), "outputs": [{"name": point, "top_k": k, "as": "top"}]})
    assert set(found) == {"top.values", "top.indices"}
    assert found["top.indices"].dtype == np.int32
    assert found["top.values"].shape == found["top.indices"].shape == (*whole.shape[:-1], min(k, whole.shape[-1]))
    values, indices = largest(whole, k, masked)
    np.testing.assert_array_equal(found["top.indices"], indices)
    np.testing.assert_allclose(found["top.values"], values, rtol=1e-6)


@pytest.mark.parametrize(("kind", "masked"), [("attn_probs", 0.0), ("attn_scores", -np.inf)])
def test_the_indices_of_a_top_k_with_keys_count_among_the_chosen_columns(
    tiny: httpx.Client, full: dict[str, Array], kind: str, masked: float
) -> None:
    keys = [6, 1, 3, 1]  # row 2 sees one of them, twice
    point = {"name": f"layers.1.{kind}", "rows": [-1, 2], "heads": [1], "keys": keys, "top_k": 3, "as": "top"}
    found = ask(tiny, {"tokens": ids(N), "outputs": [point]})
    cut = full[f"layers.1.{kind}"][1:, [-1, 2]][..., keys]
    values, indices = largest(cut, 3, masked)
    assert indices.max() == len(keys) - 1
    assert (indices[0, 1] == [1, 3, -1]).all()
    np.testing.assert_array_equal(found["top.indices"], indices)
    np.testing.assert_allclose(found["top.values"], values, rtol=1e-6)


def test_top_k_keeps_its_plain_name_without_as(tiny: httpx.Client) -> None:
    found = ask(tiny, {"tokens": ids(N), "outputs": [{"name": "layers.0-1.attn_probs", "top_k": 2}, "logits"]})
    assert set(found) == {
        *("layers.0.attn_probs.values", "layers.0.attn_probs.indices"),
        *("layers.1.attn_probs.values", "layers.1.attn_probs.indices", "logits"),
    }


def test_equal_values_are_ordered_by_lowest_index(tiny: httpx.Client) -> None:
    # equal rows without positions give equal keys, and so equal scores
    x = np.repeat(rows(1), 7, axis=0).tolist()
    found = ask(tiny, {"x": x, "outputs": [{"name": "layers.0.attn_probs", "top_k": 3, "as": "top", "rows": [-1]}]})
    np.testing.assert_array_equal(found["top.indices"], np.broadcast_to([0, 1, 2], (2, 1, 3)))


@pytest.mark.parametrize("kind", ["resid_pre", "ln1", "mlp_out", "resid_post"])
@pytest.mark.parametrize(("rows_asked", "cut"), [(None, slice(None)), *ROWS[2:5]])
def test_pool_is_the_mean_of_the_rows_chosen(
    tiny: httpx.Client, full: dict[str, Array], kind: str, rows_asked: Any, cut: Any
) -> None:
    asked = {"name": f"layers.1.{kind}", "pool": "mean"} | ({} if rows_asked is None else {"rows": rows_asked})
    found = one(tiny, asked)
    assert found.shape == (D,)
    np.testing.assert_allclose(found, full[f"layers.1.{kind}"][cut].mean(0, dtype=np.float64), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", ["layers.1.z", "layers.2.attn_scores", "layers.0.mlp_out", "logits"])
def test_dtype_is_what_the_result_is_rounded_to(
    tiny: httpx.Client, full: dict[str, Array], name: str, dtype: str
) -> None:
    assert same_bits(one(tiny, {"name": name, "dtype": dtype}), full[name].astype(dtype))


def test_bfloat16_is_the_upper_half_of_float32_rounded_to_even(tiny: httpx.Client, full: dict[str, Array]) -> None:
    bits = full["logits"].view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16).astype(np.uint32).view(np.float32)
    assert same_bits(one(tiny, {"name": "logits", "dtype": "bfloat16"}), rounded)


def test_dtype_of_a_top_k_is_of_its_values_alone(tiny: httpx.Client) -> None:
    found = ask(tiny, {"tokens": ids(N), "outputs": [{"name": "logits", "top_k": 3, "dtype": "float16"}]})
    assert found["logits.values"].dtype == np.float16
    assert found["logits.indices"].dtype == np.int32


def test_hidden_states_are_counted_as_hugging_face_does(tiny: httpx.Client, full: dict[str, Array]) -> None:
    asked = [f"hidden_states.{k}" for k in range(L + 1)]
    found = ask(tiny, {"tokens": ids(N), "outputs": asked})
    assert sorted(found) == asked
    for k in range(L):
        assert same_bits(found[f"hidden_states.{k}"], full[f"layers.{k}.resid_pre"])
    assert same_bits(found[f"hidden_states.{L}"], full["final_norm"])


def test_hidden_states_of_a_gpt2_end_after_the_final_norm(mgm_client: httpx.Client) -> None:
    asked = ["hidden_states.7", "hidden_states.8", "layers.7.resid_pre", "final_norm"]
    found = ask(mgm_client, {"tokens": ids(N, 9669), "outputs": asked})
    assert same_bits(found["hidden_states.7"], found["layers.7.resid_pre"])
    assert same_bits(found["hidden_states.8"], found["final_norm"])


def test_an_alias_may_be_cut_and_renamed_as_the_point_itself(tiny: httpx.Client, full: dict[str, Array]) -> None:
    asked = [
        {"name": "hidden_states.3", "rows": [-1], "as": "last"},
        {"name": "embeddings", "pool": "mean"},
        "hidden_states.0",
    ]
    found = ask(tiny, {"tokens": ids(N), "outputs": asked})
    assert same_bits(found["last"], full["final_norm"][-1:])
    np.testing.assert_allclose(found["embeddings"], full["embeddings"].mean(0), atol=1e-6)
    assert same_bits(found["hidden_states.0"], full["embeddings"])


@pytest.mark.parametrize("start", [0, 1, 2])
def test_the_stack_goes_on_from_any_layer(tiny: httpx.Client, full: dict[str, Array], start: int) -> None:
    x = full[f"layers.{start}.resid_pre"]
    asked = [*(f"layers.*.{kind}" for kind in KINDS), "final_norm", "logits"]
    found = ask(tiny, {"start": start, "outputs": asked}, {"x": x})
    assert len(found) == len(KINDS) * (L - start) + 2
    assert same_bits(found[f"layers.{start}.resid_pre"], x)
    for name, array in found.items():
        assert same_bits(array, full[name]), name


@pytest.mark.parametrize("start", [0, 1, 2])
def test_the_first_matrix_gives_x_back_bit_by_bit(tiny: httpx.Client, start: int) -> None:
    x = rows(N)
    x[3, 5] = np.float32(3.4e38)
    asked = {"start": start, "outputs": [f"layers.{start}.resid_pre"]}
    assert same_bits(ask(tiny, asked, {"x": x})[f"layers.{start}.resid_pre"], x)


def test_start_after_the_last_layer_runs_the_final_norm_and_the_unembedding_alone(
    tiny: httpx.Client, full: dict[str, Array]
) -> None:
    found = ask(tiny, {"start": L, "outputs": ["final_norm", "logits"]}, {"x": full["layers.2.resid_post"]})
    assert same_bits(found["final_norm"], full["final_norm"])
    assert same_bits(found["logits"], full["logits"])


def test_logits_of_chosen_rows_are_those_of_all(smollm2_client: httpx.Client) -> None:
    asked = [{"name": "logits", "rows": [-1], "as": "last"}, {"name": "logits", "top_k": 5, "as": "top"}, "logits"]
    found = ask(smollm2_client, {"tokens": ids(13, 49152), "outputs": asked})
    assert found["logits"].shape == (13, 49152)
    assert_rows_close(found["last"], found["logits"][-1:])
    np.testing.assert_array_equal(found["top.indices"][:, 0], found["logits"].argmax(-1))


def test_grouped_queries_give_a_map_for_each_query_head(smollm2_client: httpx.Client) -> None:
    asked = ["layers.7.q", "layers.7.k", "layers.7.v", "layers.7.attn_scores", "layers.7.attn_probs"]
    found = ask(smollm2_client, {"tokens": ids(13, 49152), "outputs": asked})
    assert [found[name].shape[0] for name in asked] == [9, 3, 3, 9, 9]
    q, k = found["layers.7.q"], found["layers.7.k"].repeat(3, axis=0)
    scores = q @ k.transpose(0, 2, 1) / 8
    scores[:, ~np.tri(13, dtype=bool)] = -np.inf
    np.testing.assert_allclose(found["layers.7.attn_scores"], scores, rtol=1e-4, atol=1e-4)

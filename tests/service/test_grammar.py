"""Whatever legal request comes, in whatever format, the answer is the same cut of the textbook's float64 run."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.reference import embed, textbook
from tests.server import serving
from tests.service.calls import Array, ask, ids, post, rows

L, A, D, V = 3, 2, 30, 101
ROW_KINDS = ("resid_pre", "ln1", "attn_out", "resid_mid", "ln2", "mlp_out", "resid_post")
HEAD_KINDS = ("q", "k", "v", "z")
MAP_KINDS = ("attn_scores", "attn_probs")
# of a row's largest magnitude: half precision rounds to 11 and 8 bits
TOLERANCE = {"float32": 5e-5, "float16": 1e-3, "bfloat16": 8e-3}


@pytest.fixture(scope="module")
def streaming(tiny_directory: Path) -> Iterator[httpx.Client]:
    """The tiny model on a server that streams every safetensors answer."""
    with serving(tiny_directory, "--threads", "1", "--stream-above-bytes", "1") as server, server.client() as client:
        yield client


class Weights(dict[str, Array]):
    """The weights in float64, with a short word for them where a failing example is shown."""

    def __repr__(self) -> str:
        return "the weights"


@pytest.fixture(scope="module")
def weights(tiny_weights: dict[str, Array]) -> Weights:
    return Weights((name, x.astype(np.float64)) for name, x in tiny_weights.items())


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    """One to three inputs of different lengths and kinds, and outputs that are right for each of them."""
    inputs = []
    for seed in range(draw(st.integers(1, 3))):
        n = draw(st.integers(1, 19))
        kind = draw(st.sampled_from(("tokens", "x", "inputs_embeds")))
        one: dict[str, Any] = {"n": n, "kind": kind, "seed": seed, "start": 0, "positions": None}
        if kind == "x":
            one["start"] = draw(st.integers(0, L))
        elif draw(st.booleans()):
            one["positions"] = draw(st.lists(st.integers(0, 60), min_size=n, max_size=n))
        inputs.append(one)
    shortest, start = min(one["n"] for one in inputs), max(one["start"] for one in inputs)
    outputs = [draw(output(i, shortest, start)) for i in range(draw(st.integers(1, 4)))]
    return {"inputs": inputs, "outputs": outputs, "several": len(inputs) > 1 or draw(st.booleans())}


def own_name(name: str) -> str:
    """The name under which the reference has a point."""
    alias, _, k = name.partition(".")
    if alias != "hidden_states":
        return name
    return "final_norm" if int(k) == L else f"layers.{k}.resid_pre"


def kind_of(name: str) -> str:
    kind = own_name(name).rpartition(".")[2]
    return "resid_pre" if kind == "embeddings" else kind


def places(n: int) -> st.SearchStrategy[Any]:
    """Rows or keys of the grammar: none, a list, a range."""
    ranges = st.integers(0, n - 1).flatmap(lambda a: st.integers(a + 1, n).map(lambda b: {"start": a, "stop": b}))
    return st.none() | st.lists(st.integers(-n, n - 1), min_size=1, max_size=5) | ranges


@st.composite
def output(draw: st.DrawFn, number: int, n: int, start: int) -> dict[str, Any]:
    names = ["final_norm", "logits", f"hidden_states.{draw(st.integers(start, L))}"]
    names += [] if start else ["embeddings"]
    if start < L:
        kind = draw(st.sampled_from(ROW_KINDS + HEAD_KINDS + MAP_KINDS))
        layer = draw(st.integers(start, L - 1).map(str) | st.just("*") | st.just(f"{start}-{L - 1}"))
        names += [f"layers.{layer}.{kind}"] * 4
    name = draw(st.sampled_from(names))
    kind = kind_of(name)
    chosen: dict[str, Any] = {"name": name, "as": f"out{number}", "rows": draw(places(n))}
    chosen["dtype"] = draw(st.sampled_from(tuple(TOLERANCE)))
    if kind in HEAD_KINDS + MAP_KINDS:
        chosen["heads"] = draw(st.none() | st.lists(st.integers(0, A - 1), min_size=1, max_size=3))
    if kind in MAP_KINDS:
        chosen["keys"] = draw(places(n))
    if kind in (*MAP_KINDS, "logits"):
        chosen["top_k"] = draw(st.none() | st.integers(1, 7))
    if kind in (*ROW_KINDS, "final_norm"):
        chosen["pool"] = draw(st.none() | st.just("mean"))
    return {key: value for key, value in chosen.items() if value is not None}


def taken(x: Array, chosen: Any, axis: int) -> Array:
    if chosen is None:
        return x
    return x.take(chosen if isinstance(chosen, list) else range(chosen["start"], chosen["stop"]), axis)


def cut(full: Array, kind: str, chosen: dict[str, Any]) -> Array:
    """What numpy makes of the whole point, but for top_k and dtype."""
    if kind in HEAD_KINDS + MAP_KINDS:
        full = taken(taken(full, chosen.get("heads"), 0), chosen.get("rows"), 1)
        return taken(full, chosen.get("keys"), 2)
    full = taken(full, chosen.get("rows"), 0)
    return full.mean(axis=0) if chosen.get("pool") else full


def size_of(full: Array, kind: str) -> float:
    """What the errors of scores are measured against: in the few keys of an early row they may all but cancel."""
    return float(np.abs(full[np.isfinite(full)]).max()) if kind == "attn_scores" else 0.0


def assert_close(found: Array, expected: Array, tolerance: float, size: float = 0.0) -> None:
    """Each row within the tolerance of its own largest magnitude, or of a size that is larger."""
    assert found.shape == expected.shape
    masked = np.isneginf(expected)
    np.testing.assert_array_equal(np.isneginf(found), masked)
    found, expected = (np.where(masked, 0, x).astype(np.float64) for x in (found, expected))
    assert (np.abs(found - expected).max(-1) <= tolerance * np.maximum(np.abs(expected).max(-1), size)).all()


def assert_largest(
    values: Array, indices: Array, expected: Array, k: int, kind: str, tolerance: float, size: float
) -> None:
    """The k largest of each row: their indices point at them, no other entry is larger, masked ones are marked."""
    k = min(k, expected.shape[-1])
    assert values.shape == indices.shape == (*expected.shape[:-1], k)
    assert indices.dtype == np.int32
    least = -np.inf if kind == "attn_scores" else 0.0
    unmasked = (
        np.isfinite(expected) if kind == "attn_scores" else expected != 0 if kind == "attn_probs" else expected > -1e9
    )
    for place in np.ndindex(expected.shape[:-1]):
        row, found, where = expected[place], values[place], indices[place]
        count = min(k, int(unmasked[place].sum()))
        assert (where[count:] == -1).all()
        assert (found[count:] == least).all()
        slack = tolerance * np.abs(row[unmasked[place]]).max(initial=size)
        assert len(set(where[:count])) == count
        assert np.abs(row[where[:count]] - found[:count]).max(initial=0.0) <= slack
        assert np.abs(np.sort(row[unmasked[place]])[::-1][:count] - found[:count]).max(initial=0.0) <= slack


def references(one: dict[str, Any], w: dict[str, Array]) -> tuple[Any, dict[str, Array]]:
    """What an input sends, and every point of its float64 run."""
    if one["kind"] == "tokens":
        sent: Any = ids(one["n"], seed=one["seed"])
        x = embed(sent, w, one["positions"])
    else:
        sent = rows(one["n"], seed=one["seed"])
        x = sent.astype(np.float64)
        if one["kind"] == "inputs_embeds":
            x = x + w["P"][range(one["n"]) if one["positions"] is None else one["positions"]]
    return sent, textbook(x, w, n_layers=L, causal=True, start=one["start"])


@given(
    request=requests(), body=st.sampled_from(("json", "safetensors")), accept=st.sampled_from(("json", "safetensors"))
)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_legal_request_gets_the_reference_cut_as_it_asked(
    streaming: httpx.Client,
    weights: Weights,
    request: dict[str, Any],
    body: str,
    accept: str,
) -> None:
    fields: dict[str, Any] = {"outputs": request["outputs"]}
    tensors: dict[str, Array] = {}
    expected: dict[str, tuple[Array, dict[str, Any], str, float]] = {}
    listed = []
    for i, one in enumerate(request["inputs"]):
        sent, points = references(one, weights)
        prefix = f"{i}." if request["several"] else ""
        beside = {key: one[key] for key in ("start", "positions") if one[key]}
        if body == "safetensors":
            tensors[prefix + one["kind"]] = np.asarray(sent)
        else:
            beside[one["kind"]] = sent if isinstance(sent, list) else sent.tolist()
        listed.append(beside)
        for chosen in request["outputs"]:
            kind = kind_of(chosen["name"])
            layers = range(one["start"], L) if "*" in chosen["name"] or "-" in chosen["name"] else [None]
            if "-" in chosen["name"]:
                layers = range(int(chosen["name"].split(".")[1].split("-")[0]), L)
            for layer in layers:
                name = chosen["name"] if layer is None else f"layers.{layer}.{kind}"
                shown = chosen["as"] if layer is None else f"{chosen['as']}.{name}"
                expected[prefix + shown] = (
                    cut(points[own_name(name)], kind, chosen),
                    chosen,
                    kind,
                    size_of(points[own_name(name)], kind),
                )
    if request["several"]:
        fields["inputs"] = listed
    else:
        fields |= listed[0]

    found = ask(streaming, fields, tensors, body=body, accept=accept)

    for name, (values, chosen, kind, size) in expected.items():
        tolerance = TOLERANCE["float32"] + (TOLERANCE[chosen["dtype"]] if chosen["dtype"] != "float32" else 0)
        if "top_k" in chosen:
            assert_largest(
                found.pop(f"{name}.values"),
                found.pop(f"{name}.indices"),
                values,
                chosen["top_k"],
                kind,
                tolerance,
                size,
            )
        else:
            assert_close(found.pop(name), values, tolerance, size)
    assert not found, "more came than was asked for"


def test_the_same_in_npy(streaming: httpx.Client, weights: Weights) -> None:
    sent, points = references({"n": 7, "kind": "x", "seed": 5, "start": 1, "positions": None}, weights)
    response = post(
        streaming,
        {"start": 1, "outputs": [{"name": "layers.2.z", "heads": [1]}]},
        {"x": sent},
        body="npy",
        accept="npy",
    )
    assert response.status_code == 200
    from io import BytesIO

    assert_close(np.load(BytesIO(response.content)), points["layers.2.z"][[1]], TOLERANCE["float32"])

"""Three formats in, three out: the same numbers, the same refusals, and bodies that the official libraries read."""

import io
import json
import struct
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from safetensors import safe_open

from tests.service.calls import Array, ask, body_of, from_json, ids, outputs, post, problem, rows, same_bits

N = 7
X = rows(N)
ONE = {"outputs": ["layers.1.mlp_out"]}
FORMATS = ("json", "safetensors", "npy")


def raw(client: httpx.Client, content: bytes, content_type: str, **headers: str) -> httpx.Response:
    return client.post("/forward", content=content, headers={"Content-Type": content_type, **headers})


def header_of(body: bytes) -> tuple[dict[str, Any], int]:
    (size,) = struct.unpack_from("<Q", body)
    return json.loads(body[8 : 8 + size]), 8 + size


@pytest.mark.parametrize("body", FORMATS)
@pytest.mark.parametrize("accept", FORMATS)
def test_every_pair_of_formats_gives_the_same_bits(tiny: httpx.Client, body: str, accept: str) -> None:
    (expected,) = ask(tiny, ONE, {"x": X}, body="json", accept="safetensors").values()
    response = post(tiny, ONE, {"x": X}, body=body, accept=accept)
    (found,) = outputs(response).values()
    assert same_bits(found, expected)
    assert response.headers["content-type"] == f"application/{'' if accept == 'json' else 'x-'}{accept}"


@pytest.mark.parametrize("body", FORMATS)
def test_token_ids_give_the_same_bits_in_every_format(tiny: httpx.Client, body: str) -> None:
    tokens = np.array(ids(N))
    (expected,) = ask(tiny, ONE, {"tokens": tokens}).values()
    (found,) = ask(tiny, ONE, {"tokens": tokens}, body=body).values()
    assert same_bits(found, expected)


@pytest.mark.parametrize("accept", FORMATS[:2])
def test_all_points_come_out_of_both_formats_with_the_same_bits(tiny: httpx.Client, accept: str) -> None:
    fields = {"outputs": ["layers.*.attn_scores", "layers.*.attn_probs", "layers.*.v", "final_norm", "logits"]}
    expected = ask(tiny, fields, {"x": X}, accept="safetensors")
    found = ask(tiny, fields, {"x": X}, accept=accept)
    assert found.keys() == expected.keys()
    assert len(found) == 3 * 3 + 2
    for name, array in expected.items():
        assert same_bits(found[name], array), name


@pytest.mark.parametrize(
    ("tensors", "pointer", "status"),
    [
        ({"x": rows(N, 29)}, "/x", 422),
        ({"x": rows(0)}, "/x", 422),
        ({"tokens": np.array([5, 101])}, "/tokens/1", 422),
        ({"tokens": np.array([-1, 5])}, "/tokens/0", 422),
        ({"tokens": np.zeros(67, np.int64)}, "/tokens", 422),
        ({"x": np.full((2, 30), 1e300)}, "/x/0/0", 422),
    ],
    ids=["width", "no rows", "id over", "id under", "too many", "not finite in float32"],
)
def test_the_same_fault_is_the_same_refusal_in_every_format(
    tiny: httpx.Client, tensors: dict[str, Array], pointer: str, status: int
) -> None:
    bodies = [problem(post(tiny, {}, tensors, body=body, accept=body), status) for body in FORMATS]
    assert all(one["code"] == bodies[0]["code"] for one in bodies)
    assert [one["errors"][0]["pointer"] for one in bodies] == [pointer] * 3
    if tensors != {} and "x" in tensors and len(tensors["x"]):
        assert all(one["detail"] == bodies[1]["detail"] for one in bodies)


@pytest.mark.parametrize("accept", FORMATS)
def test_a_fault_in_a_field_is_the_same_refusal_in_every_format(tiny: httpx.Client, accept: str) -> None:
    fields = {"outputs": [{"name": "layers.1.attn_probs", "heads": [2]}]}
    for body in FORMATS:
        refusal = problem(post(tiny, fields, {"x": X}, body=body, accept=accept), 422)
        assert refusal["errors"][0]["pointer"] == "/outputs/0/heads/0"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_x_may_be_of_any_floating_point_type(tiny: httpx.Client, dtype: torch.dtype) -> None:
    x = torch.from_numpy(X).to(dtype)
    (expected,) = ask(tiny, ONE, {"x": x.float().numpy()}).values()
    content = safetensors.torch.save({"x": x}, {"request": json.dumps(ONE)})
    (found,) = outputs(raw(tiny, content, "application/x-safetensors", Accept="application/x-npy")).values()
    assert same_bits(found, expected)


@pytest.mark.parametrize("width", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
@pytest.mark.parametrize("body", ["safetensors", "npy"])
def test_tokens_may_be_of_any_integer_type(tiny: httpx.Client, width: str, body: str) -> None:
    tokens = np.array(ids(N))
    (expected,) = ask(tiny, ONE, {"tokens": tokens}).values()
    (found,) = ask(tiny, ONE, {"tokens": tokens.astype(width)}, body=body).values()
    assert same_bits(found, expected)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("descr", ["<f8", ">f8", "<f4", ">f4", "<f2", ">f2"])
def test_npy_arrays_may_have_any_byte_order_and_layout(tiny: httpx.Client, descr: str, order: Any) -> None:
    x = np.asarray(X.astype(descr), order=order)
    (expected,) = ask(tiny, ONE, {"x": x.astype(np.float32)}).values()
    (found,) = ask(tiny, ONE, {"x": x}, body="npy", accept="npy").values()
    assert same_bits(found, expected)


@pytest.mark.parametrize("body", ["safetensors", "npy"])
def test_the_other_fields_travel_beside_a_binary_body(tiny: httpx.Client, body: str) -> None:
    fields = {"start": 1, "outputs": [{"name": "layers.2.z", "heads": [1], "rows": [-1, 3], "as": "asked"}]}
    expected = ask(tiny, fields, {"x": X}, body="json")
    assert list(expected) == ["asked"]
    found = ask(tiny, fields, {"x": X}, body=body)
    assert list(found) == ["asked"]
    assert found["asked"].shape == (1, 2, 5)
    assert same_bits(found["asked"], expected["asked"])


@pytest.mark.parametrize("body", ["safetensors", "npy"])
def test_a_binary_body_needs_no_other_fields(tiny: httpx.Client, body: str) -> None:
    request = body_of({}, {"x": X}, body)
    request.pop("params", None)
    if body == "safetensors":
        request["content"] = safetensors.numpy.save({"x": X})
    found = outputs(tiny.post("/forward", **request))
    assert list(found) == ["layers.2.resid_post"]


def test_several_inputs_travel_as_numbered_tensors(tiny: httpx.Client) -> None:
    tensors = {"0.x": X, "1.tokens": np.array(ids(11)), "2.inputs_embeds": rows(5)}
    fields = {"inputs": [{"start": 2}, {}, {}], "outputs": ["final_norm"]}
    found = ask(tiny, fields, tensors, body="safetensors")
    assert {name: array.shape for name, array in found.items()} == {
        "0.final_norm": (7, 30),
        "1.final_norm": (11, 30),
        "2.final_norm": (5, 30),
    }
    listed = [{"x": X.tolist(), "start": 2}, {"tokens": ids(11)}, {"inputs_embeds": rows(5).tolist()}]
    expected = ask(tiny, fields | {"inputs": listed})
    for name, array in expected.items():
        assert same_bits(found[name], array), name


def test_one_numbered_tensor_is_a_list_of_one(tiny: httpx.Client) -> None:
    response = post(tiny, {}, {"0.x": X}, body="safetensors")
    assert list(response.json()["outputs"]) == ["0.layers.2.resid_post"]
    assert [one["tokens"] for one in response.json()["usage"]] == [7]


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (None, "json"),
        ("", "json"),
        ("*/*", "json"),
        ("application/*", "json"),
        ("application/json", "json"),
        ("APPLICATION/JSON", "json"),
        ("application/json; charset=utf-8", "json"),
        ("application/x-safetensors", "safetensors"),
        ("application/x-npy", "npy"),
        ("application/json;q=0.5, application/x-npy;q=0.7", "npy"),
        ("application/x-npy;q=0.3,application/x-safetensors; q=0.31", "safetensors"),
        ("text/html, application/x-safetensors;q=0.1", "safetensors"),
        ("text/html,application/xhtml+xml,*/*;q=0.8", "json"),
        ("application/json;q=0, */*", "safetensors"),
        ("application/x-npy, */*;q=0.1", "npy"),
        ("*/*;q=0.9, application/json;q=0.2", "safetensors"),
    ],
)
def test_accept_chooses_the_format_of_the_answer(tiny: httpx.Client, accept: str | None, expected: str) -> None:
    request = body_of({}, {"x": X}, "json")
    if accept is not None:
        request["headers"]["Accept"] = accept
    response = tiny.post("/forward", **request)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].removeprefix("application/").removeprefix("x-") == expected


@pytest.mark.parametrize("accept", ["text/html", "application/json;q=0", "image/*", "application/x-npz", "nonsense"])
def test_an_accept_that_nothing_fits_is_refused_with_what_is_offered(tiny: httpx.Client, accept: str) -> None:
    refusal = problem(post(tiny, {}, {"x": X}, accept=accept), 406)
    for offered in ("application/json", "application/x-safetensors", "application/x-npy"):
        assert offered in refusal["detail"]


@pytest.mark.parametrize(
    "asked",
    [
        ["layers.0.q", "layers.1.q"],
        ["layers.*.z"],
        [{"name": "logits", "top_k": 3}],
        [{"name": "layers.1.z", "dtype": "bfloat16"}],
    ],
    ids=["two", "pattern", "top_k", "bfloat16"],
)
def test_npy_refuses_what_it_cannot_carry(tiny: httpx.Client, asked: list[Any]) -> None:
    problem(post(tiny, {"outputs": asked}, {"x": X}, accept="npy"), 406)


def test_npy_carries_float16(tiny: httpx.Client) -> None:
    fields = {"outputs": [{"name": "layers.1.z", "dtype": "float16"}]}
    (npy,) = ask(tiny, fields, {"x": X}, accept="npy").values()
    (expected,) = ask(tiny, fields, {"x": X}).values()
    assert npy.dtype == np.float16
    assert same_bits(npy, expected)


@pytest.mark.parametrize("content_type", [None, "", "text/plain", "application/x-www-form-urlencoded", "image/png"])
def test_a_body_without_a_usable_content_type_learns_which_there_are(
    tiny: httpx.Client, content_type: str | None
) -> None:
    headers = {} if content_type is None else {"Content-Type": content_type}
    refusal = problem(tiny.post("/forward", content=b'{"tokens": [2]}', headers=headers), 415)
    for offered in ("application/json", "application/x-safetensors", "application/x-npy"):
        assert offered in refusal["detail"]
    if content_type:
        assert content_type in refusal["detail"]


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "Application/JSON", "application/json ;"])
def test_parameters_and_case_of_a_content_type_do_not_matter(tiny: httpx.Client, content_type: str) -> None:
    assert raw(tiny, b'{"tokens": [2]}', content_type).status_code == 200


def test_the_metadata_of_a_safetensors_answer_says_what_is_in_it(tiny: httpx.Client, tmp_path: Path) -> None:
    asked = [{"name": "layers.1.attn_probs", "as": "map"}, {"name": "logits", "top_k": 3}, "layers.2.ln2"]
    response = post(tiny, {"tokens": ids(N), "outputs": asked}, accept="safetensors")
    (tmp_path / "answer.safetensors").write_bytes(response.content)
    with safe_open(tmp_path / "answer.safetensors", framework="pt") as answer:
        metadata = answer.metadata()
        assert set(answer.keys()) == {"map", "logits.values", "logits.indices", "layers.2.ln2"}
        shapes = {name: list(answer.get_tensor(name).shape) for name in answer.keys()}  # noqa: SIM118
    assert shapes == {"map": [2, 7, 7], "logits.values": [7, 3], "logits.indices": [7, 3], "layers.2.ln2": [7, 30]}
    assert metadata["model"] == "tiny"
    assert json.loads(metadata["usage"])["tokens"] == N
    assert json.loads(metadata["tokens"])["ids"] == ids(N)
    manifest = json.dumps(json.loads(metadata["manifest"]))
    for name in shapes:
        assert f'"{name}"' in manifest
    assert "layers.1.attn_probs" in manifest


def test_the_manifest_has_the_axes_and_dtype_of_each_tensor_as_it_came(tiny: httpx.Client) -> None:
    asked = [
        "layers.0.resid_post",
        {"name": "layers.1.resid_post", "pool": "mean", "dtype": "float16"},
        {"name": "layers.1.attn_probs", "top_k": 2, "dtype": "float16", "as": "top"},
        {"name": "logits", "top_k": 3},
        "layers.2.z",
    ]
    response = post(tiny, {"tokens": ids(N), "outputs": asked}, accept="safetensors")
    header, _ = header_of(response.content)
    results = json.loads(header.pop("__metadata__")["manifest"])["results"]
    codes = {"float32": "F32", "float16": "F16", "int32": "I32"}
    assert {name: (len(r["axes"]), codes[r["dtype"]]) for name, r in results.items()} == {
        name: (len(entry["shape"]), entry["dtype"]) for name, entry in header.items()
    }
    assert results["layers.1.resid_post"]["axes"] == ["d"]
    assert results["top.indices"]["axes"] == results["top.values"]["axes"] == ["head", "query", "rank"]
    assert results["logits.values"]["axes"] == ["row", "rank"]


def test_tensors_of_mixed_dtypes_stay_aligned_and_readable(tiny: httpx.Client, tmp_path: Path) -> None:
    asked = [
        {"name": "layers.0.q", "rows": [0], "heads": [1], "dtype": "float16"},
        {"name": "layers.1.z", "rows": [0], "heads": [1], "dtype": "bfloat16"},
        {"name": "layers.2.resid_post", "rows": [0, 1, 2]},
        {"name": "logits", "top_k": 5, "rows": [-1], "dtype": "float16"},
        {"name": "layers.2.attn_probs", "rows": [6], "heads": [0], "dtype": "float16", "as": "map"},
        "final_norm",
    ]
    response = post(tiny, {"outputs": asked}, {"x": X}, accept="safetensors")
    header, begin = header_of(response.content)
    assert begin % 8 == 0
    for name, entry in header.items():
        if name != "__metadata__":
            assert entry["data_offsets"][0] % {"F32": 4, "I32": 4, "F16": 2, "BF16": 2}[entry["dtype"]] == 0, name
    (tmp_path / "answer.safetensors").write_bytes(response.content)
    in_json = ask(tiny, {"outputs": asked}, {"x": X}, accept="json")
    with safe_open(tmp_path / "answer.safetensors", framework="pt") as answer:
        for name, expected in in_json.items():
            tensor = answer.get_tensor(name)
            assert same_bits((tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy(), expected), name
    assert in_json["layers.0.q"].shape == (1, 1, 7)


def test_masked_scores_are_null_in_json_and_minus_infinity_in_binary(tiny: httpx.Client) -> None:
    asked = {"outputs": [{"name": "layers.1.attn_scores", "as": "s"}]}
    future = np.triu(np.ones((N, N), bool), k=1)
    data = post(tiny, asked, {"x": X}).json()["outputs"]["s"]["data"]
    assert [[[value is None for value in row] for row in head] for head in data] == [future.tolist()] * 2
    for accept in ("safetensors", "npy"):
        (scores,) = ask(tiny, asked, {"x": X}, accept=accept).values()
        np.testing.assert_array_equal(np.isneginf(scores), np.broadcast_to(future, (2, N, N)))
        assert np.isfinite(scores[:, ~future]).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_masked_scores_stay_masked_in_narrow_dtypes(tiny: httpx.Client, dtype: str) -> None:
    asked = {"outputs": [{"name": "layers.1.attn_scores", "as": "s", "dtype": dtype}]}
    response = post(tiny, asked, {"x": X})
    assert response.json()["outputs"]["s"]["dtype"] == dtype
    assert same_bits(outputs(response)["s"], ask(tiny, asked, {"x": X})["s"])
    assert np.isneginf(outputs(response)["s"][:, 0, 1:]).all()


def test_float32_goes_through_json_without_losing_a_bit(tiny: httpx.Client) -> None:
    # resid_pre of the start layer is the input: extremes of float32 must come back as they were
    x = X.copy()
    x[0, :7] = [np.float32(1) / 3, 1e-45, -1.17549435e-38, 16777217, 3.4028235e38, -0.0, 1e-10]
    tensor = post(tiny, {"outputs": ["layers.0.resid_pre"]}, {"x": x}).json()["outputs"]["layers.0.resid_pre"]
    assert tensor["dtype"] == "float32"
    assert same_bits(from_json(tensor), x)


def test_a_large_answer_in_json_is_whole(tiny: httpx.Client) -> None:
    fields = {"outputs": ["layers.*.resid_post", "layers.*.attn_probs"]}
    x = rows(211)
    in_json = ask(tiny, fields, {"x": x}, accept="json")
    for name, expected in ask(tiny, fields, {"x": x}).items():
        assert same_bits(in_json[name], expected), name


def test_an_answer_has_the_content_length_that_it_says(tiny: httpx.Client) -> None:
    for accept in FORMATS:
        response = post(tiny, ONE, {"x": X}, accept=accept)
        assert int(response.headers["content-length"]) == len(response.content)
    assert np.load(io.BytesIO(response.content)).shape == (N, 30)

"""The Open Inference Protocol v2, with Triton's stock client: the answers of POST /forward in the protocol's form."""

import gzip
import json
import os
import re
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import ml_dtypes
import numpy as np
import pytest
import safetensors.torch
import torch
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from model.checkpoint.initialise import initialise

NAME = "labs/tiny ü?"  # all that a name may hold goes through a URL
PATH = f"/v2/models/{quote(NAME, safe='')}"
L, D, A, V, N = 3, 30, 2, 101, 7
LAST = "layers.2.resid_post"
SCORES = "layers.0.attn_scores"
ROOT = Path(__file__).parents[2]
SERVE = "import sys; from service.cli import main; sys.exit(main(sys.argv[1:]))"
START_SECONDS, STOP_SECONDS, ANSWER_SECONDS = 120.0, 60.0, 60.0

Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Host and port of a tiny textbook model, served by a process of this checkout."""
    directory = tmp_path_factory.mktemp("models") / "tiny"
    initialise(
        directory,
        seed=11,
        n_layers=L,
        d_model=D,
        n_heads=A,
        d_k=7,
        d_v=5,
        d_ff=53,
        vocab_size=V,
        max_positions=61,
    )
    options = ["--model", str(directory), "--name", NAME, "--port", "0", "--threads", "1"]
    options += ["--max-json-bytes", "40000", "--max-body-bytes", "200000"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HEADWATER_")}
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, "serve", *options], cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    watchdog = threading.Timer(START_SECONDS, process.kill)
    watchdog.start()
    lines: list[str] = []
    for line in process.stderr:
        lines.append(line)
        if found := re.search(r"serving .* on http://(127\.0\.0\.1:\d+)", line):
            break
    watchdog.cancel()
    try:
        assert found is not None, f"the service did not start: {lines}"
        reader = threading.Thread(target=process.stderr.read, daemon=True)  # so that its log never fills the pipe
        reader.start()
        yield found[1]
    finally:
        process.terminate()
        process.wait(STOP_SECONDS)
        reader.join(STOP_SECONDS)
        process.stderr.close()


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(address, concurrency=8, network_timeout=ANSWER_SECONDS) as opened:
        yield opened


@pytest.fixture(scope="module")
def http(address: str) -> Iterator[httpx.Client]:
    headers = {"Accept-Encoding": "identity"}
    with httpx.Client(base_url=f"http://{address}", timeout=ANSWER_SECONDS, trust_env=False, headers=headers) as opened:
        yield opened


def rows(n: int, seed: int = 0) -> Array:
    return np.random.default_rng(1009 * seed + n).standard_normal((n, D)).astype(np.float32)


X = rows(N)
IDS = np.array([2, 3, 5, 7, 11, 13, 100])


def tensor(name: str, array: Array, datatype: str, *, binary: bool = True) -> triton.InferInput:
    made = triton.InferInput(name, list(array.shape), datatype)
    return made.set_data_from_numpy(array, binary_data=binary)


def wanted(name: str, *, binary: bool = True, **parameters: Any) -> triton.InferRequestedOutput:
    made = triton.InferRequestedOutput(name, binary_data=binary)
    made._parameters |= parameters  # the client has no public way to give an output parameters of its own
    return made


def forward(http: httpx.Client, tensors: dict[str, torch.Tensor], **fields: Any) -> dict[str, torch.Tensor]:
    """The same call as POST /forward has it, in binary both ways."""
    content = safetensors.torch.save(tensors, {"request": json.dumps(fields)})
    headers = {"Content-Type": "application/x-safetensors", "Accept": "application/x-safetensors"}
    response = http.post("/forward", content=content, headers=headers)
    assert response.status_code == 200, response.text
    return safetensors.torch.load(response.content)


def post(http: httpx.Client, body: Any, **options: Any) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return http.post(f"{PATH}/infer", content=content, **options)


def json_tensor(name: str = "tokens", data: Any = (2, 3, 5), **fields: Any) -> dict[str, Any]:
    shape = list(np.shape(data)) if not isinstance(data, str) else [1]
    return {"name": name, "shape": shape, "datatype": "INT64" if name == "tokens" else "FP32", "data": data} | fields


def error(response: httpx.Response, status: int) -> str:
    """What a refusal says, checked for the form that every one under /v2 has."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    body = response.json()
    assert set(body) == {"error"}
    assert "Traceback" not in body["error"]
    told: str = body["error"]
    return told


def still_good(http: httpx.Client) -> None:
    assert post(http, {"inputs": [json_tensor()]}).status_code == 200


def same_bits(found: Array, expected: torch.Tensor) -> bool:
    words = expected.contiguous().view(torch.uint8).numpy().tobytes()
    return list(found.shape) == list(expected.shape) and found.tobytes() == words


# --- what is served


def test_the_stock_client_finds_the_server_and_its_model_ready(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready(NAME)
    assert client.is_model_ready(NAME, "1")
    assert not client.is_model_ready("another")
    assert not client.is_model_ready(NAME, "2")
    assert client.get_server_metadata()["name"] == "headwater"
    assert "binary_tensor_data" in client.get_server_metadata()["extensions"]


def test_health_says_so_in_its_body(http: httpx.Client) -> None:
    assert http.get("/v2/health/live").json() == {"live": True}
    assert http.get("/v2/health/ready").json() == {"ready": True}
    assert http.get(f"{PATH}/ready").json() == {"name": NAME, "ready": True}


def test_the_metadata_names_every_input_and_every_point_with_its_shape(
    client: triton.InferenceServerClient, http: httpx.Client
) -> None:
    found = client.get_model_metadata(NAME)
    assert found == client.get_model_metadata(NAME, "1")
    assert found["name"] == NAME
    assert found["versions"] == ["1"]
    assert found["inputs"] == [
        {"name": "x", "datatype": "FP32", "shape": [-1, D]},
        {"name": "inputs_embeds", "datatype": "FP32", "shape": [-1, D]},
        {"name": "tokens", "datatype": "INT64", "shape": [-1]},
    ]
    shapes = {one["name"]: one["shape"] for one in found["outputs"]}
    assert list(shapes) == list(http.get("/model").json()["points"])
    assert shapes["layers.2.resid_post"] == [-1, D]
    assert shapes["layers.1.q"] == [A, -1, 7]
    assert shapes["layers.1.z"] == [A, -1, 5]
    assert shapes["layers.0.attn_probs"] == [A, -1, -1]
    assert shapes["logits"] == [-1, V]
    assert {one["datatype"] for one in found["outputs"]} == {"FP32"}


# --- inference


@pytest.mark.parametrize("binary_out", [True, False])
@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("kind", ["x", "inputs_embeds", "tokens"])
def test_every_input_gets_the_answer_of_forward_bit_for_bit(
    client: triton.InferenceServerClient, http: httpx.Client, kind: str, binary_in: bool, binary_out: bool
) -> None:
    array = IDS if kind == "tokens" else X
    sent = tensor(kind, array, "INT64" if kind == "tokens" else "FP32", binary=binary_in)
    names = [LAST, "layers.1.attn_probs", "logits", "hidden_states.0"]
    found = client.infer(NAME, [sent], outputs=[wanted(name, binary=binary_out) for name in names], request_id="q 7")
    expected = forward(http, {kind: torch.from_numpy(array)}, outputs=names)
    response = found.get_response()
    assert (response["id"], response["model_name"], response["model_version"]) == ("q 7", NAME, "1")
    assert [output["name"] for output in response["outputs"]] == names
    for name in names:
        assert same_bits(found.as_numpy(name), expected[name])
        assert ("data" in found.get_output(name)) is not binary_out


@pytest.mark.parametrize(
    ("datatype", "array"),
    [
        ("FP64", X.astype(np.float64) / 3),
        ("FP32", X),
        ("FP16", X.astype(np.float16)),
        ("BF16", X.astype(ml_dtypes.bfloat16)),
        *((f"{u}INT{bits}", IDS.astype(f"{u.lower()}int{bits}")) for u in ("", "U") for bits in (8, 16, 32, 64)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_datatype_is_read_as_it_says(
    client: triton.InferenceServerClient, http: httpx.Client, datatype: str, array: Array
) -> None:
    kind = "tokens" if "INT" in datatype else "x"
    exact = torch.from_numpy(array.astype(np.int64 if kind == "tokens" else np.float64))
    expected = forward(http, {kind: exact}, outputs=[LAST])[LAST]
    found = client.infer(NAME, [tensor(kind, array, datatype)], outputs=[wanted(LAST)])
    assert same_bits(found.as_numpy(LAST), expected)
    numbers = json_tensor(kind, array.astype(np.float64 if kind == "x" else np.int64).tolist(), datatype=datatype)
    in_json = post(http, {"inputs": [numbers], "outputs": [{"name": LAST, "parameters": {"binary_data": True}}]})
    assert in_json.content.endswith(found.as_numpy(LAST).tobytes())


def test_json_numbers_are_rounded_to_the_datatype_that_they_are_said_to_have(http: httpx.Client) -> None:
    for datatype, dtype in (("FP16", np.float16), ("BF16", ml_dtypes.bfloat16)):
        numbers = (X / 3).tolist()
        sent = json_tensor("x", numbers, datatype=datatype)
        outputs = [{"name": "embeddings", "parameters": {"binary_data": True}}]
        response = post(http, {"inputs": [sent], "outputs": outputs})
        assert response.content.endswith((X / 3).astype(dtype).astype(np.float32).tobytes())


@pytest.mark.parametrize(("dtype", "datatype"), [("float16", "FP16"), ("bfloat16", "BF16")])
@pytest.mark.parametrize("binary", [True, False])
def test_an_output_comes_in_the_dtype_asked_for(
    client: triton.InferenceServerClient, http: httpx.Client, dtype: str, datatype: str, binary: bool
) -> None:
    found = client.infer(NAME, [tensor("x", X, "FP32")], outputs=[wanted(LAST, binary=binary, dtype=dtype)])
    expected = forward(http, {"x": torch.from_numpy(X)}, outputs=[{"name": LAST, "dtype": dtype}])
    assert found.get_output(LAST)["datatype"] == datatype
    assert same_bits(found.as_numpy(LAST), expected[LAST])


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@pytest.mark.parametrize("binary", [True, False])
def test_bodies_may_be_packed_both_ways(client: triton.InferenceServerClient, coding: str, binary: bool) -> None:
    sent, outputs = [tensor("x", X, "FP32", binary=binary)], [wanted(LAST, binary=binary)]
    plain = client.infer(NAME, sent, outputs=outputs)
    packed = client.infer(
        NAME, sent, outputs=outputs, request_compression_algorithm=coding, response_compression_algorithm=coding
    )
    assert packed.as_numpy(LAST).tobytes() == plain.as_numpy(LAST).tobytes()


def test_an_answer_is_packed_only_for_who_asks(http: httpx.Client) -> None:
    body = {"inputs": [json_tensor()]}
    for accept, coding in (
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("gzip;q=0.2, deflate", "deflate"),
        ("gzip, deflate, br", "gzip"),
        ("identity", None),
        ("*", None),
        ("br", None),
        ("gzip;q=0", None),
        ("gzip;q=0.1, identity", None),
    ):
        response = post(http, body, headers={"Accept-Encoding": accept})
        assert response.headers.get("content-encoding") == coding, accept
        assert response.json()["outputs"][0]["shape"] == [3, D]


def test_without_outputs_there_is_the_default_one(client: triton.InferenceServerClient, http: httpx.Client) -> None:
    found = client.infer(NAME, [tensor("tokens", IDS, "INT64")])
    (output,) = found.get_response()["outputs"]
    assert output["name"] == LAST
    assert output["parameters"] == {"binary_data_size": 4 * N * D}  # the client asks for all in binary then
    (in_json,) = post(http, {"inputs": [json_tensor("tokens", IDS.tolist())], "outputs": []}).json()["outputs"]
    assert in_json["data"] == pytest.approx(found.as_numpy(LAST).ravel().tolist(), rel=1e-7)


def test_patterns_give_several_outputs_and_each_goes_its_way(
    client: triton.InferenceServerClient, http: httpx.Client
) -> None:
    outputs = [wanted("layers.1-2.ln1"), wanted("layers.*.resid_post", binary=False), wanted("logits")]
    found = client.infer(NAME, [tensor("tokens", IDS, "INT64")], outputs=outputs)
    expected = forward(http, {"tokens": torch.from_numpy(IDS)}, outputs=[one.name() for one in outputs])
    names = ["layers.1.ln1", "layers.2.ln1", *(f"layers.{i}.resid_post" for i in range(L)), "logits"]
    assert [output["name"] for output in found.get_response()["outputs"]] == names
    for name in names:
        assert same_bits(found.as_numpy(name), expected[name])
        assert ("data" in found.get_output(name)) is name.endswith("resid_post")


SELECTIONS: list[tuple[str, dict[str, Any]]] = [
    ("layers.1.attn_probs", {"heads": [1], "rows": [-1, 0], "keys": {"start": 0, "stop": 3}}),
    ("layers.1.q", {"heads": [1, 0, 1], "as": "mine"}),
    ("layers.*.ln1", {"as": "all", "rows": [2]}),
    ("logits", {"top_k": 3, "rows": [-1]}),
    ("layers.0.attn_scores", {"top_k": 2, "dtype": "float16"}),
    (LAST, {"pool": "mean", "rows": {"start": 1}}),
]


@pytest.mark.parametrize(("point", "keys"), SELECTIONS, ids=[point for point, _ in SELECTIONS])
def test_selection_keys_are_parameters_of_an_output_with_lists_as_json_text(
    client: triton.InferenceServerClient, http: httpx.Client, point: str, keys: dict[str, Any]
) -> None:
    texts = {key: json.dumps(value) if isinstance(value, (list, dict)) else value for key, value in keys.items()}
    expected = forward(http, {"x": torch.from_numpy(X)}, outputs=[{"name": point} | keys])
    sent = [tensor("x", X, "FP32")]
    of_output = client.infer(NAME, sent, outputs=[wanted(point, **texts)])
    of_request = client.infer(NAME, sent, outputs=[wanted(point)], parameters=texts)
    for found in (of_output, of_request):
        assert {output["name"] for output in found.get_response()["outputs"]} == set(expected)
        for name, tensor_ in expected.items():
            assert same_bits(found.as_numpy(name), tensor_)


def test_the_parameters_of_an_output_come_before_those_of_the_request(client: triton.InferenceServerClient) -> None:
    outputs = [wanted("layers.0.ln1"), wanted("layers.1.ln1", rows="[0,1,2]")]
    found = client.infer(NAME, [tensor("x", X, "FP32")], outputs=outputs, parameters={"rows": "[-1]"})
    assert found.as_numpy("layers.0.ln1").shape == (1, D)
    assert found.as_numpy("layers.1.ln1").shape == (3, D)


def test_start_positions_and_deadlines_are_parameters_of_the_request_or_its_input(
    client: triton.InferenceServerClient, http: httpx.Client
) -> None:
    expected = forward(http, {"x": torch.from_numpy(X)}, start=2)[LAST]
    sent = tensor("x", X, "FP32")
    assert same_bits(client.infer(NAME, [sent], parameters={"start": 2}).as_numpy(LAST), expected)
    sent._parameters["start"] = 2
    assert same_bits(client.infer(NAME, [sent]).as_numpy(LAST), expected)
    positions = [3, 1, 4, 1, 5, 9, 2]
    moved = forward(http, {"tokens": torch.from_numpy(IDS)}, positions=positions)[LAST]
    ids = [tensor("tokens", IDS, "INT64")]
    for parameters in ({"positions": json.dumps(positions)}, {"positions": str(positions), "timeout_ms": 60_000}):
        assert same_bits(client.infer(NAME, ids, parameters=parameters).as_numpy(LAST), moved)
    assert same_bits(
        client.infer(NAME, ids, parameters={"positions": str(positions)}, timeout=60_000_000).as_numpy(LAST), moved
    )


def test_several_sequences_come_as_numbered_inputs(client: triton.InferenceServerClient, http: httpx.Client) -> None:
    first, second = tensor("0.tokens", IDS, "INT64"), tensor("1.x", X, "FP32")
    second._parameters["start"] = 1
    found = client.infer(NAME, [second, first], outputs=[wanted("layers.2.z"), wanted(LAST)])
    assert [output["name"] for output in found.get_response()["outputs"]] == [
        f"{i}.{name}" for i in (0, 1) for name in ("layers.2.z", LAST)
    ]
    for i, alone in enumerate(({"tokens": torch.from_numpy(IDS)}, {"x": torch.from_numpy(X)})):
        expected = forward(http, alone, start=i)[LAST]
        np.testing.assert_allclose(found.as_numpy(f"{i}.{LAST}"), expected.numpy(), atol=1e-5)


def test_masked_scores_are_minus_infinity_in_binary_and_null_in_json(
    client: triton.InferenceServerClient, http: httpx.Client
) -> None:
    sent = [tensor("x", X, "FP32")]
    exact = client.infer(NAME, sent, outputs=[wanted(SCORES)]).as_numpy(SCORES)
    assert np.isneginf(exact[:, 0, 1:]).all()
    body = {"inputs": [json_tensor("x", X.tolist())], "outputs": [{"name": SCORES}]}
    data = post(http, body).json()["outputs"][0]["data"]
    assert [value is None for value in data] == np.isneginf(exact).ravel().tolist()


def test_many_at_once_each_get_their_own_answer(client: triton.InferenceServerClient, http: httpx.Client) -> None:
    sizes = [1 + (5 * i) % 23 for i in range(48)]
    matrices = [rows(n, seed=i) for i, n in enumerate(sizes)]
    alone = [forward(http, {"x": torch.from_numpy(x)}, outputs=[LAST])[LAST].numpy() for x in matrices]
    running = [
        client.async_infer(NAME, [tensor("x", x, "FP32", binary=i % 2 == 0)], outputs=[wanted(LAST)], request_id=str(i))
        for i, x in enumerate(matrices)
    ]
    with ThreadPoolExecutor(4) as threads:  # in company of the other protocol too
        others = list(
            threads.map(lambda x: forward(http, {"x": torch.from_numpy(x)}, outputs=[LAST])[LAST].numpy(), matrices)
        )
    for i, (one, expected) in enumerate(zip(running, alone, strict=True)):
        found = one.get_result()
        assert found.get_response()["id"] == str(i)
        scale = np.abs(expected).max(axis=-1, keepdims=True)
        for answer in (found.as_numpy(LAST), others[i]):
            assert (np.abs(answer - expected) <= 2e-5 * scale).all()


# --- refusals


def test_every_bad_request_is_refused_in_the_protocols_form_and_hurts_nobody(http: httpx.Client) -> None:
    x = json_tensor("x", X.tolist())
    binary = {"name": "x", "shape": [1, D], "datatype": "FP32", "parameters": {"binary_data_size": 4 * D}}
    nan = json.dumps({"inputs": [json_tensor("x", [[float("nan")] * D])]}).encode()
    for body, status, told in (
        (b"", 400, "empty"),
        (b"{", 400, "not JSON"),
        (nan, 400, "not JSON"),
        ([], 422, "must be an object"),
        ({}, 422, "/inputs: is missing"),
        ({"inputs": []}, 422, "/inputs"),
        ({"inputs": [json_tensor(), x]}, 422, "x and tokens came"),
        ({"inputs": [x, x]}, 422, "/inputs/1/name"),
        ({"inputs": [json_tensor("y", [1.0])]}, 422, "/y: is no input"),
        ({"inputs": [json_tensor("0.x", X.tolist()), json_tensor("2.x", X.tolist())]}, 422, "without a gap"),
        ({"inputs": [json_tensor(datatype="BYTES")]}, 422, "/inputs/0/datatype"),
        ({"inputs": [json_tensor(datatype="FP32")]}, 422, "must be integers, not float64"),
        ({"inputs": [json_tensor("x", [1] * D, shape=[1, D], datatype="INT32")]}, 422, "must be floating point"),
        ({"inputs": [json_tensor("x", [[0.5] * 29])]}, 422, "width 29, the model's d is 30"),
        ({"inputs": [json_tensor("x", [[[0.5] * D]], shape=[1, 1, D])]}, 422, "/inputs/0/data"),
        ({"inputs": [json_tensor("x", [0.5] * D, shape=[1, 1, D])]}, 422, "must have 2 axes [N, d], not shape"),
        ({"inputs": [json_tensor("x", [[0.5] * D], shape=[2, 15])]}, 422, "is nested as [1, 30]"),
        ({"inputs": [json_tensor("x", [[0.5] * D], shape=[2, D])]}, 400, "takes 60 numbers, its data has 30"),
        ({"inputs": [json_tensor(shape=[4])]}, 400, "takes 4 numbers, its data has 3"),
        ({"inputs": [json_tensor(shape=[-1])]}, 422, "/inputs/0/shape/0"),
        ({"inputs": [json_tensor("tokens", [], shape=[0])]}, 422, "has no rows"),
        ({"inputs": [json_tensor("tokens", [2, 3.5])]}, 422, "/inputs/0/data/1: must be an integer, not 3.5"),
        ({"inputs": [json_tensor("tokens", [2, 300], datatype="INT8")]}, 422, "300 is outside INT8"),
        ({"inputs": [json_tensor("tokens", [2, V])]}, 422, f"token id {V} is outside the vocabulary"),
        ({"inputs": [json_tensor("x", [[1e39] + [0.5] * 29])]}, 422, "1e+39 is not finite in float32"),
        ({"inputs": [json_tensor(data=None)]}, 422, "neither of them came"),
        ({"inputs": [x | {"parameters": {"binary_data_size": 4}}]}, 422, "both came"),
        ({"inputs": [binary]}, 400, "binary_data_size: 120 came, and 0 bytes are left"),
        ({"inputs": [binary | {"parameters": {"binary_data_size": True}}]}, 400, "binary_data_size: True"),
        ({"inputs": [x | {"parameters": {"strat": 1}}]}, 422, "/inputs/0/parameters/strat"),
        ({"inputs": [x | {"parameters": {"start": 1}}], "parameters": {"start": 1}}, 422, "parameters too"),
        ({"inputs": [x], "parameters": {"start": 4}}, 422, "/start: 4 is over the model's 3 layers"),
        ({"inputs": [x], "parameters": {"rows": "[0]"}}, 422, "/parameters/rows: goes with outputs"),
        ({"inputs": [x], "parameters": {"timeout": "soon"}}, 422, "microseconds"),
        ({"inputs": [x], "parameters": {"timeout": 5, "timeout_ms": 5}}, 422, "beside timeout_ms"),
        ({"inputs": [x], "parameters": {"timeout_ms": 0}}, 422, "/timeout_ms"),
        ({"inputs": [x], "parameters": {"binary_data_output": "yes"}}, 422, "must be true or false"),
        ({"inputs": [x], "parameters": {"priority": 1}}, 422, "/parameters/priority"),
        ({"inputs": [x], "outputs": [{"name": "layers.0.resid"}]}, 422, "the nearest is 'layers.0.resid_pre'"),
        ({"inputs": [x], "outputs": [{"name": LAST}, {"name": LAST}]}, 422, "second result"),
        ({"inputs": [x], "outputs": [{"name": LAST, "parameters": {"classification": 3}}]}, 422, "classification"),
        ({"inputs": [x], "outputs": [{"name": LAST, "parameters": {"rows": "0;1"}}]}, 422, "list as a JSON text"),
        ({"inputs": [x], "outputs": [{"name": LAST, "parameters": {"rows": "[7]"}}]}, 422, "row 7 is outside -7 to 6"),
        ({"inputs": [x], "outputs": [{"name": LAST, "parameters": {"heads": "[0]"}}]}, 422, "does not go with"),
        ({"inputs": [x], "outputs": [{"name": LAST, "parameters": {"dtype": "FP16"}}]}, 422, "/outputs/0/dtype"),
        ({"inputs": [x], "outputs": [{"name": LAST, "data": []}]}, 422, "/outputs/0/data"),
        ({"inputs": [x], "outputs": [{"name": "layers.*.*"}]}, 422, "is not a point"),
        ({"inputs": [json_tensor("tokens", [2] * 61)], "outputs": [{"name": "layers.*.ln1"}]}, 413, "binary_data, or"),
        (b" " * 200_001, 413, "max_body_bytes is 200000"),
    ):
        response = post(http, body)
        assert told in error(response, status), (body, response.text)
        still_good(http)


def test_lengths_that_do_not_add_up_are_a_400(http: httpx.Client) -> None:
    def send(behind: bytes, *, size: int = 4 * D, shape: tuple[int, ...] = (1, D), length: str = "") -> httpx.Response:
        of_tensor = {"name": "x", "shape": shape, "datatype": "FP32", "parameters": {"binary_data_size": size}}
        text = json.dumps({"inputs": [of_tensor]}).encode()
        return post(http, text + behind, headers={"Inference-Header-Content-Length": length or str(len(text))})

    good = X[:1].tobytes()
    assert send(good).status_code == 200
    assert "behind the JSON" in error(send(good[:-1]), 400)
    assert "the inputs have 120 bytes behind the JSON, 121 came" in error(send(good + b"\0"), 400)
    assert "takes 240 bytes, its binary_data_size is 120" in error(send(good, shape=(2, D)), 400)
    assert "binary_data_size" in error(send(good, size=-4), 400)
    assert "must be a number of bytes" in error(send(good, length="-1"), 400)
    assert "must be a number of bytes" in error(send(good, length="9" * 50), 400)
    assert "is 99999, the body has" in error(send(good, length="99999"), 400)
    assert "is empty" in error(send(good, length="0"), 400)
    assert "not JSON" in error(send(good, length="20"), 400)
    assert "is not finite" in error(send(np.full((1, D), np.nan, np.float32).tobytes()), 422)
    still_good(http)


def test_packed_bodies_that_are_broken_or_too_large_are_refused(http: httpx.Client) -> None:
    text = json.dumps({"inputs": [json_tensor()]}).encode()
    whole = gzip.compress(text)
    for body, coding, status, told in (
        (whole, "GZIP", 200, ""),
        (zlib.compress(text), "deflate", 200, ""),
        (text, "identity", 200, ""),
        (whole, "br", 415, "'br' came"),
        (whole, "gzip, gzip", 415, "gzip, deflate or identity"),
        (text, "gzip", 400, "is not gzip"),
        (whole[:-1], "gzip", 400, "breaks off"),
        (b"", "gzip", 400, "breaks off"),
        (whole + b"\0", "gzip", 400, "goes on behind its end"),
        (whole + whole, "gzip", 400, "goes on behind its end"),
        (gzip.compress(bytes(200_001)), "gzip", 413, "max_body_bytes is 200000"),
        (gzip.compress(bytes(1 << 27)), "gzip", 413, "max_body_bytes is 200000"),
    ):
        response = post(http, body, headers={"Content-Encoding": coding})
        if status == 200:
            assert response.status_code == 200, (coding, response.text)
        else:
            assert told in error(response, status), (coding, response.text)
    still_good(http)


def test_what_is_not_there_is_said_in_the_protocols_form(http: httpx.Client) -> None:
    assert "there is no model 'another'" in error(http.get("/v2/models/another"), 404)
    assert "there is no model 'another'" in error(http.post("/v2/models/another/infer", json={}), 404)
    assert "no version '2'" in error(http.get(f"{PATH}/versions/2"), 404)
    assert "no version '2'" in error(http.post(f"{PATH}/versions/2/infer", json={}), 404)
    error(http.get("/v2/nothing"), 404)
    error(http.get("/v2/models/"), 404)
    error(http.get(f"{PATH}/config"), 404)
    refused = http.get(f"{PATH}/infer")
    error(refused, 405)
    assert refused.headers["allow"] == "POST"
    error(http.post("/v2/health/live"), 405)
    assert http.get("/nothing").headers["content-type"] == "application/problem+json"
    response = post(http, b"{", headers={"X-Request-Id": "mine-17"})
    assert error(response, 400)
    assert response.headers["x-request-id"] == "mine-17"


def test_the_stock_client_raises_with_our_words(client: triton.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException, match="the rows have width 29") as refused:
        client.infer(NAME, [tensor("x", X[:, :29].copy(), "FP32")])
    assert refused.value.status() == "422"


def test_a_deadline_that_passes_is_a_504(http: httpx.Client) -> None:
    x = np.ones((400, D), np.float32)
    body = {"inputs": [json_tensor("x", x.tolist())], "parameters": {"timeout": 1, "binary_data_output": True}}
    assert "deadline" in error(post(http, body), 504)
    still_good(http)


# --- documentation


def test_the_openapi_document_has_an_example_that_runs_and_every_refusal(http: httpx.Client) -> None:
    paths = http.get("/openapi.json").json()["paths"]
    for path in ("/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/{name}", "/v2/models/{name}/ready"):
        assert paths[path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]["$ref"]
    infer = paths["/v2/models/{name}/infer"]["post"]
    sent = {"name", "Inference-Header-Content-Length", "X-Request-Id", "traceparent"}
    assert {parameter["name"] for parameter in infer["parameters"]} == sent
    assert {"400", "404", "408", "413", "415", "422", "500", "503", "504"} <= set(infer["responses"])
    assert infer["parameters"][0]["examples"]["served"]["value"] == NAME
    example = next(iter(infer["requestBody"]["content"]["application/json"]["examples"].values()))["value"]
    outputs = post(http, example).json()["outputs"]
    assert [output["name"] for output in outputs] == [LAST, "layers.0.attn_probs"]

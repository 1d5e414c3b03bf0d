"""What was found by people who tried to break the service: each of these once did."""

import gzip
import json
import threading
import time
import zlib
from typing import Any

import httpx
import numpy as np
import pytest
import safetensors.numpy

from tests.server import serving
from tests.service.calls import SAFETENSORS, ask, assert_rows_close, ids, post, problem, rows

HEADERS = {"Content-Type": "application/json"}


def timed(client: httpx.Client, content: bytes, **options: Any) -> tuple[httpx.Response, float]:
    began = time.monotonic()
    response = client.post("/forward", content=content, headers=HEADERS, **options)
    return response, time.monotonic() - began


@pytest.mark.parametrize(
    "content",
    [b"[" * (3 << 20), b"[1," * (1 << 20), b"[[]," * (1 << 20), b'{"x":' + b"[" * (2 << 20) + b"]" * (2 << 20) + b"}",
     b'"' + b"\\" * (2 << 20), b'{"a":[' + b'"[",' * (1 << 20)],
)  # fmt: skip
def test_a_large_body_of_brackets_is_refused_in_linear_time(tiny: httpx.Client, content: bytes) -> None:
    response, seconds = timed(tiny, content)
    assert response.status_code in (400, 413, 422)
    assert seconds < 20, "a quadratic reader takes hours"


@pytest.mark.parametrize(("wrong", "status"), [("null", 422), ("NaN", 400), ('"a"', 422), ("true", 422), ("[1]", 422)])
def test_a_large_matrix_with_one_wrong_number_is_refused_as_fast_as_a_right_one_is_read(
    smollm2_client: httpx.Client, wrong: str, status: int
) -> None:
    x = [[0.25] * 576 for _ in range(1200)]
    right = json.dumps({"x": x, "start": 30, "outputs": ["layers.29.resid_post"]}).encode()
    broken = right[: right.index(b"]]")] + f", {wrong}".encode() + right[right.index(b"]]") :]
    _, expected = timed(smollm2_client, right)
    response, seconds = timed(smollm2_client, broken)
    assert response.status_code == status
    assert seconds < 5 * expected + 2


def test_deep_nesting_in_a_large_body_is_no_fault_of_ours(tiny: httpx.Client) -> None:
    for depth in (600, 900, 5000):
        text = b'{"tokens":[1],"foo":' + b'["a",' * depth + b" " * (1 << 20) + b"1" + b"]" * depth + b"}"
        response, _ = timed(tiny, text)
        assert response.status_code in (400, 422), depth


def test_a_dry_run_counts_operations_beyond_64_bits(tiny: httpx.Client) -> None:
    said = tiny.post("/forward?dry_run=true", json={"n": 10**12}).json()
    assert said["admitted"] is False
    assert said["code"] == "too_large"
    assert said["flops"] > 1 << 64


def test_no_result_takes_the_name_that_safetensors_keeps_for_itself(tiny: httpx.Client) -> None:
    outputs = [{"name": "layers.0.ln1", "as": "__metadata__"}]
    body = problem(post(tiny, {"tokens": [1], "outputs": outputs}, accept="safetensors"), 422)
    assert body["errors"][0]["pointer"] == "/outputs/0/as"


@pytest.mark.parametrize("where", ["name", "metadata"])
def test_half_of_a_surrogate_pair_is_no_text(tiny: httpx.Client, where: str) -> None:
    content = safetensors.numpy.save({"xxxxxx": rows(2)}, {"request": "yyyyyy"})
    content = content.replace(b"xxxxxx" if where == "name" else b"yyyyyy", b"\\ud800")
    response = tiny.post("/forward", content=content, headers={"Content-Type": SAFETENSORS})
    problem(response, 400, "malformed_body")


@pytest.mark.parametrize("name", ["layers.03.ln1", "layers.\u0663.ln1", "hidden_states.01", "layers.0-02.ln1"])
def test_a_layer_has_one_name(tiny: httpx.Client, name: str) -> None:
    problem(post(tiny, {"tokens": [1], "outputs": [name]}), 422, "unknown_point")


def test_two_accept_lines_are_one_list(tiny: httpx.Client) -> None:
    headers = [("Accept", "text/html"), ("Accept", "application/x-npy"), ("Content-Type", "application/json")]
    response = tiny.post("/forward", content=b'{"tokens": [1, 2]}', headers=headers)
    assert response.headers["content-type"] == "application/x-npy"


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_a_packed_body_is_unpacked(tiny: httpx.Client, coding: str) -> None:
    text = json.dumps({"tokens": ids(7)}).encode()
    packed = gzip.compress(text) if coding == "gzip" else zlib.compress(text)
    response = tiny.post("/forward", content=packed, headers=HEADERS | {"Content-Encoding": coding})
    assert response.json()["outputs"]["layers.2.resid_post"]["shape"] == [7, 30]
    problem(tiny.post("/forward", content=packed, headers=HEADERS | {"Content-Encoding": "br"}), 415)


def test_probes_answer_to_head(tiny: httpx.Client) -> None:
    assert tiny.head("/livez").status_code == tiny.head("/readyz").status_code == 200


def answered(client: httpx.Client, call: dict[str, Any], seconds: float) -> bool:
    try:
        client.post("/forward", json=call, timeout=seconds)
    except httpx.ReadTimeout:
        return False
    return True


def test_whoever_still_waits_when_the_time_to_drain_is_over_gets_a_503() -> None:
    """A run that takes longer than the drain: the caller is told, and the process still ends with exit code 0."""
    answers: list[httpx.Response] = []
    with serving("smollm2-135m-instruct", "--drain-seconds", "1", "--threads", "1") as server:

        def ask_for_much() -> None:
            with server.client() as client:
                answers.append(client.post("/forward", json={"tokens": ids(6000, 49152)}))

        caller = threading.Thread(target=ask_for_much)
        caller.start()
        with server.client() as client:
            while answered(client, {"tokens": [1]}, seconds=2):
                pass  # a short call that gets no answer stands behind the long one, which therefore runs
        server.terminate()
        caller.join(60)
        assert not caller.is_alive()
    problem(answers[0], 503, "not_ready")
    assert int(answers[0].headers["retry-after"]) > 0


def test_the_limit_on_json_counts_the_tokens_that_stand_beside_the_results(limited: httpx.Client) -> None:
    # 41 rows at most there, so the ids come from many inputs: here the results alone are far below the limit
    one = {"name": "layers.0.attn_probs", "heads": [0], "rows": [0], "keys": [0]}
    call = {"tokens": [100] * 40, "outputs": [one | {"as": f"o{i}"} for i in range(19)]}
    said = limited.post("/forward?dry_run=true", json=call).json()
    came = post(limited, call)
    assert came.status_code == 200
    assert 0.8 < said["answer_bytes"] / len(came.content) < 1.5
    more = call | {"outputs": [one | {"as": f"o{i}"} for i in range(30)]}
    problem(post(limited, more), 413, "json_too_large")


def test_a_dry_run_says_that_a_format_is_not_offered(tiny: httpx.Client) -> None:
    said = tiny.post("/forward?dry_run=true", json={"tokens": [1]}, headers={"Accept": "text/html"})
    assert said.status_code == 200
    assert said.json()["admitted"] is False
    assert said.json()["code"] == "not_acceptable"


def test_a_reader_who_left_stands_in_the_log_as_such() -> None:
    with serving("mgm", "--threads", "1") as server:
        call = {"tokens": ids(499, 9669), "outputs": ["layers.*.attn_probs"]}
        headers = {"Accept": SAFETENSORS, "X-Request-Id": "left-early"}
        with server.client() as client, client.stream("POST", "/forward", json=call, headers=headers) as response:
            next(response.iter_raw())
        line = json.loads(server.wait_for_line('"left-early"'))
    assert line["code"] == "caller_left"
    assert line["bytes_out"] < 8 * 8 * 499 * 499 * 4


def test_too_many_results_are_refused_with_both_numbers(tiny: httpx.Client) -> None:
    outputs = [{"name": "layers.*.ln1", "as": f"o{i}"} for i in range(9)]
    body = problem(post(tiny, {"inputs": [{"tokens": [1]}] * 4000, "outputs": outputs}), 413, "too_large")
    assert "100001" in body["detail"]
    assert "100000" in body["detail"]


def test_the_largest_numbers_that_are_taken_are_normed_as_any_others(tiny: httpx.Client) -> None:
    x = (np.sign(rows(5)) * 1.68e18).astype(np.float32)
    found, expected = (
        ask(tiny, {"outputs": ["layers.0.ln1"]}, {"x": scale * x}, body="safetensors")["layers.0.ln1"]
        for scale in (np.float32(1), np.float32(2**-60))
    )
    # a norm hardly sees how large its rows are; of zeros it would give back beta alone
    assert_rows_close(found, expected, 1e-4)
    zeros = ask(tiny, {"outputs": ["layers.0.ln1"]}, {"x": 0 * x}, body="safetensors")["layers.0.ln1"]
    assert np.abs(found - zeros).max() > 0.5


@pytest.mark.parametrize("path", ["/livez/", "/model/", "/forward/", "/v2/", "/docs/"])
def test_a_path_with_a_slash_behind_it_is_not_there(tiny: httpx.Client, path: str) -> None:
    assert tiny.get(path).status_code == 404

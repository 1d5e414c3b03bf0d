"""What a request costs is known before it runs, from its shape alone."""

from typing import Any

import httpx
import pytest

from tests.server import Server
from tests.service.calls import FORMATS, ask, ids, post, problem


def dry(client: httpx.Client, fields: dict[str, Any], accept: str = "safetensors") -> dict[str, Any]:
    response = client.post("/forward", params={"dry_run": True}, json=fields, headers={"Accept": FORMATS[accept]})
    assert response.status_code == 200, response.text
    outcome: dict[str, Any] = response.json()
    return outcome


CALL: dict[str, Any] = {
    "outputs": ["layers.1.resid_post", {"name": "layers.*.attn_probs", "rows": [-1], "top_k": 2, "dtype": "float16"}]
}


def test_it_says_the_shapes_and_bytes_that_the_answer_then_has(tiny: httpx.Client) -> None:
    call = CALL | {"tokens": ids(11)}
    said, found = dry(tiny, call), ask(tiny, call)
    assert said["admitted"] is True
    assert said["code"] is None
    assert said["tokens"] == 11
    assert said["layers_run"] == 3
    assert said["answer_bytes"] == sum(x.nbytes for x in found.values())
    assert {n: r["shape"] for n, r in said["results"].items()} == {n: list(x.shape) for n, x in found.items()}


def test_n_stands_for_an_input_of_that_many_rows(tiny: httpx.Client) -> None:
    assert dry(tiny, CALL | {"n": 11}) == dry(tiny, CALL | {"tokens": ids(11)})
    several = dry(tiny, CALL | {"inputs": [{"n": 11}, {"tokens": ids(5)}]})
    assert several["tokens"] == 16


def test_operations_are_those_of_the_products_that_run(tiny: httpx.Client) -> None:
    n, d, a, k, v, f, vocab = 11, 30, 2, 7, 5, 53, 101
    layer = 2 * n * d * (2 * a * k + a * v) + 2 * n * (a * v) * d + 2 * 2 * n * d * f
    attention = 2 * a * (k + v) * n * (n + 1) // 2
    assert dry(tiny, {"n": n, "outputs": ["layers.1.resid_post"]})["flops"] == 2 * (layer + attention)
    asked = dry(tiny, {"n": n, "start": 3, "outputs": [{"name": "logits", "rows": [0, 4]}]})
    assert asked["layers_run"] == 0
    assert asked["flops"] == 2 * 2 * d * vocab


def test_a_map_of_any_length_is_answered_at_once(tiny: httpx.Client) -> None:
    n = 131_072
    said = dry(tiny, {"n": n, "outputs": [{"name": "layers.0.attn_probs", "rows": [0, n - 1]}]})
    assert said["admitted"] is True
    assert said["answer_bytes"] == 2 * 2 * n * 4


@pytest.mark.parametrize(
    ("fields", "accept", "code"),
    [
        ({"n": 42}, "safetensors", "too_large"),
        ({"n": 41, "outputs": ["layers.*.resid_post", "layers.*.attn_probs"]}, "safetensors", "too_large"),
        ({"n": 40, "outputs": ["layers.*.resid_mid"]}, "json", "json_too_large"),
        ({"n": 1, "outputs": ["layers.*.resid_mid"]}, "npy", "not_acceptable"),
    ],
)
def test_what_would_be_refused_for_its_size_is_said_with_its_cost(
    limited: httpx.Client, fields: dict[str, Any], accept: str, code: str
) -> None:
    said = dry(limited, fields, accept)
    assert said["admitted"] is False
    assert said["code"] == code
    assert said["detail"]
    assert said["tokens"] == fields["n"]
    assert said["answer_bytes"] > 0


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 3, "outputs": ["layers.9.resid_post"]},
        {"tokens": [1, 101]},
        {"n": 0},
        {"n": 3, "x": [[0]]},
        {"n": 3, "nonsense": 1},
    ],
)
def test_what_is_wrong_has_the_code_and_the_pointer_of_its_refusal(tiny: httpx.Client, fields: dict[str, Any]) -> None:
    said = dry(tiny, fields)
    assert said["admitted"] is False
    refusal = (
        problem(post(tiny, {k: v for k, v in fields.items() if k != "n"} | {"x": [[0.0] * 30] * 3}), 422)
        if ("n" in fields and fields["n"] and "x" not in fields)
        else None
    )
    assert said["status"] == 422
    assert said["errors"][0]["message"]
    if refusal is not None:
        assert said["code"] == refusal["code"]
        assert said["errors"] == refusal["errors"]


def test_a_broken_body_is_broken_here_too_and_n_runs_nothing(tiny_server: Server) -> None:
    with tiny_server.client() as client:
        broken = client.post("/forward?dry_run=true", content=b'{"n": 3', headers={"Content-Type": "application/json"})
        problem(broken, 400, "malformed_body")
        problem(post(client, {"n": 3}), 422)
        client.post("/forward?dry_run=true", json={"tokens": ids(5)}, headers={"X-Request-Id": "dry"})
    assert "compute_ms" not in tiny_server.wait_for_line('"dry"')


def test_a_slip_in_the_parameters_name_runs_nothing(tiny: httpx.Client) -> None:
    response = tiny.post("/forward", params={"dryrun": "true"}, json=CALL | {"tokens": ids(3)})
    assert problem(response, 422)["errors"] == [
        {"pointer": "/dryrun", "message": "is no query parameter of this call; there are dry_run and request"}
    ]

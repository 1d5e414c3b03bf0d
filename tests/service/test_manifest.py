"""Each answer says what its numbers are."""

import json
from typing import Any

import httpx
import pytest

from tests.service.calls import ids, post
from tests.service.test_stream import header_of

OUTPUTS = [{"name": "layers.1.attn_probs", "heads": [0], "dtype": "float16", "as": "map"}]


def manifest_of(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    match response.headers["content-type"].rpartition("/")[2]:
        case "json":
            found = response.json()["manifest"]
        case "x-safetensors":
            found = json.loads(header_of(response.content)["__metadata__"]["manifest"])
        case _:
            found = json.loads(response.headers["x-manifest"])
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("accept", ["json", "safetensors", "npy"])
def test_an_answer_in_any_format_says_what_each_result_is(tiny: httpx.Client, accept: str) -> None:
    found = manifest_of(post(tiny, {"tokens": ids(5), "outputs": OUTPUTS}, accept=accept))
    model = tiny.get("/model").json()
    assert found["model"] == model["name"]
    assert found["weights_sha256"] == model["weights_sha256"]
    assert found["compute_dtype"] == "float32"
    assert found["results"] == {"map": model["points"]["layers.1.attn_probs"] | {"dtype": "float16"}}
    result = found["results"]["map"]
    assert result["point"] == "layers.1.attn_probs"
    assert result["layer"] == 1
    assert result["axes"] == ["head", "query", "key"]
    assert result["causal"] is True
    assert result["scale"] == pytest.approx(7**-0.5)
    assert result["softmax_dtype"] == "float32"
    assert result["normed"] is False


def test_it_says_what_is_normed_and_where_positions_are(tiny: httpx.Client, smollm2_client: httpx.Client) -> None:
    call = {
        "tokens": ids(3),
        "outputs": ["embeddings", "layers.1.ln1", "layers.1.q", "layers.2.resid_post", "final_norm"],
    }
    learned = manifest_of(post(tiny, call))["results"]
    rotary = manifest_of(post(smollm2_client, call))["results"]
    assert [one["normed"] for one in learned.values()] == [False, True, False, False, True]
    assert all(one["positions"] for one in learned.values()), "learned positions are added before the first layer"
    assert [name for name, one in rotary.items() if one["positions"]] == ["layers.1.q"]


def test_both_tensors_of_a_top_k_are_described(tiny: httpx.Client) -> None:
    found = manifest_of(post(tiny, {"tokens": ids(3), "outputs": [{"name": "logits", "top_k": 2}]}))["results"]
    assert list(found) == ["logits.values", "logits.indices"]
    assert found["logits.indices"]["point"] == "logits"

"""What may be sent, and what every answer says of itself."""

import json
import re
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tokenizers import Tokenizer

from model.checkpoint.packages import packaged_model
from tests.server import Server
from tests.service.calls import Array, ask, assert_rows_close, ids, outputs, post, problem, rows, same_bits

N = 7
TEXT = "The river Thames begins as a spring, été ☂ and ends in the sea."
Weights = dict[str, Array]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    directory: Path = packaged_model("smollm2-135m-instruct", print)
    return Tokenizer.from_file(str(directory / "tokenizer.json"))


def test_tokens_enter_as_their_embedding_plus_position(tiny: httpx.Client, tiny_weights: Weights) -> None:
    found = ask(tiny, {"tokens": ids(N), "outputs": ["embeddings"]})["embeddings"]
    expected = tiny_weights["E"][ids(N)] + tiny_weights["P"][:N]
    assert same_bits(found, expected)


def test_inputs_embeds_get_positions_added(tiny: httpx.Client, tiny_weights: Weights) -> None:
    asked = {"outputs": ["embeddings", "layers.2.resid_post"]}
    expected = ask(tiny, asked | {"tokens": ids(N)})
    found = ask(tiny, asked | {"inputs_embeds": tiny_weights["E"][ids(N)].tolist()})
    for name, array in expected.items():
        assert same_bits(found[name], array), name


def test_x_enters_as_it_is(tiny: httpx.Client, tiny_weights: Weights) -> None:
    asked = {"outputs": ["embeddings", "layers.2.resid_post", "logits"]}
    expected = ask(tiny, asked | {"tokens": ids(N)})
    found = ask(tiny, asked | {"x": (tiny_weights["E"][ids(N)] + tiny_weights["P"][:N]).tolist()})
    for name, array in expected.items():
        assert same_bits(found[name], array), name


def test_x_may_be_longer_than_the_position_table(tiny: httpx.Client) -> None:
    assert ask(tiny, {"outputs": ["final_norm"]}, {"x": rows(67)})["final_norm"].shape == (67, 30)


def test_a_single_row_is_enough(tiny: httpx.Client) -> None:
    found = ask(tiny, {"tokens": [100], "outputs": ["layers.0.attn_probs", "logits"]})
    np.testing.assert_array_equal(found["layers.0.attn_probs"], np.ones((2, 1, 1), np.float32))
    assert found["logits"].shape == (1, 101)


def test_the_last_layers_output_is_what_comes_by_default(tiny: httpx.Client) -> None:
    found = ask(tiny, {"tokens": ids(N)})
    assert {name: array.shape for name, array in found.items()} == {"layers.2.resid_post": (N, 30)}


def test_integers_among_the_numbers_of_x_are_numbers(tiny: httpx.Client) -> None:
    whole = np.arange(60).reshape(2, 30)
    expected = ask(tiny, {"x": whole.astype(float).tolist()})
    assert same_bits(*(ask(tiny, {"x": whole.tolist()}) | expected).values(), *expected.values())


def test_learned_positions_may_be_chosen(tiny: httpx.Client, tiny_weights: Weights) -> None:
    positions = [60, 3, 3, 0, 17, 2, 29]
    found = ask(tiny, {"tokens": ids(N), "positions": positions, "outputs": ["embeddings", "layers.1.attn_probs"]})
    assert same_bits(found["embeddings"], tiny_weights["E"][ids(N)] + tiny_weights["P"][positions])
    # the mask follows the order of the rows, whatever the positions are
    np.testing.assert_array_equal(found["layers.1.attn_probs"] > 0, np.broadcast_to(np.tri(N, dtype=bool), (2, N, N)))


def test_positions_count_from_0_where_none_are_given(tiny: httpx.Client, smollm2_client: httpx.Client) -> None:
    for client, name in ((tiny, "layers.1.q"), (smollm2_client, "layers.0.q")):
        asked = {"tokens": ids(N), "outputs": [name]}
        plain = ask(client, asked)[name]
        assert same_bits(ask(client, asked | {"positions": list(range(N))})[name], plain)
        assert not same_bits(ask(client, asked | {"positions": [5] * N})[name], plain)


def test_rotary_positions_go_with_x_and_only_distances_matter(smollm2_client: httpx.Client) -> None:
    x = rows(N, 576)
    asked = {"outputs": ["layers.2.attn_probs", "layers.0.q"], "x": x.tolist()}
    plain = ask(smollm2_client, asked)
    shifted = ask(smollm2_client, asked | {"positions": [1009 + i for i in range(N)]})
    assert np.abs(plain["layers.0.q"] - shifted["layers.0.q"]).max() > 0.01
    np.testing.assert_allclose(shifted["layers.2.attn_probs"], plain["layers.2.attn_probs"], atol=2e-3)


def test_text_goes_through_the_models_own_tokenizer(smollm2_client: httpx.Client, tokenizer: Tokenizer) -> None:
    response = post(smollm2_client, {"text": TEXT, "outputs": ["layers.0.resid_pre"]})
    expected = tokenizer.encode(TEXT).ids
    tokens = response.json()["tokens"]
    assert tokens["ids"] == expected
    assert len(tokens["strings"]) == len(expected)
    assert tokens["strings"][:2] == ["The", " river"]
    assert response.json()["usage"]["tokens"] == len(expected)
    again = ask(smollm2_client, {"tokens": expected, "outputs": ["layers.0.resid_pre"]})
    assert same_bits(outputs(response)["layers.0.resid_pre"], again["layers.0.resid_pre"])


@pytest.mark.parametrize("special", [True, False])
def test_add_special_tokens_is_passed_to_the_tokenizer(
    smollm2_client: httpx.Client, tokenizer: Tokenizer, special: bool
) -> None:
    fields = {"text": TEXT, "add_special_tokens": special, "outputs": ["embeddings"]}
    found = post(smollm2_client, fields).json()["tokens"]["ids"]
    assert found == tokenizer.encode(TEXT, add_special_tokens=special).ids


def test_tokens_come_back_with_their_ids_and_with_strings_where_there_is_a_tokenizer(
    tiny: httpx.Client, smollm2_client: httpx.Client
) -> None:
    assert post(tiny, {"tokens": ids(N)}).json()["tokens"]["ids"] == ids(N)
    tokens = post(smollm2_client, {"tokens": [504, 7], "outputs": ["embeddings"]}).json()["tokens"]
    assert tokens["ids"] == [504, 7]
    assert len(tokens["strings"]) == 2
    assert all(isinstance(one, str) for one in tokens["strings"])


def test_x_has_no_tokens_in_its_answer(tiny: httpx.Client) -> None:
    assert "tokens" not in post(tiny, {}, {"x": rows(N)}).json()


def test_inputs_may_be_of_any_kinds_and_lengths(smollm2_client: httpx.Client) -> None:
    inputs: list[dict[str, Any]] = [
        {"text": "two seas"},
        {"x": rows(5, 576).tolist(), "start": 28},
        {"tokens": ids(11, 49152), "positions": list(range(3, 14))},
        {"inputs_embeds": rows(3, 576).tolist()},
    ]
    asked = {"outputs": ["layers.29.z", {"name": "final_norm", "pool": "mean", "as": "mean"}]}
    response = post(smollm2_client, asked | {"inputs": inputs}, accept="safetensors")
    found = outputs(response)
    expected: dict[str, Array] = {}
    for i, one in enumerate(inputs):
        expected |= {f"{i}.{name}": array for name, array in ask(smollm2_client, asked | one).items()}
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert_rows_close(found[name], array)


def test_the_names_of_a_single_input_in_a_list_have_its_number_too(tiny: httpx.Client) -> None:
    response = post(
        tiny, {"inputs": [{"tokens": ids(N)}], "outputs": ["final_norm", {"name": "layers.0.v", "as": "v"}]}
    )
    assert list(response.json()["outputs"]) == ["0.final_norm", "0.v"]
    assert isinstance(response.json()["usage"], list)
    assert [one["ids"] for one in response.json()["tokens"]] == [ids(N)]


def test_inputs_are_all_or_nothing_and_the_one_at_fault_is_named(tiny: httpx.Client) -> None:
    inputs = [{"tokens": ids(3)}, {"tokens": [5, 101]}, {"tokens": ids(5)}]
    refusal = problem(post(tiny, {"inputs": inputs}), 422)
    assert refusal["errors"][0]["pointer"] == "/inputs/1/tokens/1"


def test_outputs_must_be_right_for_each_input(tiny: httpx.Client) -> None:
    inputs = [{"x": rows(5).tolist()}, {"x": rows(3).tolist()}]
    asked = {"outputs": [{"name": "final_norm", "rows": [4]}], "inputs": inputs}
    assert problem(post(tiny, asked), 422)["errors"][0]["pointer"] == "/outputs/0/rows/0"
    inputs[1]["start"] = 2  # type: ignore[assignment]
    problem(post(tiny, {"inputs": inputs, "outputs": ["layers.1.q"]}), 422)


def test_inputs_that_start_at_different_layers_get_their_own_layers_of_a_pattern(tiny: httpx.Client) -> None:
    inputs = [{"x": rows(5).tolist(), "start": 1}, {"x": rows(3).tolist(), "start": 2}, {"tokens": ids(2)}]
    found = ask(tiny, {"inputs": inputs, "outputs": ["layers.*.ln1"]})
    assert sorted(found) == [
        *("0.layers.1.ln1", "0.layers.2.ln1"),
        "1.layers.2.ln1",
        *("2.layers.0.ln1", "2.layers.1.ln1", "2.layers.2.ln1"),
    ]


def test_usage_counts_tokens_times_and_the_batch(tiny: httpx.Client) -> None:
    usage = post(tiny, {"tokens": ids(N)}).json()["usage"]
    assert usage["tokens"] == N
    assert usage["queue_ms"] >= 0
    assert usage["compute_ms"] > 0
    assert usage["batch"]["sequences"] >= 1
    assert usage["batch"]["tokens"] >= N


def test_usage_has_an_entry_for_each_input(tiny: httpx.Client) -> None:
    usage = post(tiny, {"inputs": [{"tokens": ids(n)} for n in (3, 5, 2)]}).json()["usage"]
    assert [one["tokens"] for one in usage] == [3, 5, 2]
    assert [one["batch"] for one in usage] == [{"sequences": 3, "tokens": 10}] * 3


def test_server_timing_has_the_times_of_usage(tiny: httpx.Client) -> None:
    response = post(tiny, {"tokens": ids(N)})
    timing = dict(re.findall(r"(\w+);dur=([\d.]+)", response.headers["server-timing"]))
    usage = response.json()["usage"]
    assert float(timing["queue"]) == pytest.approx(usage["queue_ms"], abs=0.01)
    assert float(timing["compute"]) == pytest.approx(usage["compute_ms"], abs=0.01)


def test_a_request_id_is_taken_over_and_stands_in_the_log_without_content(
    tiny: httpx.Client, tiny_server: Server
) -> None:
    response = post(tiny, {"x": np.full((2, 30), 0.7431).tolist()}, headers={"X-Request-Id": "river-1013"})
    assert response.headers["x-request-id"] == "river-1013"
    line = json.loads(tiny_server.wait_for_line("river-1013"))
    assert line["status"] == 200
    assert line["route"] == "/forward"
    assert "0.7431" not in "\n".join(tiny_server.lines)


def test_the_text_of_a_caller_is_never_in_the_log(smollm2_client: httpx.Client, smollm2_server: Server) -> None:
    asked = {"text": "a secret xylophone", "outputs": ["embeddings"]}
    post(smollm2_client, asked, headers={"X-Request-Id": "river-1019"})
    post(smollm2_client, asked | {"outputs": ["nowhere"]}, headers={"X-Request-Id": "river-1021"})
    smollm2_server.wait_for_line("river-1019")
    assert "422" in smollm2_server.wait_for_line("river-1021")
    assert "xylophone" not in "\n".join(smollm2_server.lines)


def test_a_request_id_is_made_where_none_or_a_useless_one_came(tiny: httpx.Client, tiny_server: Server) -> None:
    made = [post(tiny, {"tokens": [2]}).headers["x-request-id"] for _ in range(2)]
    made.append(post(tiny, {"tokens": [2]}, headers={"X-Request-Id": "x" * 5000}).headers["x-request-id"])
    made.append(post(tiny, {"tokens": [2]}, headers={"X-Request-Id": "two words"}).headers["x-request-id"])
    assert len(set(made)) == 4
    assert all(8 <= len(one) <= 128 for one in made)
    for one in made:
        tiny_server.wait_for_line(one)


def test_a_refusal_has_a_request_id_and_a_log_line_too(tiny: httpx.Client, tiny_server: Server) -> None:
    response = post(tiny, {"tokens": []}, headers={"X-Request-Id": "river-1031"})
    assert response.headers["x-request-id"] == "river-1031"
    assert json.loads(tiny_server.wait_for_line("river-1031"))["status"] == 422


def test_the_log_is_one_json_line_a_request(tiny: httpx.Client, tiny_server: Server) -> None:
    post(tiny, {"tokens": ids(N)}, headers={"X-Request-Id": "river-1033"})
    line = json.loads(tiny_server.wait_for_line("river-1033"))
    assert line["tokens"] == N
    assert line["bytes_in"] > 0
    assert line["bytes_out"] > 0
    assert len([one for one in tiny_server.lines if "river-1033" in one]) == 1

"""What a call gives: the numbers of the service, without a copy, the same from both clients."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import torch

from headwater_client import Answer, BrokenAnswer, Client, Output, Retries
from tests.client.conftest import async_client_of, client_of
from tests.server import Server
from tests.service.calls import ask, assert_rows_close, ids, rows, same_bits

CALL: dict[str, Any] = {"tokens": ids(13), "outputs": ["layers.*.attn_probs", "layers.1.z", "logits"]}


def test_an_answer_has_the_arrays_of_a_plain_call_by_the_same_names(client: Client, tiny: httpx.Client) -> None:
    answer, plain = client.forward(**CALL), ask(tiny, CALL)
    assert set(answer) == set(plain)
    assert len(answer) == len(plain) == 5
    for name, array in answer.items():
        assert same_bits(array, plain[name]), name


def test_an_answer_says_what_made_it(client: Client) -> None:
    answer = client.forward(**CALL, request_id="said-by-me")
    assert answer.request_id == "said-by-me"
    assert answer.model == "tiny"
    assert answer.usage["tokens"] == 13
    assert answer.tokens["ids"] == CALL["tokens"]
    assert answer.manifest["results"]["layers.1.z"]["axes"] == ["head", "row", "width"]
    assert answer.about.weights_sha256 == client.model().weights_sha256
    assert answer.nbytes == sum(array.nbytes for array in answer.values())


def test_arrays_are_views_of_one_buffer_that_can_be_written_to(client: Client) -> None:
    answer = client.forward(**CALL)
    bases = {id(_owner(array)) for array in answer.values()}
    assert len(bases) == 1
    first = answer["layers.1.z"]
    first[:] = 7.0
    assert (answer["layers.1.z"] == 7.0).all()


def _owner(array: np.ndarray[Any, Any]) -> Any:
    while array.base is not None:
        array = array.base  # type: ignore[assignment]
    return array


def test_torch_tensors_share_the_memory_of_the_arrays(client: Client) -> None:
    answer = client.forward(**CALL)
    tensors = answer.torch()
    assert set(tensors) == set(answer)
    for name, tensor in tensors.items():
        assert tensor.data_ptr() == answer[name].ctypes.data
        assert np.array_equal(tensor.numpy(), answer[name])


def test_bfloat16_is_widened_exactly_and_stays_itself_in_bits_and_in_torch(client: Client) -> None:
    half, full = ({"name": "final_norm", "as": dtype, "dtype": dtype} for dtype in ("bfloat16", "float32"))
    answer = client.forward(tokens=ids(7), outputs=[half, full])
    wide, exact = answer["bfloat16"], answer["float32"]
    assert wide.dtype == np.float32
    assert np.array_equal(wide, exact.astype(ml_dtypes.bfloat16).astype(np.float32))
    assert np.array_equal(answer.bits("bfloat16").view(ml_dtypes.bfloat16).astype(np.float32), wide)
    tensor = answer.torch()["bfloat16"]
    assert tensor.dtype is torch.bfloat16
    assert tensor.data_ptr() == answer.bits("bfloat16").ctypes.data
    assert np.array_equal(tensor.float().numpy(), wide)


@pytest.mark.parametrize("kind", ["float64", "float32", "float16", "bfloat16", "torch", "torch bfloat16", "lists"])
def test_a_matrix_may_come_in_any_type_of_number(client: Client, kind: str) -> None:
    x = rows(7).astype(ml_dtypes.bfloat16).astype(np.float32)  # exact in bfloat16; float16 rounds it again
    given: Any = {
        "torch": lambda: torch.from_numpy(x),
        "torch bfloat16": lambda: torch.from_numpy(x).bfloat16(),
        "lists": x.tolist,
        "bfloat16": lambda: x.astype(ml_dtypes.bfloat16),
    }.get(kind, lambda: x.astype(kind))()
    sent = x.astype(np.float16).astype(np.float32) if kind == "float16" else x
    found = client.forward(x=given, outputs=["layers.0.resid_pre"])["layers.0.resid_pre"]
    assert same_bits(found, sent)


def test_a_matrix_that_does_not_lie_row_by_row_is_sent_as_what_it_is(client: Client) -> None:
    x = rows(30, 7).T
    assert np.array_equal(client.forward(x=x, outputs="layers.0.resid_pre")["layers.0.resid_pre"], x)


def test_a_matrix_of_megabytes_goes_and_comes_as_it_is_with_both_clients(tiny_server: Server) -> None:
    x = rows(20_011)

    async def of_the_other() -> Answer:
        async with async_client_of(tiny_server) as client:
            return await client.forward(x=x, outputs="layers.0.resid_pre")

    with client_of(tiny_server) as client:
        for answer in (client.forward(x=x, outputs="layers.0.resid_pre"), asyncio.run(of_the_other())):
            assert same_bits(answer["layers.0.resid_pre"], x)


def test_tokens_give_the_same_as_a_list_as_an_array_and_as_a_tensor(client: Client) -> None:
    several = [ids(11), np.array(ids(11), np.uint8), torch.tensor(ids(11))]
    one, *others = [client.forward(tokens=tokens)["layers.2.resid_post"] for tokens in several]
    assert all(same_bits(one, other) for other in others)


def test_several_inputs_of_every_kind_are_told_apart_again(client: Client) -> None:
    middle = client.forward(tokens=ids(5), outputs="layers.0.resid_post")["layers.0.resid_post"]
    inputs = [ids(7), {"x": middle, "start": 1}, rows(3), np.array(ids(5)), {"tokens": ids(2), "positions": [3, 9]}]
    answer = client.forward(inputs=inputs, outputs=["layers.2.resid_post"])
    found = [one["layers.2.resid_post"] for one in answer.split()]
    assert [len(one) for one in found] == [7, 5, 3, 5, 2]
    assert len(answer.usage) == 5
    assert_rows_close(found[1], found[3])
    assert_rows_close(found[0], client.forward(tokens=ids(7))["layers.2.resid_post"])
    assert_rows_close(found[4], client.forward(tokens=ids(2), positions=np.array([3, 9]))["layers.2.resid_post"])


def test_an_output_object_says_what_its_json_says(client: Client) -> None:
    objects = [
        Output("layers.1.attn_probs", as_="cut", heads=range(1, 2), rows=slice(1, 4), keys=np.array([0, 2])),
        Output("logits", rows=[-1, 0], top_k=3, dtype="float16"),
        Output("final_norm", pool="mean"),
    ]
    fields = [
        {"name": "layers.1.attn_probs", "as": "cut", "heads": [1], "rows": {"start": 1, "stop": 4}, "keys": [0, 2]},
        {"name": "logits", "rows": [-1, 0], "top_k": 3, "dtype": "float16"},
        {"name": "final_norm", "pool": "mean"},
    ]
    found, expected = (client.forward(tokens=ids(7), outputs=outputs) for outputs in (objects, fields))
    assert {name: a.shape for name, a in found.items()} == {
        "cut": (1, 3, 2), "logits.values": (2, 3), "logits.indices": (2, 3), "final_norm": (30,),
    }  # fmt: skip
    assert all(same_bits(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({}, "exactly one input"),
        ({"tokens": [1], "text": "a"}, "exactly one input .* not tokens, text"),
        ({"inputs": [[1]], "start": 1}, "start: with inputs"),
        ({"x": [[1.0], [1.0, 2.0]]}, "x: its rows"),
        ({"x": np.array([["a"]])}, "x: an array of dtype"),
        ({"inputs": [{"tokens": [1], "strat": 1}]}, "0.strat: an input has no such field"),
        ({"tokens": [[1], [2, 3]]}, "tokens: must be a list of integers"),
        ({"tokens": ["secret"]}, "tokens: must be a list of integers"),
        ({"tokens": [1], "positions": [0.5]}, "positions: must be a list of integers"),
        ({"tokens": [1], "positions": 5}, "positions: must be a list of integers .* not int"),
        ({"text": b"secret"}, "text: must be a string, not bytes"),
        ({"text": "secret", "add_special_tokens": "no"}, "add_special_tokens: must be True or False, not str"),
        ({"x": rows(2), "start": "3"}, "start: must be an integer, not str"),
        ({"x": rows(2), "start": 1.0}, "start: must be an integer, not float"),
        ({"x": "secret"}, "x: an array of dtype"),
        ({"x": [None]}, "x: an array of dtype object"),
        ({"tokens": [1], "timeout_ms": "5"}, "timeout_ms: must be an integer, not str"),
        ({"inputs": "secret"}, "inputs: must be a collection of inputs, not one str"),
        ({"inputs": 5}, "inputs: must be a list of inputs, not int"),
        ({"inputs": [[1], {"text": 5}]}, "inputs.1.text: must be a string, not int"),
        ({"inputs": [[1], {"x": [["secret"]]}]}, "inputs.1.x: an array of dtype"),
        ({"inputs": [[1], 5.5]}, "inputs.1: must be a text, token ids"),
        ({"inputs": [[1], {}]}, "inputs.1: exactly one of x, inputs_embeds, tokens, text is needed, not none"),
        ({"inputs": [{5: "secret", "text": "a"}]}, "inputs.0.5: an input has no such field"),
        ({"tokens": [1], "outputs": 5}, "outputs: must be a name, an Output, an object, or a list of them, not int"),
        ({"tokens": [1], "outputs": ["z", 5]}, "outputs.1: must be a name, an Output or an object, not int"),
        ({"tokens": [1], "outputs": [{"name": b"secret"}]}, "outputs.0: cannot be sent as JSON: a bytes"),
        ({"tokens": [1], "outputs": [{"name": "z", "top_k": float("nan")}]}, "outputs.0: cannot be sent as JSON"),
        ({"tokens": [1], "outputs": Output("z", heads=[0.5])}, "outputs.0.heads: must be a list of integers"),
        ({"tokens": [1], "outputs": Output("z", top_k="3")}, "outputs.0.top_k: must be an integer, not str"),
        ({"tokens": [1], "outputs": Output("z", as_=5)}, "outputs.0.as: must be a string, not int"),
        ({"tokens": [1], "outputs": Output("z", rows=slice("a", None))}, "outputs.0.rows.start: must be an integer"),
        ({"tokens": [1], "outputs": Output("final_norm", rows=slice(0, 4, 2))}, "rows: a slice has no step"),
        ({"tokens": [1], "request_id": "two words"}, "request_id: "),
    ],
)
def test_what_is_no_request_whatever_the_model_is_refused_here_with_the_field(
    client: Client, call: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as failed:
        client.forward(**call)
    assert "secret" not in str(failed.value), "what was sent stands in no message"


def test_an_argument_that_is_none_is_a_type_error(client: Client) -> None:
    with pytest.raises(TypeError, match="'output'"):
        client.forward(tokens=[1], output="logits")  # type: ignore[call-arg]


def test_a_saved_answer_reads_the_same_here_and_in_the_formats_own_library(client: Client, tmp_path: Path) -> None:
    answer = client.forward(**CALL)
    answer.save(tmp_path / "one.safetensors")
    again, theirs = Answer.load(tmp_path / "one.safetensors"), safetensors.numpy.load_file(tmp_path / "one.safetensors")
    assert again.manifest == answer.manifest
    for name, array in answer.items():
        assert same_bits(array, again[name])
        assert same_bits(array, theirs[name])
    with pytest.raises(ValueError, match="read-only"):
        again["logits"][:] = 0


def test_a_stream_gives_the_tensors_of_the_whole_answer_in_the_order_of_the_stack(
    small_server: Server, client: Client
) -> None:
    call = {"tokens": ids(13), "outputs": ["logits", "layers.*.resid_post", "layers.*.attn_probs"]}
    whole = client.forward(**call)
    with client_of(small_server) as other, other.stream(**call, request_id="piece-by-piece") as stream:
        assert stream.about.model == "tiny"
        assert stream.about.request_id == "piece-by-piece"
        assert stream.about.tokens["ids"] == ids(13)
        names = stream.names
        found = list(stream)
    assert [name for name, _ in found] == names
    assert names[-1] == "logits"
    assert [name.split(".")[1] for name in names[:-1]] == ["0", "0", "1", "1", "2", "2"]
    assert all(same_bits(array, whole[name]) for name, array in found)
    assert len(found) == len(whole)


def test_the_first_layer_of_a_stream_is_there_before_the_last_one_has_been_sent(mgm_server: Server) -> None:
    """64 MB are more than the buffers on the way hold: what is taken first was there before the rest was sent."""
    with client_of(mgm_server) as client:
        stream = client.stream(tokens=ids(499, 9669), outputs=["layers.*.attn_probs"], request_id="slow-reader")
        name, first = next(stream)
        assert (name, first.shape) == ("layers.0.attn_probs", (8, 499, 499))
        assert not [line for line in mgm_server.lines if '"slow-reader"' in line], "the call has ended already"
        stream.close()  # and the rest is not asked for
        line = json.loads(mgm_server.wait_for_line('"slow-reader"'))
        assert line["code"] == "caller_left", line


def test_a_streamed_answer_that_fails_on_the_way_is_a_broken_answer(small_server: Server) -> None:
    x = np.full((5, 30), 1e5, dtype=np.float32)
    x[:, ::2] *= -1
    call: Any = {"x": x, "outputs": ["layers.0.ln1", {"name": "layers.2.resid_post", "dtype": "float16"}]}
    with client_of(small_server, retries=Retries(first_wait=0.01)) as client:
        stream = client.stream(**call)
        assert next(stream)[0] == "layers.0.ln1"
        with pytest.raises(BrokenAnswer) as failed:
            next(stream)
        assert failed.value.request_id
        with pytest.raises(BrokenAnswer):
            client.forward(**call)
        assert client.forward(**CALL)["logits"].shape == (13, 101)


def test_dry_run_model_and_readiness_are_typed(client: Client) -> None:
    cost = client.dry_run(**CALL)
    answer = client.forward(**CALL)
    assert cost.admitted
    assert cost.answer_bytes == answer.nbytes
    assert {name: tuple(one["shape"]) for name, one in (cost.results or {}).items()} == {
        name: array.shape for name, array in answer.items()
    }
    refused = client.dry_run(n=7, outputs="layers.9.z")
    assert (refused.admitted, refused.code, refused.status) == (False, "unknown_point", 422)
    assert refused.errors[0].pointer == "/outputs/0/name"
    model = client.model()
    assert (model.layers, model.d_model, model.heads, model.d_k, model.d_v) == (3, 30, 2, 7, 5)
    assert "layers.2.z" in model.points
    assert client.ready()
    client.wait_until_ready(1.0)


def test_both_clients_give_the_same(small_server: Server) -> None:
    async def of_the_other() -> tuple[Answer, list[tuple[str, Any]], Any, Any, bool]:
        async with async_client_of(small_server) as client:
            await client.wait_until_ready(1.0)
            answer = await client.forward(**CALL)
            stream = await client.stream(**CALL)
            tensors = [pair async for pair in stream]
            return answer, tensors, await client.dry_run(**CALL), await client.model(), await client.ready()

    answer, tensors, cost, model, ready = asyncio.run(of_the_other())
    with client_of(small_server) as client:
        expected = client.forward(**CALL)
        assert list(answer) == list(expected)
        assert all(same_bits(answer[name], expected[name]) for name in expected)
        streamed = list(client.stream(**CALL))
        assert [name for name, _ in tensors] == [name for name, _ in streamed]
        assert all(same_bits(a, b) for (_, a), (_, b) in zip(tensors, streamed, strict=True))
        assert (cost, model, ready) == (client.dry_run(**CALL), client.model(), True)

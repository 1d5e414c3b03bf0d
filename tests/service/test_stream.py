"""A large safetensors answer goes out while it is made."""

import asyncio
import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import safetensors.numpy

from service.host_tensor import HostTensor
from service.result_stream import ResultStream
from tests.server import Server, serving
from tests.service.calls import SAFETENSORS, ask, assert_rows_close, ids, post, problem, rows, same_bits

ACCEPT = {"Accept": SAFETENSORS}


@pytest.fixture(scope="module")
def streaming_server(tiny_directory: Path) -> Iterator[Server]:
    """The tiny model; every safetensors answer is streamed, and few rows fit a batch."""
    with serving(tiny_directory, "--threads", "1", "--stream-above-bytes", "1", "--max-batch-tokens", "17") as server:
        yield server


@pytest.fixture
def streaming(streaming_server: Server) -> Iterator[httpx.Client]:
    with streaming_server.client() as client:
        yield client


def header_of(content: bytes) -> dict[str, Any]:
    (size,) = struct.unpack_from("<Q", content)
    header: dict[str, Any] = json.loads(content[8 : 8 + size])
    return header


CALL: dict[str, Any] = {
    "tokens": ids(13),
    "outputs": ["logits", "layers.2.resid_post", {"name": "layers.*.attn_probs", "dtype": "float16"}, "layers.0.z"],
}


def test_a_streamed_answer_is_the_whole_one_bit_for_bit(streaming: httpx.Client, tiny: httpx.Client) -> None:
    streamed, whole = ask(streaming, CALL), ask(tiny, CALL)
    assert set(streamed) == set(whole)
    assert all(same_bits(streamed[name], whole[name]) for name in whole)


def test_its_header_says_all_but_how_long_the_computation_took(streaming_server: Server) -> None:
    with streaming_server.client() as client:
        response = post(client, CALL, accept="safetensors", headers={"X-Request-Id": "how-long"})
    metadata = header_of(response.content)["__metadata__"]
    usage = json.loads(metadata["usage"])
    assert usage["tokens"] == 13
    assert usage["batch"] == {"sequences": 1, "tokens": 13}
    assert usage["queue_ms"] >= 0
    assert "compute_ms" not in usage
    assert json.loads(metadata["tokens"])["ids"] == CALL["tokens"]
    assert json.loads(metadata["manifest"])["results"]["logits"]["point"] == "logits"
    assert "compute" not in response.headers["server-timing"]
    assert json.loads(streaming_server.wait_for_line('"how-long"'))["compute_ms"] > 0


def test_tensors_stand_in_the_order_in_which_they_are_made(streaming: httpx.Client) -> None:
    call = {"tokens": ids(5), "outputs": ["logits", "layers.2.attn_probs", "layers.*.resid_post", "layers.0.q"]}
    header = header_of(post(streaming, call, accept="safetensors").content)
    del header["__metadata__"]
    assert sorted(header, key=lambda name: header[name]["data_offsets"]) == [
        "layers.0.q",
        "layers.0.resid_post",
        "layers.1.resid_post",
        "layers.2.attn_probs",
        "layers.2.resid_post",
        "logits",
    ]


def test_sequences_that_span_batches_are_streamed_together(streaming: httpx.Client) -> None:
    lengths = (11, 3, 16, 7)  # 17 rows fit a batch
    call = {"inputs": [{"tokens": ids(n)} for n in lengths], "outputs": ["layers.*.resid_post"]}
    found = ask(streaming, call)
    for i, n in enumerate(lengths):
        alone = ask(streaming, {"tokens": ids(n), "outputs": ["layers.*.resid_post"]})
        for name in alone:
            assert_rows_close(found[f"{i}.{name}"], alone[name])


def test_the_first_layer_arrives_well_before_the_last_one_is_computed(smollm2_server: Server) -> None:
    call = {"tokens": ids(701, 49152), "outputs": ["layers.*.resid_post"]}  # 30 layers, 48 MB
    first_layer = 701 * 576 * 4
    with (
        smollm2_server.client() as client,
        client.stream("POST", "/forward", json=call, headers=ACCEPT) as response,
    ):
        assert response.status_code == 200
        began, came, first = time.monotonic(), 0, None
        for chunk in response.iter_raw():
            came += len(chunk)
            if first is None and came > first_layer + 20_000:  # the header is smaller than this
                first = time.monotonic() - began
        whole = time.monotonic() - began
    assert first is not None
    assert first < whole / 3, f"the first layer came after {first:.2f} of {whole:.2f} seconds"


def test_a_failure_in_the_middle_leaves_the_body_short_and_the_service_up(streaming: httpx.Client) -> None:
    x = np.full((5, 30), 1e5, dtype=np.float32)
    x[:, ::2] *= -1
    outputs = ["layers.0.ln1", {"name": "layers.2.resid_post", "dtype": "float16"}]
    call = {"x": x.tolist(), "outputs": outputs}
    with streaming.stream("POST", "/forward", json=call, headers=ACCEPT) as response:
        assert response.status_code == 200
        with pytest.raises(httpx.RemoteProtocolError):
            response.read()
    assert len(ask(streaming, CALL)) == 6


def test_what_is_wrong_at_the_door_is_a_refusal_as_ever(streaming: httpx.Client) -> None:
    problem(post(streaming, {"tokens": [101]}, accept="safetensors"), 422)


def test_a_reader_who_is_slow_or_leaves_holds_up_nobody(mgm_server: Server) -> None:
    call = {"tokens": ids(499, 9669), "outputs": ["layers.*.attn_probs"]}  # 64 MB: more than any buffer on the way
    with mgm_server.client() as slow, mgm_server.client() as other:
        with slow.stream("POST", "/forward", json=call, headers=ACCEPT) as response:
            pieces = response.iter_raw()
            held = [next(pieces)]
            small = {"tokens": ids(7, 9669)}
            assert ask(other, small)["layers.7.resid_post"].shape == (7, 256)
            held += pieces
            found = safetensors.numpy.load(b"".join(held))
        with slow.stream("POST", "/forward", json=call, headers=ACCEPT) as response:
            next(response.iter_raw())  # and away
        again = ask(other, call | {"outputs": ["layers.7.attn_probs"]})
        assert same_bits(found["layers.7.attn_probs"], again["layers.7.attn_probs"])


def test_a_tensor_that_was_made_twice_is_sent_as_it_was_first() -> None:
    asyncio.run(_made_twice())


async def _made_twice() -> None:
    stream = ResultStream()
    first, rest, again = (HostTensor("float32", rows(n, 2, n)) for n in (3, 2, 3))
    stream.deliver("a", 0, first)
    assert await stream.take("a") is first
    stream.deliver("a", 0, again)  # the batch runs again: its first part went out already, the second did not
    stream.deliver("a", first.data.nbytes, rest)
    stream.deliver("b", 0, again)
    stream.deliver("b", 0, first)
    assert await stream.take("a") is rest
    assert await stream.take("b") is again


def test_a_map_goes_out_in_the_parts_in_which_it_is_made(mgm_server: Server) -> None:
    # 8 heads of 25 MB: a block of scores has room for one
    x = rows(2503, 256)
    with mgm_server.client() as client:
        whole = {"name": "layers.0.attn_probs", "heads": [0, 3], "rows": [-1, 0, 1251]}
        found = ask(client, {"outputs": ["layers.0.attn_probs"]}, {"x": x}, body="safetensors")
        part = ask(client, {"outputs": [whole]}, {"x": x}, body="safetensors")
    np.testing.assert_allclose(
        found["layers.0.attn_probs"][[0, 3]][:, [-1, 0, 1251]], part["layers.0.attn_probs"], rtol=1e-5, atol=1e-8
    )
    np.testing.assert_allclose(found["layers.0.attn_probs"].sum(-1), 1, rtol=1e-5)
    assert np.triu(found["layers.0.attn_probs"], 1).max() == 0

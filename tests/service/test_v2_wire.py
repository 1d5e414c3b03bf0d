"""The Open Inference Protocol's bodies without a server: whatever comes is a call or a refusal."""

import asyncio
import gzip
import json
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi import FastAPI
from hypothesis import given, settings
from hypothesis import strategies as st

from model.checkpoint.initialise import initialise
from model.checkpoint.load import LoadedModel, load_model
from service.app import create_app
from service.errors import Malformed, ServiceError, TooLarge, Unprocessable
from service.infer import admit_infer
from service.settings import Settings
from service.wire import json_body
from service.wire.coding import packed, unpacked
from service.wire.json_lists import integers, matrix
from service.wire.v2_request import decode

D = 6


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    directory = tmp_path_factory.mktemp("models") / "small"
    initialise(
        directory,
        seed=3,
        n_layers=2,
        d_model=D,
        n_heads=2,
        d_k=3,
        d_v=5,
        d_ff=7,
        vocab_size=11,
        max_positions=13,
    )
    return load_model(Path(directory), name="small", dtype="float32", device="cpu")


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
DATATYPES = st.sampled_from(["FP64", "FP32", "FP16", "BF16", "INT64", "INT32", "INT8", "UINT64", "UINT8", "BYTES"])
NUMBERS = st.lists(st.integers(-3, 12) | st.floats(-9, 9), max_size=14)
LIST_TEXT = st.sampled_from(["[0]", "[-1, 0]", '{"start": 1}', "[", "[99]", "[]", "null", "0"]) | JUNK
SELECTION = st.fixed_dictionaries(
    {},
    optional={
        "as": st.sampled_from(["a", "b", ""]) | JUNK,
        "heads": LIST_TEXT,
        "rows": LIST_TEXT,
        "keys": LIST_TEXT,
        "top_k": st.integers(-1, 20) | JUNK,
        "pool": st.just("mean") | JUNK,
        "dtype": st.sampled_from(["float16", "bfloat16", "FP16"]),
        "binary_data": st.booleans() | JUNK,
        "binary_data_output": st.booleans(),
        "start": st.integers(-1, 4),
        "positions": LIST_TEXT,
        "timeout": st.integers(-1, 10**9) | JUNK,
        "binary_data_size": st.integers(-1, 60) | JUNK,
    },
)
INPUT = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["x", "inputs_embeds", "tokens", "0.x", "1.tokens", "5.x", "y"]),
        "shape": st.lists(st.sampled_from([0, 1, 2, D, 1 << 59]), max_size=3) | JUNK,
        "datatype": DATATYPES,
    },
    optional={
        "data": NUMBERS | st.lists(st.lists(st.floats(-9, 9), min_size=D, max_size=D), max_size=3) | JUNK,
        "parameters": st.fixed_dictionaries({}, optional={"binary_data_size": st.integers(-1, 60)}) | SELECTION | JUNK,
    },
)
POINTS = ["layers.*.ln1", "layers.1.attn_probs", "layers.0.q", "logits", "final_norm", "hidden_states.1", "layers.9.z"]
OUTPUT = st.fixed_dictionaries(
    {"name": st.sampled_from(POINTS) | st.text(max_size=12)}, optional={"parameters": SELECTION | JUNK}
)
REQUEST = st.fixed_dictionaries(
    {"inputs": st.lists(INPUT, max_size=3) | JUNK},
    optional={
        "id": st.text(max_size=4) | JUNK,
        "outputs": st.lists(OUTPUT, max_size=4) | JUNK,
        "parameters": SELECTION,
    },
)


def admitted_or_refused(body: bytes, length: int | None, loaded: LoadedModel) -> None:
    with suppress(ServiceError):
        asked = decode(bytearray(body), length)
        admitted, binary = admit_infer(asked, loaded, Settings())
        assert [spec.name for spec in admitted.specs] == list(binary)


@settings(max_examples=250, deadline=None)
@given(request=REQUEST, behind=st.binary(max_size=60), off=st.sampled_from([0, 0, 0, 0, -1, 1, None]))
def test_whatever_is_asked_is_a_call_or_a_refusal(
    loaded: LoadedModel, request: Any, behind: bytes, off: int | None
) -> None:
    text = json.dumps(request).encode()
    admitted_or_refused(text + behind, None if off is None else len(text) + off, loaded)


@settings(max_examples=300, deadline=None)
@given(
    numbers=st.lists(st.floats(-9, 9, width=16), min_size=D, max_size=D),
    datatype=DATATYPES,
    size=st.integers(0, 100),
    at=st.integers(0, 300),
    put=st.binary(max_size=3),
)
def test_a_good_body_with_a_few_other_bytes_is_a_call_or_a_refusal(
    loaded: LoadedModel, numbers: list[float], datatype: str, size: int, at: int, put: bytes
) -> None:
    tensor = {"name": "x", "shape": [1, D], "datatype": datatype, "parameters": {"binary_data_size": size}}
    text = json.dumps({"inputs": [tensor], "outputs": [{"name": "logits"}]}).encode()
    body = text + np.array(numbers, np.float32).tobytes()
    admitted_or_refused(body[:at] + put + body[at + len(put) :], len(text), loaded)


@settings(max_examples=300, deadline=None)
@given(body=st.binary(max_size=80), length=st.none() | st.integers(0, 90))
def test_any_bytes_are_a_call_or_a_refusal(loaded: LoadedModel, body: bytes, length: int | None) -> None:
    admitted_or_refused(body, length, loaded)


@settings(max_examples=200, deadline=None)
@given(body=st.binary(max_size=200), at=st.integers(0, 200), put=st.binary(max_size=2), gzipped=st.booleans())
def test_what_is_packed_comes_out_again_or_is_refused(body: bytes, at: int, put: bytes, gzipped: bool) -> None:
    coding = "gzip" if gzipped else "deflate"
    sent = b"".join(packed([body[:7], memoryview(body)[7:]], coding))
    assert unpacked(sent, coding, 200) == body
    assert (gzip.decompress if gzipped else zlib.decompress)(sent) == body
    with suppress(ServiceError):
        unpacked(sent[:at] + put + sent[at + len(put) :], coding, 200)


def test_a_body_is_unpacked_up_to_the_limit_and_no_further() -> None:
    body = bytes(3 << 20)
    sent = gzip.compress(body)
    assert unpacked(sent, "gzip", len(body)) == body
    with pytest.raises(TooLarge, match="max_body_bytes is 3145727"):
        unpacked(sent, "gzip", len(body) - 1)
    with pytest.raises(TooLarge, match="1048576 bytes of the body are unpacked"):
        unpacked(gzip.compress(bytes(1 << 28)), "gzip", 1000)


def test_long_flat_lists_are_read_in_pieces_to_the_same_numbers() -> None:
    numbers = np.random.default_rng(5).standard_normal(120_001)
    numbers[::3] = np.round(numbers[::3])
    values = [int(v) if i % 3 == 0 else float(v) for i, v in enumerate(numbers)]
    shape = [120_001, 1]
    text = json.dumps({"inputs": [{"name": "x", "shape": shape, "datatype": "FP64", "data": values}]}).encode()
    assert len(text) > json_body.LARGE_BYTES
    (read,) = decode(bytearray(text), None).call.inputs
    np.testing.assert_array_equal(read.value.data, np.array(values, np.float64).reshape(shape))  # type: ignore[union-attr]


def test_in_a_long_list_the_first_number_that_is_no_integer_is_named() -> None:
    values: list[Any] = [3] * 600_000
    values[500_000], values[550_000] = 7.0, 8.5
    read = json_body.loads(json.dumps({"tokens": values}).encode(), "the body")["tokens"]
    with pytest.raises(Unprocessable, match=r"/tokens/500000: must be an integer, not 7\.0"):
        integers(read, "/tokens")
    with pytest.raises(Unprocessable, match="must be a list of rows of numbers, not a list of 600000 numbers"):
        matrix(read, "/x")


def test_a_header_longer_than_the_body_is_malformed() -> None:
    with pytest.raises(Malformed, match="is 3, the body has 2 bytes"):
        decode(b"{}", 3)


async def _get(loaded: LoadedModel, *paths: str, then: Callable[[FastAPI], None]) -> list[httpx.Response]:
    """The answers of a service that was ready, until something happened to it."""
    app = create_app(Settings(), lambda _: loaded)
    transport = httpx.ASGITransport(app=app)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://here") as http:
        await app.state.loading
        then(app)
        return [await http.get(path) for path in paths]


def test_who_is_not_ready_says_so_with_a_503_in_the_protocols_form(loaded: LoadedModel) -> None:
    paths = ("/v2/health/live", "/v2/health/ready", "/v2/models/small/ready")
    live, *others = asyncio.run(_get(loaded, *paths, then=lambda app: app.state.life.drain()))
    assert (live.status_code, live.json()) == (200, {"live": True})
    for response in others:
        assert (response.status_code, response.json()) == (503, {"error": "the service is shutting down"})
        assert response.headers["retry-after"]
    live, *others = asyncio.run(_get(loaded, *paths, then=lambda app: app.state.life.die()))
    for response in (live, *others):
        assert (response.status_code, response.json()) == (503, {"error": "the model thread has ended"})


def _forget_life(app: FastAPI) -> None:
    app.state.life = None


def test_a_fault_of_ours_is_a_500_in_the_protocols_form(loaded: LoadedModel) -> None:
    (response,) = asyncio.run(_get(loaded, "/v2/health/ready", then=_forget_life))
    assert response.status_code == 500
    assert response.json() == {
        "error": f"an error of ours; the log has it as request {response.headers['x-request-id']}"
    }

"""Every bad request gets its own refusal: status, code, field, value and limit; and hurts nobody."""

import http.client
import json
import pickle
import re
import socket
import struct
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import safetensors.numpy

from tests.server import Server
from tests.service.calls import (
    JSON,
    NPY,
    SAFETENSORS,
    Array,
    ask,
    ids,
    npy_bytes,
    outputs,
    post,
    problem,
    rows,
)

N = 7
X = rows(N)
OK = [2, 3, 5]
STATUSES_SEEN = {400, 404, 405, 406, 408, 413, 415, 422, 504}


def send(client: httpx.Client, content: bytes, content_type: str = JSON, **options: Any) -> httpx.Response:
    return client.post("/forward", content=content, headers={"Content-Type": content_type}, **options)


def raw_answer(server: Server, sent: bytes, declared: int) -> tuple[int, dict[str, Any], str]:
    """Status, problem and content type of the answer to a body that is said to be longer than what comes of it."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        head = f"POST /forward HTTP/1.1\r\nHost: h\r\nContent-Type: {JSON}\r\nContent-Length: {declared}\r\n\r\n"
        connection.sendall(head.encode() + sent)
        with http.client.HTTPResponse(connection, method="POST") as response:
            response.begin()
            return response.status, json.loads(response.read()), response.getheader("Content-Type", "")


def still_good(client: httpx.Client) -> None:
    assert ask(client, {"tokens": OK})["layers.2.resid_post"].shape == (3, 30)


def tensor_file(header: Any, data: bytes = b"", size: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if size is None else size) + text + data


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def npy_file(header: str, data: bytes = b"", version: tuple[int, int] = (1, 0)) -> bytes:
    text = header.encode("latin-1")
    length = struct.pack("<H" if version == (1, 0) else "<I", len(text))
    return b"\x93NUMPY" + bytes(version) + length + text + data


def npy_header(shape: str, descr: str = "'<f4'") -> str:
    return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}\n"


# --- bodies that are not what their content type says: 400

BROKEN_JSON = {
    "empty": b"",
    "cut off": b'{"tokens": [2, 3',
    "not JSON": b"tokens=2",
    "NaN": b'{"x": [[NaN]]}',
    "Infinity": b'{"x": [[Infinity]]}',
    "-Infinity": b'{"x": [[-Infinity]]}',
    "1e400": b'{"x": [[1e400]]}',
    "-1e400": b'{"x": [[-1e400]]}',
    "not UTF-8": b'{"text": "\xff\xfe"}',
    "UTF-16": '{"tokens": [2]}'.encode("utf-16"),
    "lone surrogate": b'{"text": "\\ud800"}',
    "deep": b'{"tokens": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep objects": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "two values": b'{"tokens": [2]} {"tokens": [2]}',
    "hexadecimal": b'{"tokens": [0x10]}',
    "comment": b'{"tokens": [2]} // two',
    "single quotes": b"{'tokens': [2]}",
    "NUL": b"\x00",
}
BROKEN_SAFETENSORS = {
    "empty": b"",
    "seven bytes": b"\x00" * 7,
    "header longer than the body": tensor_file(b"{}", size=3),
    "header of 2^63 bytes": tensor_file(b"{}", size=2**63),
    "header of 2^64 - 1 bytes": tensor_file(b"{}", size=2**64 - 1),
    "header cut off": tensor_file(b'{"x": {"dtype"'),
    "header no object": tensor_file([1, 2]),
    "header is JSON with NaN": tensor_file(b'{"x": NaN}'),
    "entry no object": tensor_file({"x": 5}),
    "entry without offsets": tensor_file({"x": {"dtype": "F32", "shape": [1]}}, b"abcd"),
    "unknown dtype": tensor_file({"x": entry("F31", [1], 0, 4)}, b"abcd"),
    "negative shape": tensor_file({"x": entry("F32", [-1], 0, 4)}, b"abcd"),
    "shape of floats": tensor_file({"x": {"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]}}, b"abcd"),
    "shape that overflows": tensor_file({"x": entry("F32", [2**62, 2**62], 0, 4)}, b"abcd"),
    "an axis of 0 beside huge ones": tensor_file({"x": entry("F32", [2**61, 5, 0], 0, 0)}),
    "truncated data": safetensors.numpy.save({"x": X})[:-1],
    "data after the end": safetensors.numpy.save({"x": X}) + b"\x00",
    "offsets beyond the body": tensor_file({"x": entry("F32", [2], 0, 8)}, b"abcd"),
    "offsets backwards": tensor_file({"x": entry("F32", [1], 4, 0)}, b"abcd"),
    "size and shape differ": tensor_file({"x": entry("F32", [3], 0, 4)}, b"abcd"),
    "overlap": tensor_file({"0.x": entry("F32", [1], 0, 4), "1.x": entry("F32", [1], 0, 4)}, b"abcd"),
    "half an overlap": tensor_file({"0.x": entry("F32", [1], 0, 4), "1.x": entry("F32", [1], 2, 6)}, b"abcdef"),
    "gap": tensor_file({"0.x": entry("F32", [1], 0, 4), "1.x": entry("F32", [1], 6, 10)}, b"a" * 10),
    "metadata of numbers": tensor_file({"__metadata__": {"request": 5}, "x": entry("F32", [1], 0, 4)}, b"abcd"),
    "metadata no object": tensor_file({"__metadata__": "request", "x": entry("F32", [1], 0, 4)}, b"abcd"),
    "request is not JSON": safetensors.numpy.save({"x": X}, {"request": "{outputs}"}),
    "request is empty": safetensors.numpy.save({"x": X}, {"request": ""}),
    "request with NaN": safetensors.numpy.save({"x": X}, {"request": '{"timeout_ms": NaN}'}),
    "JSON": b'{"tokens": [2, 3, 5]}',
}
BROKEN_NPY = {
    "empty": b"",
    "magic alone": b"\x93NUMPY",
    "wrong magic": b"\x93NUMPZ" + npy_bytes(X)[6:],
    "unknown version": npy_file(npy_header("(1,)"), b"abcd", version=(9, 0)),
    "header longer than the body": b"\x93NUMPY\x01\x00\xff\xff{",
    "header of 4 GiB": b"\x93NUMPY\x02\x00\xff\xff\xff\xff{",
    "header no dict": npy_file("[1, 2, 3]\n"),
    "header is code": npy_file("__import__('os').abort()\n"),
    "header with open brackets": npy_file("(((" + "\n"),
    "header with an open string": npy_file('{"descr": """\n'),
    "header with a bad indent": npy_file("{'descr'\n  :\n 'a'\n   b\n"),
    "header nested deeply": npy_file(npy_header("(" + "-" * 9000 + "1,)"), b"abcd"),
    "header with brackets nested deeply": npy_file(npy_header("(" * 900 + "1," + ")" * 900), b"abcd"),
    "header without shape": npy_file("{'descr': '<f4', 'fortran_order': False}\n", b"abcd"),
    "dtype is no dtype": npy_file(npy_header("(1,)", "'<q9'"), b"abcd"),
    "complex": npy_bytes(np.ones((2, 30), np.complex64)),
    "structured": npy_file(npy_header("(1,)", "[('a', '<f4')]"), b"abcd"),
    "strings": npy_bytes(np.array(["a", "b"])),
    "times": npy_bytes(np.array([5], "datetime64[s]")),
    "negative shape": npy_file(npy_header("(-1,)"), b"abcd"),
    "shape of floats": npy_file(npy_header("(1.0,)"), b"abcd"),
    "shape of truths": npy_file(npy_header("(True,)"), b"abcd"),
    "shape beyond all memory": npy_file(npy_header(f"({2**62}, {2**62})"), b"abcd"),
    "an axis of 0 beside huge ones": npy_file(npy_header(f"({2**62}, 5, 0)")),
    "70 axes": npy_file(npy_header(repr((1,) * 70)), b"abcd"),
    "truncated": npy_bytes(X)[:-1],
    "data after the end": npy_bytes(X) + b"\x00",
}


@pytest.mark.parametrize("name", BROKEN_JSON)
def test_a_body_that_is_not_json_is_a_400(tiny: httpx.Client, name: str) -> None:
    problem(send(tiny, BROKEN_JSON[name]), 400, "malformed_body")


@pytest.mark.parametrize("name", BROKEN_SAFETENSORS)
def test_a_body_that_is_not_safetensors_is_a_400(tiny: httpx.Client, name: str) -> None:
    problem(send(tiny, BROKEN_SAFETENSORS[name], SAFETENSORS), 400, "malformed_body")


@pytest.mark.parametrize("name", BROKEN_NPY)
def test_a_body_that_is_not_npy_is_a_400(tiny: httpx.Client, name: str) -> None:
    problem(send(tiny, BROKEN_NPY[name], NPY), 400, "malformed_body")


@pytest.mark.parametrize("parameter", ["{outputs}", '{"timeout_ms": NaN}', "[" * 5000])
def test_a_query_parameter_that_is_not_json_is_a_400(tiny: httpx.Client, parameter: str) -> None:
    problem(send(tiny, npy_bytes(X), NPY, params={"request": parameter}), 400, "malformed_body")


class Payload:
    """Runs code where it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.trace,)


def test_a_pickle_inside_npy_is_refused_and_never_runs(tiny: httpx.Client, tmp_path: Path) -> None:
    trace = tmp_path / "it-ran"
    pickled = pickle.dumps(Payload(trace))
    for shape in ("()", "(1,)", "(2, 30)"):
        problem(send(tiny, npy_file(npy_header(shape, "'|O'"), pickled), NPY), 400)
    problem(send(tiny, pickled, NPY), 400)
    problem(send(tiny, npy_file(npy_header("(1,)", "[('a', '|O')]"), pickled), NPY), 400)
    assert not trace.exists()


# --- well formed and wrong: 422, with the field, the value and the limit

TOKENS: dict[str, Any] = {"tokens": OK}


def out(*asked: Any, **fields: Any) -> dict[str, Any]:
    return {**(fields or TOKENS), "outputs": list(asked)}


def probs(**keys: Any) -> dict[str, Any]:
    return {"name": "layers.1.attn_probs", **keys}


def post_(**keys: Any) -> dict[str, Any]:
    return {"name": "layers.1.resid_post", **keys}


ROW = [0.5] * 30
# (what is sent, the pointer that must be named, what must be in its message)
WRONG: dict[str, tuple[Any, str, tuple[str, ...]]] = {
    # the body as a whole
    "a list": ([1, 2], "", ()),
    "a string": ("x", "", ()),
    "null": (None, "", ()),
    "no input": ({}, "", ("x", "inputs_embeds", "tokens", "text", "inputs")),
    "two inputs": ({"x": [ROW], "tokens": OK}, "", ("x and tokens",)),
    "an input and inputs": ({"tokens": OK, "inputs": [TOKENS]}, "/tokens", ()),
    "unknown field": (TOKENS | {"output": ["logits"]}, "/output", ()),
    "start beside inputs": ({"inputs": [TOKENS], "start": 1}, "/start", ()),
    "positions beside inputs": ({"inputs": [TOKENS], "positions": OK}, "/positions", ()),
    # inputs
    "inputs empty": ({"inputs": []}, "/inputs", ()),
    "inputs no list": ({"inputs": {"tokens": OK}}, "/inputs", ()),
    "inputs of lists": ({"inputs": [TOKENS, [2, 3]]}, "/inputs/1", ()),
    "an input without any": ({"inputs": [TOKENS, {}]}, "/inputs/1", ("none",)),
    "an input with two": ({"inputs": [{"tokens": OK, "text": "a"}]}, "/inputs/0", ("tokens and text",)),
    "an unknown field of an input": ({"inputs": [TOKENS | {"begin": 1}]}, "/inputs/0/begin", ()),
    "outputs within an input": ({"inputs": [TOKENS | {"outputs": ["logits"]}]}, "/inputs/0/outputs", ()),
    # x and inputs_embeds
    "x of another width": ({"x": [[0.5] * 29]}, "/x", ("29", "30")),
    "x ragged": ({"x": [ROW, ROW[:-1], ROW]}, "/x/1", ("29", "30")),
    "x empty": ({"x": []}, "/x", ("row",)),
    "x of empty rows": ({"x": [[], []]}, "/x", ("0", "30")),
    "x of numbers": ({"x": ROW}, "/x/0", ("0.5",)),
    "x too deep": ({"x": [[ROW]]}, "/x/0/0", ("list",)),
    "x an object": ({"x": {"0": ROW}}, "/x", ("object",)),
    "x null": ({"x": None}, "/x", ("null",)),
    "a string in x": ({"x": [ROW, [0.5, "12", *ROW[2:]]]}, "/x/1/1", ("12",)),
    "true in x": ({"x": [[True, *ROW[1:]]]}, "/x/0/0", ("true",)),
    "null in x": ({"x": [ROW, ROW, [*ROW[:-1], None]]}, "/x/2/29", ("null",)),
    "x beyond float32": ({"x": [ROW, [*ROW[:-1], 1e39]]}, "/x/1/29", ("1e+39", "float32")),
    "x whose squares overflow in a norm": ({"x": [ROW, [*ROW[:-1], -2e18]]}, "/x/1/29", ("-2e+18", "1.684e+18")),
    "embeddings whose squares overflow": ({"inputs_embeds": [[3e38] * 30]}, "/inputs_embeds/0/0", ("3e+38",)),
    "x whose squares overflow in the final norm": (
        {"x": [[3e38] * 30], "start": 3, "outputs": ["final_norm"]},
        "/x/0/0",
        ("3e+38",),
    ),
    "an integer of 400 digits in x": ({"x": [[int("9" * 30), *ROW[1:-1], 10**300]]}, "/x/0/29", ("float32",)),
    "inputs_embeds of another width": ({"inputs_embeds": [[0.5] * 31]}, "/inputs_embeds", ("31", "30")),
    "more embeddings than positions": ({"inputs_embeds": [ROW] * 62}, "/inputs_embeds", ("62", "61")),
    # tokens
    "an id over the vocabulary": ({"tokens": [2, 3, 101]}, "/tokens/2", ("101", "100")),
    "an id under 0": ({"tokens": [2, -1]}, "/tokens/1", ("-1", "0")),
    "an id of 64 bits": ({"tokens": [2**63 - 1]}, "/tokens/0", (str(2**63 - 1),)),
    "an id of more than 64 bits": ({"tokens": [5, 2**64 - 1]}, "/tokens/1", (str(2**64 - 1),)),
    "an id of 1e30": ({"tokens": [10**30]}, "/tokens/0", ()),
    "a fraction among ids": ({"tokens": [2, 2.5]}, "/tokens/1", ("2.5",)),
    "a whole float among ids": ({"tokens": [2.0]}, "/tokens/0", ("2.0",)),
    "a string among ids": ({"tokens": ["2"]}, "/tokens/0", ("2",)),
    "true among ids": ({"tokens": [True]}, "/tokens/0", ("true",)),
    "null among ids": ({"tokens": [None]}, "/tokens/0", ("null",)),
    "lists of ids": ({"tokens": [OK]}, "/tokens/0", ("list",)),
    "no ids": ({"tokens": []}, "/tokens", ()),
    "one number": ({"tokens": 5}, "/tokens", ("5",)),
    "more tokens than positions": ({"tokens": [2] * 62}, "/tokens", ("62", "61")),
    # text
    "text without a tokenizer": ({"text": "a"}, "/text", ("tokenizer", "tokens")),
    "text a list": ({"text": ["a"]}, "/text", ("string",)),
    "special tokens with ids": (TOKENS | {"add_special_tokens": True}, "/add_special_tokens", ("tokens",)),
    # start and positions
    "start over L": ({"x": [ROW], "start": 4}, "/start", ("4", "3")),
    "start under 0": ({"x": [ROW], "start": -1}, "/start", ("-1", "0")),
    "start a float": ({"x": [ROW], "start": 1.5}, "/start", ("1.5",)),
    "start a string": ({"x": [ROW], "start": "1"}, "/start", ("1",)),
    "start with tokens": (TOKENS | {"start": 1}, "/start", ("1", "tokens")),
    "start with inputs_embeds": ({"inputs_embeds": [ROW], "start": 2}, "/start", ("2", "inputs_embeds")),
    "start in an input": ({"inputs": [TOKENS, {"x": [ROW], "start": 5}]}, "/inputs/1/start", ("5", "3")),
    "positions too few": (TOKENS | {"positions": [0, 1]}, "/positions", ("2", "3")),
    "a position over the table": (TOKENS | {"positions": [0, 61, 1]}, "/positions/1", ("61", "60")),
    "a position under 0": (TOKENS | {"positions": [0, 1, -1]}, "/positions/2", ("-1", "0")),
    "positions of fractions": (TOKENS | {"positions": [0, 1, 1.5]}, "/positions/2", ("1.5",)),
    "positions no list": (TOKENS | {"positions": 5}, "/positions", ("5",)),
    "positions with x": ({"x": [ROW], "positions": [0]}, "/positions", ()),
    # outputs
    "outputs empty": (out(), "/outputs", ()),
    "outputs a number": (TOKENS | {"outputs": 5}, "/outputs", ()),
    "an output a number": (out(5), "/outputs/0", ()),
    "an output without a name": (out({"rows": [0]}), "/outputs/0/name", ()),
    "an unknown point": (
        out("logits", "layers.1.resid_pots"),
        "/outputs/1/name",
        ("resid_pots", "layers.1.resid_post"),
    ),
    "a point of another name": (out("layer.0.attn_prob"), "/outputs/0/name", ("layer.0.attn_prob", "layers.0.attn_p")),
    "the empty name": (out(""), "/outputs/0/name", ()),
    "layer 99": (out("layers.99.q"), "/outputs/0/name", ("99", "2")),
    "a layer of many digits": (out("layers." + "9" * 100 + ".q"), "/outputs/0/name", ("2",)),
    "layer -1": (out("layers.-1.q"), "/outputs/0/name", ("layers.-1.q",)),
    "a range over the end": (out("layers.1-3.q"), "/outputs/0/name", ("3", "2")),
    "a range backwards": (out("layers.2-1.q"), "/outputs/0/name", ("2-1",)),
    "hidden state 4": (out("hidden_states.4"), "/outputs/0/name", ("4", "3")),
    "an unknown key": (out(post_(row=[0])), "/outputs/0/row", ()),
    "head 99": (out(probs(heads=[0, 99])), "/outputs/0/heads/1", ("99", "1")),
    "head -1": (out(probs(heads=[-1])), "/outputs/0/heads/0", ("-1", "0")),
    "no heads": (out(probs(heads=[])), "/outputs/0/heads", ()),
    "heads a number": (out(probs(heads=1)), "/outputs/0/heads", ("1",)),
    "heads of strings": (out(probs(heads=["0"])), "/outputs/0/heads/0", ("0",)),
    "a row over the end": (out("logits", post_(rows=[0, 3])), "/outputs/1/rows/1", ("3", "2")),
    "a row under the beginning": (out(post_(rows=[-4])), "/outputs/0/rows/0", ("-4", "-3")),
    "no rows": (out(post_(rows=[])), "/outputs/0/rows", ()),
    "an empty range of rows": (out(post_(rows={"start": 2, "stop": 2})), "/outputs/0/rows", ("2",)),
    "a range of rows over the end": (out(post_(rows={"start": 1, "stop": 4})), "/outputs/0/rows", ("4", "3")),
    "a range of rows with a step": (out(post_(rows={"start": 1, "step": 2})), "/outputs/0/rows/step", ()),
    "rows of fractions": (out(post_(rows=[0.5])), "/outputs/0/rows/0", ("0.5",)),
    "rows a string": (out(post_(rows="all")), "/outputs/0/rows", ()),
    "a key over the end": (out(probs(keys=[3])), "/outputs/0/keys/0", ("3", "2")),
    "no keys": (out(probs(keys=[])), "/outputs/0/keys", ()),
    "keys of a point with rows": (out(post_(keys=[0])), "/outputs/0/keys", ("attn_probs",)),
    "keys of z": (out({"name": "layers.1.z", "keys": [0]}), "/outputs/0/keys", ("attn_probs",)),
    "heads of resid_post": (out(post_(heads=[0])), "/outputs/0/heads", ("layers.1.resid_post",)),
    "heads of logits": (out({"name": "logits", "heads": [0]}), "/outputs/0/heads", ("logits",)),
    "pool of a map": (out(probs(pool="mean")), "/outputs/0/pool", ("layers.1.attn_probs",)),
    "pool of logits": (out({"name": "logits", "pool": "mean"}), "/outputs/0/pool", ("logits",)),
    "an unknown pool": (out(post_(pool="max")), "/outputs/0/pool", ("mean", "max")),
    "top_k 0": (out(probs(top_k=0)), "/outputs/0/top_k", ("0",)),
    "top_k -1": (out(probs(top_k=-1)), "/outputs/0/top_k", ("-1",)),
    "top_k true": (out(probs(top_k=True)), "/outputs/0/top_k", ("true",)),
    "top_k of a point with rows": (out(post_(top_k=2)), "/outputs/0/top_k", ("attn_probs", "logits")),
    "an unknown dtype": (out(post_(dtype="float64")), "/outputs/0/dtype", ("float32", "float16", "bfloat16")),
    "two results under one name": (out("logits", post_(**{"as": "logits"})), "/outputs/1", ("logits",)),
    "one point twice": (out("layers.1.z", "layers.*.z"), "/outputs/1", ("layers.1.z",)),
    "an empty as": (out(post_(**{"as": ""})), "/outputs/0/as", ()),
    "a point before start": (out("layers.1.z", x=[ROW], start=2), "/outputs/0/name", ("layers.1.z", "2")),
    "embeddings after layer 0": (out("embeddings", x=[ROW], start=1), "/outputs/0/name", ("embeddings", "1")),
    "a hidden state before start": (out("hidden_states.1", x=[ROW], start=2), "/outputs/0/name", ("2",)),
    "a pattern with no layer left": (out("layers.0-1.z", x=[ROW], start=2), "/outputs/0/name", ("2",)),
    "the default outputs after the last layer": ({"x": [ROW], "start": 3}, "/outputs/0/name", ("3",)),
    # timeout_ms
    "timeout 0": (TOKENS | {"timeout_ms": 0}, "/timeout_ms", ("0",)),
    "timeout -5": (TOKENS | {"timeout_ms": -5}, "/timeout_ms", ("-5",)),
    "timeout a string": (TOKENS | {"timeout_ms": "5"}, "/timeout_ms", ("5",)),
    "timeout a fraction": (TOKENS | {"timeout_ms": 0.5}, "/timeout_ms", ("0.5",)),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_well_formed_and_wrong_is_a_422_that_names_field_value_and_limit(tiny: httpx.Client, name: str) -> None:
    sent, pointer, parts = WRONG[name]
    refusal = problem(send(tiny, json.dumps(sent).encode()), 422)
    named = [one["pointer"] for one in refusal["errors"]]
    assert pointer in named, refusal
    message = refusal["errors"][named.index(pointer)]["message"]
    for part in parts:
        assert part in message, refusal
        assert part in refusal["detail"], refusal


def test_an_unknown_point_has_a_code_of_its_own(tiny: httpx.Client) -> None:
    problem(post(tiny, out("layers.1.resid_pots")), 422, "unknown_point")


def test_every_field_at_fault_is_named(tiny: httpx.Client) -> None:
    refusal = problem(
        post(tiny, TOKENS | {"outptus": 1, "timeout_ms": 0, "outputs": [{"name": "logits", "pool": 3}]}), 422
    )
    assert {one["pointer"] for one in refusal["errors"]} == {"/outptus", "/timeout_ms", "/outputs/0/pool"}


def test_a_message_does_not_repeat_a_long_value(tiny: httpx.Client) -> None:
    long = "resid" * 20_000
    for sent in (out(long), out(post_(pool=long)), {"tokens": [long]}, {"x": [[long]]}, {long: 1}, {"positions": long}):
        response = post(tiny, sent)
        problem(response, 422)
        assert len(response.content) < 3000


WRONG_BINARY: dict[str, tuple[dict[str, Array], str, tuple[str, ...]]] = {
    "x of one axis": ({"x": np.ones(30, np.float32)}, "/x", ("30",)),
    "x of three axes": ({"x": np.ones((1, 2, 30), np.float32)}, "/x", ("3",)),
    "x of no axis": ({"x": np.float32(1)}, "/x", ()),  # type: ignore[dict-item]
    "x of another width": ({"x": np.ones((2, 31), np.float32)}, "/x", ("31", "30")),
    "x without rows": ({"x": np.ones((0, 30), np.float32)}, "/x", ()),
    "NaN in x": ({"x": np.where(np.arange(60).reshape(2, 30) == 47, np.nan, X[:2])}, "/x/1/17", ("nan", "float32")),
    "Inf in x": ({"x": np.full((1, 30), np.inf, np.float32)}, "/x/0/0", ("inf", "float32")),
    "-Inf in float16 x": ({"x": np.full((1, 30), -np.inf, np.float16)}, "/x/0/0", ("inf",)),
    "x beyond float32": ({"x": np.full((1, 30), 1e300)}, "/x/0/0", ("1e+300", "float32")),
}
WRONG_TENSORS: dict[str, tuple[dict[str, Array], str, tuple[str, ...]]] = {
    "x of integers": ({"x": np.ones((2, 30), np.int32)}, "/x", ("int32",)),
    "tokens of floats": ({"tokens": np.ones(3, np.float32)}, "/tokens", ("float32",)),
    "tokens of two axes": ({"tokens": np.ones((1, 3), np.int64)}, "/tokens", ("1, 3",)),
    "tokens of no axis": ({"tokens": np.int64(3)}, "/tokens", ()),  # type: ignore[dict-item]
    "an unsigned id of 64 bits": ({"tokens": np.array([2**64 - 1], np.uint64)}, "/tokens", (str(2**64 - 1),)),
    "NaN in inputs_embeds": ({"inputs_embeds": np.full((1, 30), np.nan)}, "/inputs_embeds/0/0", ("nan",)),
    "a tensor of another name": ({"y": X}, "/y", ()),
    "two tensors": ({"x": X, "tokens": np.array(OK)}, "", ("x", "tokens")),
    "no tensors": ({}, "", ("none",)),
    "a gap in the numbers": ({"0.x": X, "2.x": X}, "/inputs/2", ()),
    "numbers from 1": ({"1.x": X}, "/inputs/1", ()),
    "two tensors of one number": ({"0.x": X, "0.tokens": np.array(OK)}, "/inputs/0", ("x", "tokens")),
    "numbered and plain": ({"0.x": X, "x": X}, "/x", ()),
    "a number with a zero before it": ({"00.x": X}, "/00.x", ()),
    "a number of many digits": ({"9" * 5000 + ".x": X}, "/" + "9" * 80, ()),
    "NaN in the second of two": ({"0.x": X, "1.x": np.full((1, 30), np.nan)}, "/inputs/1/x/0/0", ("nan",)),
}


@pytest.mark.parametrize("body", ["safetensors", "npy"])
@pytest.mark.parametrize("name", WRONG_BINARY)
def test_a_wrong_matrix_is_a_422_in_both_binary_formats(tiny: httpx.Client, name: str, body: str) -> None:
    tensors, pointer, parts = WRONG_BINARY[name]
    refusal = problem(post(tiny, {}, {k: np.asarray(v) for k, v in tensors.items()}, body=body), 422)
    assert [one["pointer"] for one in refusal["errors"]] == [pointer]
    assert all(part in refusal["detail"] for part in parts), refusal


@pytest.mark.parametrize("name", WRONG_TENSORS)
def test_wrong_tensors_are_a_422(tiny: httpx.Client, name: str) -> None:
    tensors, pointer, parts = WRONG_TENSORS[name]
    refusal = problem(post(tiny, {}, {k: np.asarray(v) for k, v in tensors.items()}, body="safetensors"), 422)
    assert [one["pointer"] for one in refusal["errors"]] == [pointer]
    assert all(part in refusal["detail"] for part in parts), refusal


def test_a_tensor_and_the_same_field_are_one_input_too_many(tiny: httpx.Client) -> None:
    problem(post(tiny, {"tokens": OK}, {"x": X}, body="safetensors"), 422)
    problem(post(tiny, {"x": [ROW]}, {"x": X}, body="safetensors"), 422)
    problem(post(tiny, {"inputs": [{"x": [ROW]}]}, {"0.x": X}, body="safetensors"), 422)


def test_more_fields_than_tensors_is_an_input_without_any(tiny: httpx.Client) -> None:
    refusal = problem(post(tiny, {"inputs": [{}, {"start": 1}]}, {"0.x": X}, body="safetensors"), 422)
    assert refusal["errors"][0]["pointer"] == "/inputs/1"


def test_positions_with_x_are_refused_where_they_were_added_before(mgm_client: httpx.Client) -> None:
    refusal = problem(post(mgm_client, {"positions": list(range(N))}, {"x": rows(N, 256)}), 422)
    assert refusal["errors"][0]["pointer"] == "/positions"


def test_a_gpt2_takes_no_more_tokens_than_it_has_positions_and_any_number_of_rows(mgm_client: httpx.Client) -> None:
    refusal = problem(post(mgm_client, {"tokens": [5] * 513}), 422)
    assert "513" in refusal["detail"]
    assert "512" in refusal["detail"]
    asked = {"outputs": [{"name": "layers.0.ln1", "rows": [-1]}]}
    assert ask(mgm_client, asked, {"x": rows(521, 256)})["layers.0.ln1"].shape == (1, 256)


def test_empty_text_has_no_tokens(smollm2_client: httpx.Client) -> None:
    assert problem(post(smollm2_client, {"text": ""}), 422)["errors"][0]["pointer"] == "/text"


# --- results that are not finite


def overflowing(dtype: str) -> dict[str, Any]:
    return {"outputs": ["layers.0.ln1", {"name": "layers.1.resid_post", "dtype": dtype}], "start": 0}


@pytest.mark.parametrize("accept", ["json", "safetensors"])
@pytest.mark.parametrize("body", ["json", "safetensors", "npy"])
def test_a_result_beyond_its_dtype_is_refused_by_the_name_of_its_point(
    tiny: httpx.Client, body: str, accept: str
) -> None:
    x = X * np.float32(1e6)
    refusal = problem(post(tiny, overflowing("float16"), {"x": x}, body=body, accept=accept), 422, "non_finite_result")
    assert "layers.1.resid_post" in refusal["detail"]
    assert "float16" in refusal["detail"]
    for dtype in ("float32", "bfloat16"):
        assert np.isfinite(ask(tiny, overflowing(dtype), {"x": x})["layers.1.resid_post"]).all()


def test_a_result_beyond_its_dtype_is_refused_in_npy_too(tiny: httpx.Client) -> None:
    asked = {"outputs": [{"name": "layers.1.resid_post", "dtype": "float16"}]}
    refusal = problem(post(tiny, asked, {"x": X * np.float32(1e6)}, accept="npy"), 422, "non_finite_result")
    assert "layers.1.resid_post" in refusal["detail"]


@pytest.mark.parametrize(
    "asked",
    [
        {"name": "layers.0.resid_pre", "pool": "mean", "dtype": "float16"},
        {"name": "layers.0.resid_pre", "rows": [1], "dtype": "float16"},
        {"name": "hidden_states.0", "dtype": "float16"},
        {"name": "embeddings", "dtype": "float16", "as": "other"},
    ],
)
def test_every_selection_of_a_point_is_looked_at(tiny: httpx.Client, asked: dict[str, Any]) -> None:
    x = np.full((3, 30), 70001, np.float32)
    refusal = problem(post(tiny, {"outputs": [asked]}, {"x": x}), 422, "non_finite_result")
    assert "resid_pre" in refusal["detail"] or asked["name"] in refusal["detail"]


def test_a_result_that_overflows_where_nobody_asked_for_it_is_no_matter(tiny: httpx.Client) -> None:
    x = X.copy()
    x[1] *= 1e6
    asked = {"outputs": [{"name": "layers.0.resid_pre", "rows": [0, 2], "dtype": "float16"}]}
    assert np.isfinite(ask(tiny, asked, {"x": x})["layers.0.resid_pre"]).all()


def test_rows_too_large_to_be_normed_give_no_200_with_numbers_that_are_not_finite(tiny: httpx.Client) -> None:
    x = np.full((3, 30), 3e38, np.float32)
    x[:, ::2] *= -1
    response = post(tiny, {"outputs": ["layers.*.resid_post", "logits"]}, {"x": x}, accept="safetensors")
    if response.status_code == 200:
        assert all(np.isfinite(array).all() for array in outputs(response).values())
    else:
        problem(response, 422, "non_finite_result")


def test_smollm2_overflows_float16_and_says_where(smollm2_client: httpx.Client) -> None:
    # its residual stream grows to about 19,900: fine in float16, unless x is made larger
    x = np.full((3, 576), 1.0, np.float32)
    x[:, 11] = 65000
    asked = {"start": 29, "outputs": [{"name": "layers.29.resid_pre", "dtype": "float16"}]}
    assert np.isfinite(ask(smollm2_client, asked, {"x": x})["layers.29.resid_pre"]).all()
    x[2, 11] = 65521
    refusal = problem(post(smollm2_client, asked, {"x": x}), 422, "non_finite_result")
    assert "layers.29.resid_pre" in refusal["detail"]


def test_one_input_that_overflows_refuses_the_whole_request(tiny: httpx.Client) -> None:
    inputs = [{"x": X.tolist()}, {"x": (X * 1e6).tolist()}]
    asked = {"inputs": inputs, "outputs": [{"name": "layers.0.resid_pre", "dtype": "float16"}]}
    problem(post(tiny, asked), 422, "non_finite_result")


# --- routes and methods


@pytest.mark.parametrize("path", ["/forwards", "/nowhere", "/model/points", "/static-offline-docs/../x", "/%00"])
def test_there_is_nothing_elsewhere(tiny: httpx.Client, path: str) -> None:
    problem(tiny.get(path), 404, "not_found")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/forward", "POST"),
        ("PUT", "/forward", "POST"),
        ("DELETE", "/forward", "POST"),
        ("PATCH", "/forward", "POST"),
        ("POST", "/model", "GET"),
        ("POST", "/livez", "GET"),
        ("DELETE", "/readyz", "GET"),
    ],
)
def test_a_method_that_is_not_there_learns_which_are(tiny: httpx.Client, method: str, path: str, allowed: str) -> None:
    response = tiny.request(method, path)
    problem(response, 405, "method_not_allowed")
    assert allowed in response.headers["allow"]


# --- limits of the server


def test_a_body_over_the_limit_is_refused_before_it_is_read(limited_server: Server) -> None:
    status, refusal, content_type = raw_answer(limited_server, b'{"tokens"', 1_000_003)
    assert status == refusal["status"] == 413
    assert content_type == "application/problem+json"
    assert "1000003" in refusal["detail"]
    assert "20011" in refusal["detail"]


def test_a_body_of_unknown_length_is_refused_where_it_passes_the_limit(limited: httpx.Client) -> None:
    def pieces() -> Any:
        for _ in range(23):
            yield b" " * 1009

    response = limited.post("/forward", content=pieces(), headers={"Content-Type": JSON})
    refusal = problem(response, 413, "body_too_large")
    numbers = [int(number) for number in re.findall(r"\d+", refusal["detail"])]
    assert 20011 in numbers
    assert max(numbers) > 20011


def test_rows_over_the_limit_are_refused_with_both_numbers(limited: httpx.Client) -> None:
    for sent in ({"tokens": ids(43)}, {"inputs": [{"tokens": ids(20)}, {"tokens": ids(23)}]}):
        refusal = problem(post(limited, sent), 413)
        assert "43" in refusal["detail"]
        assert "41" in refusal["detail"]
    assert len(ask(limited, {"tokens": ids(41), "outputs": ["layers.2.resid_post"]})["layers.2.resid_post"]) == 41


def test_inputs_over_the_limit_are_refused_with_both_numbers(limited: httpx.Client) -> None:
    refusal = problem(post(limited, {"inputs": [TOKENS] * 5}), 413)
    assert re.search(r"\b5\b.*\b3\b", refusal["detail"])
    assert len(ask(limited, {"inputs": [TOKENS] * 3})) == 3


def test_an_answer_over_the_limit_is_refused_with_both_numbers(limited: httpx.Client) -> None:
    # three layers and logits: 4 * 191 bytes a row
    sent = {"outputs": ["layers.*.resid_post", "logits"]}
    refusal = problem(post(limited, sent | {"tokens": ids(41)}, accept="safetensors"), 413)
    assert str(41 * 4 * (3 * 30 + 101)) in refusal["detail"]
    assert "30011" in refusal["detail"]
    assert len(ask(limited, sent | {"tokens": ids(37)})) == 4


def test_an_answer_too_large_for_json_points_to_safetensors_and_to_selections(limited: httpx.Client) -> None:
    sent = {"tokens": ids(31), "outputs": ["layers.2.resid_post"]}  # 3720 bytes, about 12 characters a number
    refusal = problem(post(limited, sent), 413)
    assert "10007" in refusal["detail"]
    for word in ("safetensors", "rows", "heads", "top_k"):
        assert word in refusal["detail"]
    assert len(ask(limited, sent, accept="safetensors")) == 1


def test_a_body_that_stalls_is_a_408(limited_server: Server) -> None:
    status, refusal, content_type = raw_answer(limited_server, b'{"tokens": [2', 1009)
    assert status == refusal["status"] == 408
    assert content_type == "application/problem+json"
    assert "0.7" in refusal["detail"]


def test_a_deadline_of_the_callers_own_is_a_504(smollm2_client: httpx.Client) -> None:
    sent = {"tokens": ids(997, 49152), "outputs": ["layers.29.resid_post"], "timeout_ms": 1}
    problem(post(smollm2_client, sent, accept="safetensors"), 504, "deadline_passed")


def test_a_deadline_that_is_kept_changes_nothing(tiny: httpx.Client) -> None:
    assert ask(tiny, TOKENS | {"timeout_ms": 100_003})["layers.2.resid_post"].shape == (3, 30)
    assert ask(tiny, TOKENS | {"timeout_ms": 2**62})["layers.2.resid_post"].shape == (3, 30)


def test_a_connection_that_breaks_off_in_its_body_hurts_nobody(tiny: httpx.Client, tiny_server: Server) -> None:
    for sent in (b'{"tokens": [2', b""):
        with socket.create_connection(("127.0.0.1", tiny_server.port), timeout=30) as connection:
            head = f"POST /forward HTTP/1.1\r\nHost: h\r\nContent-Type: {JSON}\r\nContent-Length: 1009\r\n\r\n"
            connection.sendall(head.encode() + sent)
    still_good(tiny)


def test_after_all_of_these_the_servers_answer_as_before(tiny: httpx.Client, limited: httpx.Client) -> None:
    for client in (tiny, limited):
        still_good(client)
        assert client.get("/livez").status_code == 200
        assert client.get("/readyz").status_code == 200


def test_no_refusal_was_a_fault_of_ours(tiny_server: Server, limited_server: Server) -> None:
    for server in (tiny_server, limited_server):
        assert not [line for line in server.lines if "Traceback" in line or '"status": 500' in line]

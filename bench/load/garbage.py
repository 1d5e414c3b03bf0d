"""Bodies and heads that are wrong in one way each, and numbers that are none.

What is well framed goes over a connection like any request, which must be good for the next one; what is not has a
connection of its own, on which no answer but a refusal may come before it ends.
"""

import json
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import safetensors.numpy

from bench.load.requests import JSON, NPY, SAFETENSORS, VOCABULARY, WIDTH, Request, ask, post

_HEAD = "POST /forward HTTP/1.1\r\nHost: load\r\nContent-Type: application/json\r\n"
_BODY = b'{"tokens": [1, 2, 3]}'


@dataclass(frozen=True, slots=True)
class Misframed:
    """Bytes whose head and body do not fit each other. `ends`: the caller says that no more comes."""

    name: str
    wire: bytes
    ends: bool = False


def wrong_requests() -> list[Request]:
    """Well framed; each must be refused with a 4xx."""
    wrong_fields: dict[str, dict[str, Any]] = {
        "tokens are a string": {"tokens": "abc"},
        "tokens are fractions": {"tokens": [0.5, 1.5]},
        "tokens outside the vocabulary": {"tokens": [1, VOCABULARY]},
        "no tokens": {"tokens": []},
        "two inputs": {"tokens": [1], "x": [[0.0] * WIDTH]},
        "ragged x": {"x": [[0.0] * WIDTH, [0.0] * 3]},
        "narrow x": {"x": [[0.0, 1.0]]},
        "unknown field": {"tokens": [1], "colour": "blue"},
        "unknown point": {"tokens": [1], "outputs": ["layers.99.resid_post"]},
        "a head too many": {"tokens": [1, 2], "outputs": [{"name": "layers.0.z", "heads": [8]}]},
        "outputs are a number": {"tokens": [1], "outputs": 7},
        "too long": {"tokens": [1] * 513},
        "nothing": {},
    }
    bodies = {
        "half of a JSON body": b'{"tokens": [1, 2',
        "no JSON at all": b"\x00\xff\xfe" * 40,
        "an empty body": b"",
        "nested without end": b"[" * 5000,
        "no UTF-8": b'{"tokens": [1], "outputs": ["\xff"]}',
    }
    x = safetensors.numpy.save({"x": np.zeros((3, WIDTH), np.float32)})
    tensors = {
        "a header longer than the body": struct.pack("<Q", 1 << 40) + b"{}",
        "a header of no length": struct.pack("<Q", 0),
        "tensors cut off": x[:-5],
        "tensors with bytes behind": x + b"12345",
        "offsets beyond the end": _safetensors({"x": {"dtype": "F32", "shape": [1, 256], "data_offsets": [0, 4096]}}),
        "a shape that does not add up": _safetensors({"x": {"dtype": "F32", "shape": [9, 9], "data_offsets": [0, 16]}}),
        "an unknown dtype": _safetensors({"x": {"dtype": "F99", "shape": [4], "data_offsets": [0, 16]}}),
    }
    found = [ask(name, fields, 0) for name, fields in wrong_fields.items()]
    found += [post(name, body, 0) for name, body in bodies.items()]
    found += [post(name, body, 0, content=SAFETENSORS) for name, body in tensors.items()]
    found += [
        post("no npy", b"\x93NUMPY\x01\x00\xff\xff", 0, content=NPY),
        post("no gzip", _BODY, 0, headers={"Content-Encoding": "gzip"}),
        post("an unknown coding", _BODY, 0, headers={"Content-Encoding": "snappy"}),
        post("an unknown content type", _BODY, 0, content="text/html"),
        post("an answer that is not offered", _BODY, 0, accept="image/png"),
        post("no such route", _BODY, 0, path="/backward"),
        post("no such model", b"{}", 0, path="/v2/models/nobody/infer"),
        post("a v2 header too long", _BODY, 0, path="/v2/models/mgm/infer",
             headers={"Inference-Header-Content-Length": "99999"}),
        post("a v2 shape that does not add up",
             b'{"inputs":[{"name":"tokens","datatype":"INT64","shape":[9],"data":[1]}]}', 0,
             path="/v2/models/mgm/infer"),
    ]  # fmt: skip
    return found


def not_finite_requests() -> list[Request]:
    """NaN and Inf among the numbers; each must be refused with a 400 or 422."""
    found = []
    for name, number in (("NaN", np.nan), ("Inf", np.inf)):
        rows = np.random.default_rng(8).standard_normal((37, WIDTH)).astype(np.float32)
        rows[17, 5] = number
        found.append(post(f"{name} in x", safetensors.numpy.save({"x": rows}), 37, content=SAFETENSORS))
        rows = rows[:19]
        text = json.dumps({"inputs_embeds": rows.astype(float).round(3).tolist()}).encode()
        found.append(post(f"{name} in JSON", text, 19, content=JSON))
    whole = safetensors.numpy.save({"0.x": np.ones((7, WIDTH), np.float32), "1.x": rows})
    found.append(post("NaN in one of two", whole, 26, content=SAFETENSORS))
    return found


def misframed() -> list[Misframed]:
    """Heads with lengths that are wrong, and noise."""
    length = f"{_HEAD}Content-Length: {{}}\r\n\r\n"
    return [
        Misframed("a length that is no number", length.format("abc").encode() + _BODY),
        Misframed("a negative length", length.format("-5").encode() + _BODY),
        Misframed("two lengths", f"{_HEAD}Content-Length: 3\r\nContent-Length: 21\r\n\r\n".encode() + _BODY),
        Misframed("a length too short", length.format("5").encode() + _BODY),
        Misframed("a length too long", length.format("500").encode() + _BODY, ends=True),
        Misframed("a length of 10 TB", length.format(10**13).encode() + _BODY),
        Misframed("chunks that are none", f"{_HEAD}Transfer-Encoding: chunked\r\n\r\nxyz\r\n".encode() + _BODY),
        Misframed("chunks that stop", f"{_HEAD}Transfer-Encoding: chunked\r\n\r\n5\r\nab".encode(), ends=True),
        Misframed("a head without end", _HEAD.encode(), ends=True),
        Misframed("a head of 200 kB", _HEAD.encode() + b"X-Long: " + b"a" * 200_000 + b"\r\n\r\n"),
        Misframed("noise", bytes(range(256)) * 8),
        Misframed("a greeting of TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64)),
    ]


def _safetensors(header: dict[str, Any]) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(16)

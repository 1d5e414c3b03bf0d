"""Bodies of every decoder with something wrong in them: valid ones, changed at random, each change from a seed."""

import gzip
import io
import json
import random
import re
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

import numpy as np
import safetensors.numpy
from backports import zstd

JSON, SAFETENSORS, NPY = "application/json", "application/x-safetensors", "application/x-npy"
LENGTH = "Inference-Header-Content-Length"
PACK: dict[str, Callable[[bytes], bytes]] = {"zstd": zstd.compress, "gzip": gzip.compress, "deflate": zlib.compress}
SIZES = [0, 1, 7, 127, 255, 0x7FFF, 0xFFFF, *((1 << bits) - less for bits in (31, 32, 63, 64) for less in (0, 1))]
NUMBERS = [
    word.encode()
    for word in """0 -1 0.5 -0.0 1e999 1e-999 NaN 3.4e38 1e19 null true [] {} "" 4294967296 1099511627776
    18446744073709551616 -9223372036854775809""".split()
] + [b"9" * 400]
WORDS = [
    word.encode()
    for word in """x tokens text inputs outputs rows heads keys top_k pool dtype as n start positions request name data
    layers.*.attn_probs layers.0-2.q logits hidden_states.3 __metadata__ shape data_offsets binary_data_size parameters
    F64 BF16 I64 U8 <f8 >i4 |O FP16 INT8 BYTES \\ud800""".split()
] + [b"\xff", b""]
NESTED = [b"[", b'{"a":', b"(", b'[{"x":', b"[1,"]
HEADERS = {
    "Content-Type": [JSON, SAFETENSORS, NPY, "text/plain", "application/octet-stream", "", JSON + "; charset=utf-16"],
    "Content-Encoding": [*PACK, "br", "gzip, gzip"],
    "Accept": ["*/*;q=x", NPY, "a/b"],
    "Accept-Encoding": [*PACK, "gzip;q=", "*"],
    LENGTH: ["-1", "0", "3", "9" * 30, "1e3", "\xb2"],
}


@dataclass(frozen=True)
class Sample:
    """A request: its path with the query, headers, and a body that is not packed yet."""

    name: str
    path: str
    content: bytes
    headers: dict[str, str] = field(default_factory=dict)
    json_length: int | None = None

    def packed(self, coding: str) -> "Sample":
        """The same with its body packed."""
        return replace(
            self,
            name=f"{self.name}+{coding}",
            content=PACK[coding](self.content),
            headers=self.headers | {"Content-Encoding": coding},
        )


def samples(model: str, d: int, vocab: int, text: bool) -> list[Sample]:
    """A valid request of each kind, for a model of this name, width and vocabulary."""
    x = np.random.default_rng(0).standard_normal((5, d)).astype(np.float32)
    ids = [i % vocab for i in range(2, 9)]
    some = {"name": "layers.0.attn_probs", "heads": [0], "rows": [-1], "keys": [0, 1], "as": "m"}
    outputs: list[Any] = ["layers.*.resid_post", some]
    top: list[Any] = [{"name": "logits", "rows": {"start": 1, "stop": -1}, "top_k": 3, "dtype": "float16"}]
    top += [{"name": "final_norm", "pool": "mean"}]
    calls: dict[str, dict[str, Any]] = {
        "x": {"x": x.tolist(), "start": 1, "outputs": outputs[:1]},
        "inputs_embeds": {"inputs_embeds": x.tolist(), "positions": [4, 3, 2, 1, 0], "outputs": outputs},
        "tokens": {"tokens": ids, "outputs": top, "timeout_ms": 60_000},
        "inputs": {"inputs": [{"tokens": ids}, {"x": x.tolist(), "start": 2}], "outputs": [outputs[0]]},
        "n": {"n": 5, "outputs": outputs},
    }
    if text:
        calls["text"] = {"text": "ab  é\x04中 ", "add_special_tokens": False, "outputs": outputs}
    found = [
        Sample(f"json {kind}", "/forward" + ("?dry_run=true" if kind == "n" else ""), json.dumps(call).encode(),
               {"Content-Type": JSON})
        for kind, call in calls.items()
    ]  # fmt: skip
    request = {"request": json.dumps({"outputs": outputs})}
    numbered = {"0.x": x, "1.tokens": np.array(ids, np.int16), "2.x": x.astype(np.float64)[:2]}
    for name, tensors in (("x", {"x": x.astype(np.float16)}), ("tokens", {"tokens": np.array(ids)}), ("0.x", numbered)):
        headers = {"Content-Type": SAFETENSORS, "Accept": SAFETENSORS}
        found.append(Sample(f"safetensors {name}", "/forward", safetensors.numpy.save(tensors, request), headers))
    for version, array in {(1, 0): x, (2, 0): np.asfortranarray(x.astype(">f8")), (3, 0): np.array(ids, "<i4")}.items():
        file = io.BytesIO()
        np.lib.format.write_array(file, array, version=version)
        path = "/forward?request=" + quote(json.dumps({"outputs": ["layers.1.ln1"]}))
        found.append(Sample(f"npy {version[0]}", path, file.getvalue(), {"Content-Type": NPY, "Accept": NPY}))
    infer = f"/v2/models/{model}/infer"
    one = {"name": "x", "shape": [5, d], "datatype": "FP32"}
    of_output = {"name": "layers.0.attn_probs", "parameters": {"heads": "[0]", "rows": '{"start": 1}', "top_k": 2}}
    flat: dict[str, Any] = {"id": "7", "inputs": [one | {"data": x.reshape(-1).tolist()}], "outputs": [of_output]}
    flat["parameters"] = {"timeout": 60_000_000}
    found.append(Sample("v2 json", infer, json.dumps(flat).encode()))
    several: list[Any] = [one | {"name": "0.x", "parameters": {"binary_data_size": x.nbytes}}]
    several += [{"name": "1.tokens", "shape": [7], "datatype": "INT64", "parameters": {"binary_data_size": 56}}]
    head = json.dumps({"inputs": several, "parameters": {"binary_data_output": True}}).encode()
    content = head + x.tobytes() + np.array(ids, np.int64).tobytes()
    found.append(Sample("v2 binary", infer, content, {LENGTH: str(len(head))}, len(head)))
    return found


def mutated(sample: Sample, rng: random.Random) -> Sample:
    """The request with one to four changes: of its body before or after it is packed, or of a header."""
    content = sample.content
    kind, chance = sample.name.split()[0], rng.random()
    if kind in ("safetensors", "npy") and chance < 0.3:
        content = content[: len(content) // 2] + _flip(content[len(content) // 2 :], rng)  # numbers alone, NaN too
    elif kind == "safetensors" and chance < 0.6:
        (length,) = struct.unpack("<Q", content[:8])
        header = rng.choice((_number, _word))(content[8 : 8 + length], rng)
        content = struct.pack("<Q", len(header)) + header + content[8 + length :]
    elif chance < 0.5:
        content = _number(content, rng) if rng.random() < 0.5 else _word(content, rng)  # which comes deepest
    else:
        for _ in range(rng.choice((1, 1, 2, 3, 4))):
            content = rng.choice(_CHANGES)(content, rng)
    changed = replace(sample, content=content[: 1 << 18])
    if sample.json_length is not None and rng.random() < 0.6:
        # where the JSON has grown or shrunk, so that the decoder comes to what is in it
        moved = max(0, sample.json_length + len(changed.content) - len(sample.content))
        changed = _with_header(changed, LENGTH, str(moved))
    if rng.random() < 0.3:
        changed = changed.packed(rng.choice(list(PACK)))
        if rng.random() < 0.3:
            changed = replace(changed, content=rng.choice(_CHANGES)(changed.content, rng)[: 1 << 18])
    if rng.random() < 0.1:
        name, values = rng.choice(list(HEADERS.items()))
        value = rng.choice(values)
        changed = _with_header(changed, name, value)
    if "request=" in changed.path and rng.random() < 0.3:
        fields = rng.choice(_CHANGES)(b'{"outputs": ["layers.1.ln1"]}', rng)[:2000]
        changed = replace(changed, path="/forward?request=" + quote(fields))
    return changed


def _with_header(sample: Sample, name: str, value: str) -> Sample:
    return replace(sample, headers=sample.headers | {name: value})


# --- changes of bytes


def _flip(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.randint(1, 12) if changed else 0):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _span(content: bytes, rng: random.Random, longest: int = 200) -> tuple[int, int]:
    first = rng.randint(0, len(content))
    return first, min(len(content), first + rng.randint(0, longest))


def _cut(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randint(0, len(content))]


def _drop(content: bytes, rng: random.Random) -> bytes:
    first, last = _span(content, rng)
    return content[:first] + content[last:]


def _splice(content: bytes, rng: random.Random) -> bytes:
    (first, last), at = _span(content, rng), rng.randint(0, len(content))
    return content[:at] + content[first:last] + content[at + (last - first) * rng.randint(0, 1) :]


def _repeat(content: bytes, rng: random.Random) -> bytes:
    first, last = _span(content, rng, 40)
    return content[:first] + content[first:last] * rng.choice((2, 3, 50, 2000)) + content[last:]


def _noise(content: bytes, rng: random.Random) -> bytes:
    at = rng.randint(0, len(content))
    return content[:at] + rng.randbytes(rng.randint(1, 64)) + content[at:]


def _size(content: bytes, rng: random.Random) -> bytes:
    """A length field set to an extreme: at the front, where formats have theirs, or anywhere."""
    width, at = rng.choice((1, 2, 4, 8)), rng.choice((0, 0, 6, 8, rng.randint(0, len(content))))
    value = (rng.choice(SIZES) & ((1 << 8 * width) - 1)).to_bytes(width, rng.choice(("little", "big")))
    return content[:at] + value + content[at + width :]


def _one_match(pattern: bytes, content: bytes, put: bytes, rng: random.Random) -> bytes:
    matches = list(re.finditer(pattern, content[:8192]))
    if not matches:
        return content + put
    match = rng.choice(matches)
    return content[: match.start()] + put + content[match.end() :]


def _number(content: bytes, rng: random.Random) -> bytes:
    return _one_match(rb"-?\d[\d.e+-]*", content, rng.choice(NUMBERS), rng)


def _word(content: bytes, rng: random.Random) -> bytes:
    mark = rng.choice((b'"', b'"', b"'"))
    return _one_match(mark + b"[^\"']*" + mark, content, mark + rng.choice(WORDS) + mark, rng)


def _nest(content: bytes, rng: random.Random) -> bytes:
    at, depth = rng.randint(0, len(content)), rng.choice((3, 100, 900, 1100, 20_000))
    opened = rng.choice(NESTED) * depth
    return content[:at] + opened + content[at:] + (b"]" * depth if rng.random() < 0.5 else b"")


_CHANGES = (_flip, _cut, _drop, _splice, _repeat, _noise, _size, _number, _word, _nest)

"""One of each kind of request that the service answers."""

import gzip
import io
import json
from typing import Any

import numpy as np
import safetensors.numpy

from bench.load.requests import JSON, NPY, SAFETENSORS, VOCABULARY, WIDTH, Request, ask, ids, lengths, post

STREAM_ABOVE_BYTES = 1 << 18  # the setting under which the large ones among these are streamed


def mixed_requests(seed: int = 5) -> list[Request]:
    """All kinds, with lengths as texts have them."""
    return [*_asked_in_json(seed), *_asked_in_binary(seed + 1), *_asked_otherwise(seed + 2)]


def _asked_in_json(seed: int) -> list[Request]:
    random = np.random.default_rng(seed)
    found = [ask(f"final states {i}", {"tokens": ids(random, n)}, n) for i, n in enumerate(lengths(random, 12))]
    found += [ask(f"JSON answer {n}", {"tokens": ids(random, n)}, n, accept=JSON) for n in (5, 19, 37)]
    outputs: list[tuple[str, int, list[Any]]] = [
        ("all layers", 23, ["layers.*.resid_post"]),
        ("all layers, streamed", 131, ["layers.*.resid_post"]),
        ("a map", 61, ["layers.5.attn_probs"]),
        ("all maps, streamed", 53, ["layers.*.attn_probs"]),
        ("rows of maps", 211, [{"name": "layers.*.attn_probs", "rows": [-1], "heads": [0, 3]}]),
        ("top_k of logits", 71, [{"name": "logits", "rows": [-1], "top_k": 5}]),
        ("top_k of a map", 43, [{"name": "layers.2.attn_probs", "top_k": 4, "heads": [1]}]),
        ("pooled", 97, [{"name": "final_norm", "pool": "mean"}]),
        ("half precision", 67, [{"name": "layers.7.resid_post", "dtype": "float16"}]),
        ("a shallow point", 83, ["layers.1.mlp_out"]),
    ]
    found += [ask(name, {"tokens": ids(random, n), "outputs": wanted}, n) for name, n, wanted in outputs]
    several = {"inputs": [{"tokens": ids(random, n)} for n in (3, 89, 17)], "outputs": ["layers.6.resid_post"]}
    found.append(ask("three sequences", several, 109))
    found.append(ask("three sequences in JSON", several | {"outputs": [{"name": "final_norm", "rows": [-1]}]}, 109,
                     accept=JSON))  # fmt: skip
    return found


def _asked_in_binary(seed: int) -> list[Request]:
    random = np.random.default_rng(seed)

    def rows(n: int) -> np.ndarray[Any, Any]:
        return random.standard_normal((n, WIDTH)).astype(np.float32)

    def packed(name: str, tensors: dict[str, Any], fields: dict[str, Any], tokens: int) -> Request:
        body = safetensors.numpy.save(tensors, {"request": json.dumps(fields)})
        return post(name, body, tokens, content=SAFETENSORS)

    array = io.BytesIO()
    np.save(array, rows(31))
    return [
        packed("x in safetensors", {"x": rows(79)}, {}, 79),
        packed("x from layer 4", {"x": rows(127)}, {"start": 4, "outputs": ["layers.7.z"]}, 127),
        packed("two x", {"0.x": rows(13), "1.x": rows(41)}, {"outputs": ["layers.3.resid_post"]}, 54),
        packed("ids in safetensors", {"tokens": random.integers(0, VOCABULARY, 101)}, {}, 101),
        post("x in npy, npy back", array.getvalue(), 31, content=NPY, accept=NPY),
    ]


def _asked_otherwise(seed: int) -> list[Request]:
    random = np.random.default_rng(seed)
    path = "/v2/models/mgm/infer"
    tokens = ids(random, 29)
    given = [{"name": "tokens", "datatype": "INT64", "shape": [29], "data": tokens}]
    x = random.standard_normal((47, WIDTH)).astype(np.float32).tobytes()
    about = {"name": "x", "datatype": "FP32", "shape": [47, WIDTH], "parameters": {"binary_data_size": len(x)}}
    binary = json.dumps({"inputs": [about], "parameters": {"binary_data_output": True}}).encode()
    squeezed = gzip.compress(json.dumps({"tokens": ids(random, 59)}).encode(), mtime=0)
    return [
        ask("v2", {"inputs": given, "outputs": [{"name": "layers.0.resid_post"}]}, 29, path=path),
        post("v2 in binary", binary + x, 47, path=path, content="application/octet-stream",
             headers={"Inference-Header-Content-Length": str(len(binary))}),
        post("ids, gzip", squeezed, 59, headers={"Content-Encoding": "gzip"}),
        ask("dry run", {"tokens": tokens, "outputs": ["layers.*.attn_probs"]}, 0, path="/forward?dry_run=true"),
        ask("dry run of n", {"n": 100_000, "outputs": ["layers.3.attn_probs"]}, 0, path="/forward?dry_run=true"),
    ]  # fmt: skip

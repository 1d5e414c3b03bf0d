"""Speaking to the service in any of its formats, with the formats' own libraries."""

import io
import json
from typing import Any

import httpx
import numpy as np
import safetensors.numpy
import safetensors.torch
import torch

Array = np.ndarray[Any, Any]
JSON, SAFETENSORS, NPY = "application/json", "application/x-safetensors", "application/x-npy"
FORMATS = {"json": JSON, "safetensors": SAFETENSORS, "npy": NPY}


def rows(n: int, d: int = 30, seed: int = 0) -> Array:
    """A matrix [n, d] of float32."""
    return np.random.default_rng(1009 * seed + n).standard_normal((n, d)).astype(np.float32)


def ids(n: int, vocab: int = 101, seed: int = 0) -> list[int]:
    """n token ids."""
    return [int(i) for i in np.random.default_rng(1013 * seed + n).integers(0, vocab, n)]


def npy_bytes(array: Array) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def body_of(fields: dict[str, Any], tensors: dict[str, Array], body_format: str) -> dict[str, Any]:
    """What httpx needs to send these fields and tensors in a format: content, headers, params."""
    headers = {"Content-Type": FORMATS[body_format]}
    if body_format == "safetensors":
        content = safetensors.numpy.save(tensors, {"request": json.dumps(fields)})
        return {"content": content, "headers": headers}
    if body_format == "npy":
        (array,) = tensors.values()
        return {"content": npy_bytes(array), "headers": headers, "params": {"request": json.dumps(fields)}}
    whole = fields | {name: array.tolist() for name, array in tensors.items()}
    return {"content": json.dumps(whole).encode(), "headers": headers}


def post(
    client: httpx.Client,
    fields: dict[str, Any],
    tensors: dict[str, Array] | None = None,
    *,
    body: str = "json",
    accept: str | None = None,
    headers: dict[str, str] | None = None,
) -> httpx.Response:
    """POST /forward; `accept` is the name of a format, or a header as it stands."""
    request = body_of(fields, tensors or {}, body)
    if accept is not None:
        request["headers"]["Accept"] = FORMATS.get(accept, accept)
    request["headers"] |= headers or {}
    return client.post("/forward", **request)


def ask(
    client: httpx.Client, fields: dict[str, Any], tensors: dict[str, Array] | None = None, **options: Any
) -> dict[str, Array]:
    """The outputs of a call that must succeed, by name, as exact numbers."""
    response = post(client, fields, tensors, **({"accept": "safetensors"} | options))
    assert response.status_code == 200, response.text[:500]
    return outputs(response)


def outputs(response: httpx.Response) -> dict[str, Array]:
    """The tensors of an answer in whatever format it is; bfloat16 as float32; npy under the name ''."""
    assert response.status_code == 200, response.text[:500]
    match response.headers["content-type"]:
        case "application/json":
            return {name: from_json(tensor) for name, tensor in response.json()["outputs"].items()}
        case "application/x-safetensors":
            loaded = safetensors.torch.load(response.content)
            return {
                name: (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy()
                for name, tensor in loaded.items()
            }
        case "application/x-npy":
            return {"": np.load(io.BytesIO(response.content), allow_pickle=False)}
    raise AssertionError(response.headers["content-type"])


def from_json(tensor: dict[str, Any]) -> Array:
    """An array from {"shape", "dtype", "data"}; null is -inf."""
    dtype = {"bfloat16": "float32"}.get(tensor["dtype"], tensor["dtype"])
    flat = np.array(_filled(tensor["data"]), dtype=np.float64)
    assert list(flat.shape) == tensor["shape"]
    array: Array = flat.astype(dtype)
    return array


def _filled(data: Any) -> Any:
    return [_filled(one) for one in data] if isinstance(data, list) else -np.inf if data is None else data


def same_bits(a: Array, b: Array) -> bool:
    """Equal to the last bit, dtype and shape too."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def assert_rows_close(found: Array, expected: Array, tolerance: float = 2e-5) -> None:
    """Each row within `tolerance` of its own largest magnitude; -inf in the same places."""
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    if found.dtype.kind != "f":
        np.testing.assert_array_equal(found, expected)
        return
    np.testing.assert_array_equal(np.isneginf(found), np.isneginf(expected))
    found, expected = (np.where(np.isneginf(x), 0, x).astype(np.float64) for x in (found, expected))
    scale = np.abs(expected).max(axis=-1, keepdims=True)
    worst = np.max(np.abs(found - expected) - tolerance * scale)
    assert worst <= 0, f"a row is off by {worst} more than {tolerance} of its largest magnitude"


def problem(response: httpx.Response, status: int, code: str | None = None) -> dict[str, Any]:
    """The problem that a refusal carries, checked for what every one must have."""
    assert response.status_code == status, response.text[:500]
    assert response.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = response.json()
    assert {"type", "title", "status", "detail", "code"} <= set(body)
    assert body["status"] == status
    assert body["detail"]
    assert "Traceback" not in response.text
    assert response.headers["x-request-id"]
    if code is not None:
        assert body["code"] == code, body
    return body

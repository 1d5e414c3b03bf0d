"""Requests as bytes, made once: what a call asks is the same each time it is sent."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

VOCABULARY, WIDTH, POSITIONS = 9669, 256, 512  # of mgm, for which the load is made
JSON, SAFETENSORS, NPY = "application/json", "application/x-safetensors", "application/x-npy"
MEDIAN_TOKENS, SIGMA, LEAST_TOKENS = 64, 0.8, 4


@dataclass(frozen=True, slots=True)
class Request:
    """A request on the wire; `tokens` are the rows of all its inputs."""

    name: str
    head: bytes  # up to the last header, without the empty line
    body: bytes
    tokens: int

    def wire(self, headers: bytes = b"") -> bytes:
        """All of it, with more headers (each ends with CR LF)."""
        return b"".join((self.head, headers, b"\r\n", self.body))


def post(
    name: str,
    body: bytes,
    tokens: int,
    *,
    path: str = "/forward",
    content: str = JSON,
    accept: str = SAFETENSORS,
    headers: Mapping[str, str] | None = None,
) -> Request:
    """A POST of this body."""
    lines = [f"POST {path} HTTP/1.1", "Host: load", f"Content-Type: {content}", f"Accept: {accept}"]
    lines += [f"{key}: {value}" for key, value in (headers or {}).items()]
    lines += [f"Content-Length: {len(body)}", ""]
    return Request(name, "\r\n".join(lines).encode(), body, tokens)


def get(path: str) -> Request:
    """A GET."""
    return Request(path, f"GET {path} HTTP/1.1\r\nHost: load\r\n".encode(), b"", 0)


def ask(name: str, fields: Mapping[str, Any], tokens: int, **options: Any) -> Request:
    """A POST of these fields as JSON."""
    return post(name, json.dumps(fields).encode(), tokens, **options)


def ids(random: np.random.Generator, n: int) -> list[int]:
    """n token ids."""
    return [int(i) for i in random.integers(0, VOCABULARY, n)]


def lengths(random: np.random.Generator, count: int, median: float = MEDIAN_TOKENS) -> list[int]:
    """Lengths as texts have them: lognormal, many short and a few long."""
    drawn = np.exp(random.normal(np.log(median), SIGMA, count))
    return [int(n) for n in np.clip(np.round(drawn), LEAST_TOKENS, POSITIONS)]


def token_requests(count: int = 64, seed: int = 4, median: float = MEDIAN_TOKENS) -> list[Request]:
    """Ids in, the last layer's states out, in safetensors; so many different ones."""
    random = np.random.default_rng(seed)
    drawn = enumerate(lengths(random, count, median))
    return [ask(f"tokens {i}: {n}", {"tokens": ids(random, n)}, n) for i, n in drawn]

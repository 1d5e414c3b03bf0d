"""Servers that several files of tests share. Sizes are distinct primes where they can be, so that no swap passes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load_file

from model.checkpoint.initialise import initialise
from tests.server import Server, serving

TINY: dict[str, Any] = {
    "n_layers": 3,
    "d_model": 30,
    "n_heads": 2,
    "d_k": 7,
    "d_v": 5,
    "d_ff": 53,
    "vocab_size": 101,
    "max_positions": 61,
}
LIMITS = {
    "HEADWATER_MAX_BODY_BYTES": "20011",
    "HEADWATER_MAX_TOKENS": "41",
    "HEADWATER_MAX_INPUTS": "3",
    "HEADWATER_MAX_ANSWER_BYTES": "30011",
    "HEADWATER_MAX_JSON_BYTES": "10007",
    "HEADWATER_BODY_TIMEOUT_SECONDS": "0.7",
}


@pytest.fixture(scope="session")
def tiny_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "tiny"
    initialise(directory, seed=11, **TINY)
    return directory


@pytest.fixture(scope="session")
def tiny_weights(tiny_directory: Path) -> dict[str, np.ndarray[Any, Any]]:
    return load_file(tiny_directory / "model.safetensors")


@pytest.fixture(scope="session")
def tiny_server(tiny_directory: Path) -> Iterator[Server]:
    with serving(tiny_directory, "--threads", "1") as server:
        yield server


@pytest.fixture(scope="session")
def tiny(tiny_server: Server) -> Iterator[httpx.Client]:
    """A client of the tiny model: ids only, learned positions, a vocabulary."""
    with tiny_server.client() as client:
        yield client


@pytest.fixture(scope="session")
def limited_server(tiny_directory: Path) -> Iterator[Server]:
    """The tiny model under limits that a test can reach."""
    with serving(tiny_directory, "--threads", "1", **LIMITS) as server:
        yield server


@pytest.fixture(scope="session")
def limited(limited_server: Server) -> Iterator[httpx.Client]:
    with limited_server.client() as client:
        yield client


@pytest.fixture(scope="session")
def mgm_server() -> Iterator[Server]:
    with serving("mgm", "--threads", "1") as server:
        yield server


@pytest.fixture(scope="session")
def mgm_client(mgm_server: Server) -> Iterator[httpx.Client]:
    """A client of a GPT-2: ids only, 512 positions."""
    with mgm_server.client() as client:
        yield client


@pytest.fixture(scope="session")
def smollm2_server() -> Iterator[Server]:
    with serving("smollm2-135m-instruct", "--threads", "1") as server:
        yield server


@pytest.fixture(scope="session")
def smollm2_client(smollm2_server: Server) -> Iterator[httpx.Client]:
    """A client of a Llama: rotary positions, a tokenizer."""
    with smollm2_server.client() as client:
        yield client


@pytest.fixture(scope="session")
def minilm_server() -> Iterator[Server]:
    """A BERT, which looks both ways: a tokenizer, no unembedding."""
    with serving("minilm", "--threads", "1") as server:
        yield server

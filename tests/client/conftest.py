"""Clients of the servers that all tests share."""

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headwater_client import AsyncClient, Client
from tests.server import Server, serving

KEY = "a-key-that-nobody-may-see"
QUEUE = 4
FAULTY = (sys.executable, str(Path(__file__).parents[1] / "service" / "faulty.py"))


def client_of(server: Server, **options: Any) -> Client:
    """A client of this server, and of no proxy."""
    return Client(server.url, **{"trust_env": False, "timeout": 60.0} | options)


def async_client_of(server: Server, **options: Any) -> AsyncClient:
    """The same for an event loop."""
    return AsyncClient(server.url, **{"trust_env": False, "timeout": 60.0} | options)


def until(is_true: Callable[[], bool], seconds: float = 20.0) -> None:
    """Return as soon as something is true that another thread or process makes true."""
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline, "never became true"
        time.sleep(0.01)


@pytest.fixture
def client(tiny_server: Server) -> Iterator[Client]:
    """A client of the tiny model: ids only, learned positions, a vocabulary."""
    with client_of(tiny_server) as client:
        yield client


@pytest.fixture(scope="package")
def small_server(tiny_directory: Path) -> Iterator[Server]:
    """The tiny model with a queue so short that appointments are in a second; every answer is streamed."""
    options = ("--stream-above-bytes", "1", "--max-queue-requests", str(QUEUE), "--max-queue-tokens", "244")
    with serving(tiny_directory, "--threads", "1", *options) as server:
        yield server


@dataclass(frozen=True)
class Faulty:
    """A service with planted faults that wants KEY and has room for one request, and the folder that holds it."""

    server: Server
    folder: Path


@pytest.fixture(scope="package")
def faulty(tiny_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faulty]:
    """The tiny model; see tests/service/faulty.py for its faults."""
    keys, folder = tmp_path_factory.mktemp("keys") / "keys", tmp_path_factory.mktemp("faults")
    keys.write_text(f"tests {KEY}\n")
    options = ("--api-keys-file", str(keys), "--max-queue-requests", "1")
    with serving(tiny_directory, "--threads", "1", *options, program=FAULTY, FAULTS=str(folder)) as server:
        yield Faulty(server, folder)

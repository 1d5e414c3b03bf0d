"""Clients of the servers that all tests share."""

from collections.abc import Iterator
from typing import Any

import pytest

from headwater_client import AsyncClient, Client
from tests.server import Server


def client_of(server: Server, **options: Any) -> Client:
    """A client of this server, and of no proxy."""
    return Client(server.url, **{"trust_env": False, "timeout": 60.0} | options)


def async_client_of(server: Server, **options: Any) -> AsyncClient:
    """The same for an event loop."""
    return AsyncClient(server.url, **{"trust_env": False, "timeout": 60.0} | options)


@pytest.fixture
def client(tiny_server: Server) -> Iterator[Client]:
    """A client of the tiny model: ids only, learned positions, a vocabulary."""
    with client_of(tiny_server) as client:
        yield client

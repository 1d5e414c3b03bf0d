"""The app in the process of the test, where what is inside it can be seen or replaced; its model is loaded and warm."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

import service.assembly

SECONDS = 60.0


@contextmanager
def ready(app: FastAPI, **options: Any) -> Iterator[TestClient]:
    """A client of the app, once it takes requests."""
    with TestClient(app, **options) as client:
        deadline = time.monotonic() + SECONDS
        while client.get("/readyz").status_code != 200:
            assert time.monotonic() < deadline, client.get("/readyz").text
            time.sleep(0.002)
        yield client


def fail_on_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the model fail on every batch that begins with tokens; the passes that warm it up take x."""
    begin = service.assembly.begin

    def failing(stack: Any, sequences: Any, *rest: Any) -> Any:
        if sequences[0].kind == "tokens":
            raise RuntimeError("planted")
        return begin(stack, sequences, *rest)

    monkeypatch.setattr(service.assembly, "begin", failing)

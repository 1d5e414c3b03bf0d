"""The app in the process of the test, where what is inside it can be seen or replaced; its model is loaded and warm."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.testclient import TestClient

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

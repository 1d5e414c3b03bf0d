"""What is small and simple is read where it comes in, all else in a thread, so that the event loop stays free."""

import gzip
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

import service.routes.forward
import service.routes.v2
from model.checkpoint.load import load_model
from service.app import create_app
from service.routes.arriving import QUICK_BODY_BYTES, QUICK_RESULTS
from service.settings import Settings
from tests.service.in_process import ready

JSON = {"Content-Type": "application/json"}


class Where:
    """In which threads bodies were read and calls were checked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: dict[str, bool] = {}
        for module, name in (
            (service.routes.forward, "decode"),
            (service.routes.forward, "admit"),
            (service.routes.v2, "decode"),
        ):
            monkeypatch.setattr(module, name, self._noting(name, getattr(module, name)))

    def _noting(self, name: str, work: Any) -> Any:
        def noted(*arguments: Any) -> Any:
            self.seen[name] = threading.current_thread().name.startswith("headwater-wire")
            return work(*arguments)

        return noted


@pytest.fixture(scope="module")
def client(tiny_directory: Path) -> Iterator[TestClient]:
    with ready(create_app(Settings(), lambda _: load_model(tiny_directory, name="tiny"))) as client:
        yield client


@pytest.fixture
def where(monkeypatch: pytest.MonkeyPatch) -> Where:
    return Where(monkeypatch)


def test_a_small_simple_call_takes_no_thread(client: TestClient, where: Where) -> None:
    assert client.post("/forward", json={"tokens": [1, 2, 3]}).status_code == 200
    assert where.seen == {"decode": False, "admit": False}


def test_a_large_body_and_a_packed_one_are_read_in_a_thread(client: TestClient, where: Where) -> None:
    call = json.dumps({"tokens": [1, 2, 3]}).encode()
    for body, headers in (
        (call + b" " * QUICK_BODY_BYTES, {}),
        (gzip.compress(call), {"Content-Encoding": "gzip"}),
    ):
        where.seen.clear()
        assert client.post("/forward", content=body, headers=JSON | headers).status_code == 200
        assert where.seen == {"decode": True, "admit": True}


@pytest.mark.parametrize(
    "fields",
    [
        {"outputs": ["layers.*.resid_post"]},
        {"outputs": [{"name": "layers.0.ln1", "as": str(i)} for i in range(QUICK_RESULTS + 1)]},
    ],
    ids=["a pattern", "many outputs"],
)
def test_a_small_body_that_asks_for_much_is_checked_in_a_thread(
    client: TestClient, where: Where, fields: dict[str, Any]
) -> None:
    assert client.post("/forward", json={"tokens": [1]} | fields).status_code == 200
    assert where.seen == {"decode": False, "admit": True}


def test_a_v2_request_is_read_in_a_thread_for_its_parameters_go_for_each_output(
    client: TestClient, where: Where
) -> None:
    call = {"inputs": [{"name": "tokens", "shape": [1], "datatype": "INT64", "data": [1]}]}
    assert client.post("/v2/models/tiny/infer", json=call).status_code == 200
    assert where.seen["decode"]

"""The app as its parts are put together."""

from pathlib import Path

import anyio.to_thread
import pytest

import service.assembly
from model.checkpoint.load import load_model
from service.app import create_app
from service.settings import Settings
from tests.service.in_process import ready


def test_the_whole_stack_has_run_once_before_the_first_call(
    tiny_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, seen = service.assembly.begin, []

    def noting(stack: object, sequences: list[object], *rest: object) -> object:
        seen.append([(one.start, one.stop) for one in sequences])  # type: ignore[attr-defined]
        return begin(stack, sequences, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(service.assembly, "begin", noting)
    with ready(create_app(Settings(), lambda _: load_model(tiny_directory, name="tiny"))) as client:
        assert seen
        assert all(passed == [(0, 3)] for passed in seen)
        before = len(seen)
        assert client.get("/readyz").status_code == 200
    assert len(seen) == before


def test_two_apps_with_settings_of_their_own_live_in_one_process(tiny_directory: Path) -> None:
    model = load_model(tiny_directory, name="tiny")
    few, many = (create_app(Settings(max_tokens=n), lambda _: model) for n in (3, 5))
    with ready(few) as narrow, ready(many) as wide:
        call = {"tokens": [1, 2, 3, 4]}
        assert narrow.post("/forward", json=call).status_code == 413
        assert wide.post("/forward", json=call).status_code == 200


def test_neither_a_call_nor_a_probe_takes_a_thread_of_the_framework(
    tiny_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hops: list[object] = []

    async def noting(work: object, *_: object, **__: object) -> None:
        hops.append(work)
        raise AssertionError(f"{work} runs in a thread")

    with ready(create_app(Settings(), lambda _: load_model(tiny_directory, name="tiny"))) as client:
        monkeypatch.setattr(anyio.to_thread, "run_sync", noting)
        call = {"tokens": [1, 2, 3]}
        assert client.post("/forward", json=call).status_code == 200
        assert client.post("/forward", json=call | {"nonsense": 1}).status_code == 422
        assert client.post("/v2/models/tiny/infer", json={"inputs": []}).status_code in (400, 422)
        for path in ("/livez", "/readyz", "/startedz", "/v2/health/live", "/v2/health/ready", "/v2/models/tiny/ready"):
            assert client.get(path).status_code == 200
    assert not hops

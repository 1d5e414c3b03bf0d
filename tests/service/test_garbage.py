"""Python's collector stops everybody while it looks, so under load it looks at little."""

import gc
import time
import weakref

import pytest

from service import garbage
from service.batcher import Batcher
from service.fair_queue import Budget


class Cycle:
    """Refers to itself, so that it goes only when it is collected."""

    def __init__(self) -> None:
        self.itself = self


def test_old_cycles_go_when_the_model_thread_has_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr("service.batcher.IDLE_BEAT_SECONDS", 0.01)
    gc.disable()
    batcher = Batcher(lambda tickets, is_wanted: None, Budget(1, 1, 1))
    try:
        gone = weakref.ref(Cycle())
        assert gone() is not None, "it is no cycle"
        batcher.start()
        deadline = time.monotonic() + 30
        while gone() is not None:
            assert time.monotonic() < deadline
            time.sleep(0.005)
    finally:
        gc.enable()
        batcher.close()
        batcher.join(10)


def test_a_collection_while_calls_wait_looks_at_few_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    before, looked = gc.get_threshold(), []
    garbage.settle()
    try:
        kept: list[list[object]] = []

        def note(phase: str, info: dict[str, int]) -> None:
            if phase == "start":
                looked.append(info["generation"])

        gc.callbacks.append(note)
        kept.extend([] for _ in range(200_000))  # as many as a thousand waiting calls are
        assert looked, "the collector never ran"
        assert max(looked) < 2, "all that was there was gone through"
        most_young = (garbage.THRESHOLDS[1] + 2) * garbage.THRESHOLDS[0]
        assert looked.count(1) >= len(kept) // most_young - 1, "so many gather that a look at them takes long"
    finally:
        gc.callbacks.remove(note)
        gc.set_threshold(*before)
        gc.unfreeze()

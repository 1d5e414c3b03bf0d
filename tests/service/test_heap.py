"""The C library's heap: when what is free in it is given back."""

import pytest

import service.heap
from service.heap import EVERY_SECONDS, Heap


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(service.heap, "time", clock)
    return clock


@pytest.fixture
def given_back(clock: Clock) -> tuple[Heap, list[int]]:
    heap, calls = Heap(), list[int]()
    heap._trim = calls.append
    return heap, calls


def test_memory_is_given_back_now_and_then_and_not_after_every_batch(
    given_back: tuple[Heap, list[int]], clock: Clock
) -> None:
    heap, calls = given_back
    for _ in range(100):
        clock.now += EVERY_SECONDS / 10
        heap.used()
        heap.give_back()
    assert 8 <= len(calls) <= 10


def test_a_service_without_work_gives_back_what_it_had_used_once(
    given_back: tuple[Heap, list[int]], clock: Clock
) -> None:
    heap, calls = given_back
    heap.used()
    heap.give_back()
    assert calls == [], "too soon after the start"
    for _ in range(100):
        clock.now += EVERY_SECONDS
        heap.give_back()
    assert calls == [0]
    heap.used()
    heap.give_back()
    assert calls == [0, 0]


def test_a_c_library_without_such_calls_is_left_alone(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    monkeypatch.setattr(service.heap.ctypes, "CDLL", lambda _: object())
    heap = Heap()
    clock.now += 10 * EVERY_SECONDS
    heap.give_back()

"""Under load and faults, in seconds: the scenarios of bench/load, which `make load` runs at length.

The bounds leave room for two cores that others use too; what a fault would break by far, they catch.
"""

from collections.abc import Iterator

import pytest

from bench.load.disturbance import Disturbance, disturbance
from bench.load.fairness import KEYS_SETTING, Fairness, fairness, two_keys
from bench.load.mixed import STREAM_ABOVE_BYTES
from bench.load.overload import Overload, overload
from bench.load.process import MEBIBYTE
from bench.load.report import Outcome
from bench.load.shutdown import Shutdown, shutdown
from tests.server import Server, serving

SERVER = ("mgm", "--threads", "1")
MEDIAN_TOKENS = 12  # so that seconds are many batches
SHORT_QUEUE = {"HEADWATER_MAX_QUEUE_TOKENS": "4096"}  # a second of work
LONG_QUEUE = {"HEADWATER_MAX_QUEUE_TOKENS": "32768", "HEADWATER_MAX_BATCH_TOKENS": "1024"}


def holds(outcome: Outcome) -> None:
    assert not outcome.failed, f"\n{outcome.markdown()}"


@pytest.fixture(scope="module")
def overloaded() -> Iterator[Server]:
    with serving(*SERVER, **SHORT_QUEUE) as server:
        yield server


def test_three_times_too_many_callers_are_served_at_full_speed_or_told_when_to_come(overloaded: Server) -> None:
    plan = Overload(
        seconds=3.0,
        capacity_seconds=2.0,
        of_the_lesser=True,
        median_tokens=MEDIAN_TOKENS,
        waiting=0.5,
        own_ids=True,  # without, it takes a queue that is longer than a test: test_admission plays it
        afterwards_seconds=20.0,
        memory_settles_seconds=1.0,
        least_completed=0.6,
        least_readmitted=0.8,
        memory_allowance_bytes=64 * MEBIBYTE,
        probe_p99_ms=250.0,
        probe_longest_ms=1000.0,
    )
    holds(overload(overloaded, plan))


def test_callers_who_leave_and_send_garbage_change_no_answer_and_leave_nothing_behind() -> None:
    with serving(*SERVER, "--stream-above-bytes", str(STREAM_ABOVE_BYTES)) as server:
        holds(disturbance(server, Disturbance(seconds=4.0, calm_seconds=10.0)))


def test_sigterm_under_load_loses_nobody_who_was_admitted() -> None:
    with serving(*SERVER) as server:
        holds(shutdown(server, Shutdown(seconds=1.5, not_ready_seconds=1.0)))


def test_a_flood_with_one_key_does_not_hold_up_another() -> None:
    with two_keys() as keys, serving(*SERVER, **LONG_QUEUE, **{KEYS_SETTING: str(keys.path)}) as server:
        plan = Fairness(
            seconds=3.0,
            every=0.25,
            capacity_seconds=1.5,
            median_tokens=40.0,
            afterwards_seconds=1.0,
            allowance_ms=150.0,
        )
        holds(fairness(server, plan, keys))

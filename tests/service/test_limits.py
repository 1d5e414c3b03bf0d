"""The limits in force: as set, or as speed and memory allow."""

import httpx
import numpy as np
import pytest

from model.config import StackConfig
from model.cost import cost_of, operations
from model.points import named_points
from model.selection import Wanted
from model.sequence import Sequence
from service.limits import FEWEST_ROWS, FEWEST_WAITING, MOST_ROWS, Limits, bytes_of_row, limits_in_force
from service.settings import Settings

GIBIBYTE = 1 << 30
CONFIG = StackConfig(
    family="textbook", n_layers=3, d_model=30, n_heads=2, n_kv_heads=2, d_k=7, d_v=5, d_ff=53, vocab_size=101,
    max_positions=61, norm="layer_norm", norm_eps=1e-5, activation="relu", attention_scales=(1.0, 1.0, 1.0),
)  # fmt: skip


def limits(speed: float = 1000.0, device: int = GIBIBYTE, host: int = GIBIBYTE, **settings: int) -> Limits:
    return limits_in_force(
        Settings(**settings),
        CONFIG,
        rows_per_second=speed,
        device_bytes=device,
        host_bytes=host,  # type: ignore[arg-type]
    )


def test_what_is_set_holds() -> None:
    given = {
        "max_batch_tokens": 7, "max_batch_attention": 11, "max_batch_bytes": 13, "max_queue_requests": 17,
        "max_queue_tokens": 19, "max_held_bytes": 23,
    }  # fmt: skip
    assert limits(**given) == Limits(**given)


def test_a_faster_device_gets_larger_batches_and_a_longer_queue() -> None:
    slow, fast = limits(speed=1000), limits(speed=10_000)
    assert (slow.max_batch_tokens, fast.max_batch_tokens) == (500, 5000)
    assert (slow.max_queue_tokens, fast.max_queue_tokens) == (30_000, 300_000)
    assert limits(speed=1).max_batch_tokens == FEWEST_ROWS
    assert limits(speed=1).max_queue_tokens == FEWEST_WAITING, "a machine that is busy at the start seems slow for good"
    assert limits(speed=1e9).max_batch_tokens == MOST_ROWS


def test_a_batch_fits_into_the_memory_of_the_device_and_what_is_held_into_that_of_the_machine() -> None:
    small = limits(speed=1e9, device=8 << 20)
    assert small.max_batch_tokens * bytes_of_row(CONFIG, "float32") <= 1 << 20
    assert limits(host=4 * GIBIBYTE).max_held_bytes == 2 * GIBIBYTE
    assert limits(host=4 * GIBIBYTE, device=8 * GIBIBYTE).max_batch_bytes == GIBIBYTE // 2


def test_a_sequence_as_long_as_a_batch_fits_into_its_attention() -> None:
    for speed in (1, 1000, 1e9):
        found = limits(speed=speed)
        assert found.max_batch_attention >= found.max_batch_tokens**2


@pytest.mark.parametrize("window", [None, 5])
def test_the_cost_of_a_sequence_is_its_rows_pairs_bytes_and_operations(window: int | None) -> None:
    config = CONFIG if window is None else StackConfig(**{**vars(CONFIG), "windows": (window,) * 3})
    points = named_points(config)
    wanted = (Wanted("a", points["layers.1.resid_post"]), Wanted("b", points["layers.1.attn_probs"], dtype="float16"))
    sequence = Sequence("tokens", np.zeros(13, np.int64), 0, 2, wanted)
    cost = cost_of(config, sequence)
    assert (cost.rows, cost.pairs) == (13, 13 * (window or 13))
    assert cost.nbytes == 13 * 30 * 4 + 2 * 13 * 13 * 2
    maps = 2 * 2 * 13 * 13 * 7  # computed beside the layers
    assert cost.work == operations(config, sequence) - maps


def test_the_limits_in_force_can_be_read(limited: httpx.Client, tiny: httpx.Client) -> None:
    said = tiny.get("/model").json()["limits"]
    assert said["max_queue_requests"] == 1024
    for name in ("max_batch_tokens", "max_batch_attention", "max_batch_bytes", "max_queue_tokens", "max_held_bytes"):
        assert said[name] > 0

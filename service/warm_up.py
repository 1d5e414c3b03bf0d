"""The first passes of a loaded model: so that no call is slow, to learn its speed, and to find what does not fit.

All of it runs in the model thread before any batch, because torch makes worker threads and handles for each thread.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from model.config import StackConfig
from model.errors import CheckpointError, NonFiniteResult
from model.points import Point
from model.selection import Wanted
from model.sequence import Sequence

log = logging.getLogger("headwater.warm_up")

SIZES = (16, 64, 256)  # rows of the passes that are timed
SECONDS = 2.0  # after which no further one is begun, and more than the next one is expected to take

RunRows = Callable[[int], None]
"""Run a pass of so many rows to its end; may raise torch.OutOfMemoryError."""


@dataclass(frozen=True)
class WarmUp:
    """What the first passes showed: the speed of the largest, and the rows of the largest batch that fits."""

    tokens_per_second: float
    max_batch_tokens: int


def warm_up(
    run_rows: RunRows, max_batch_tokens: int, *, largest_too: bool, clock: Callable[[], float] = time.monotonic
) -> WarmUp:
    """Run a small pass, larger ones within SECONDS, and, where memory is the device's own, the `largest_too`."""
    began = clock()
    run_rows(min(SIZES[0], max_batch_tokens))  # reads the weights and makes threads: its time says nothing
    speed = 0.0
    for size in SIZES:
        rows = min(size, max_batch_tokens)
        if speed and (clock() - began) + rows / speed > SECONDS:
            break
        started = clock()
        run_rows(rows)
        speed = rows / max(clock() - started, 1e-6)
    return WarmUp(speed, largest_that_fits(run_rows, max_batch_tokens) if largest_too else max_batch_tokens)


def largest_that_fits(run_rows: RunRows, rows: int) -> int:
    """`rows`, or the first of its halves with which a pass does not run out of memory."""
    while not _fits(run_rows, rows):
        if rows == 1:
            raise CheckpointError("the model leaves no memory for a batch of one row")
        log.warning("a batch of %d rows does not fit into memory; max_batch_tokens is %d", rows, rows // 2)
        rows //= 2
    return rows


def _fits(run_rows: RunRows, rows: int) -> bool:
    # by itself, so that the error, and with it the tensors of its frames, is gone before the next try
    try:
        run_rows(rows)
    except torch.OutOfMemoryError:
        fits = False
    else:
        return True
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return fits


def rows_of_nobody(config: StackConfig, rows: int) -> Sequence:
    """A sequence of zeros that goes through the whole stack and to the logits where there are any; its answer is small.

    Something is wanted, because a device may still be computing when a pass returns that nothing was taken from.
    """
    last = Point(config.n_layers - 1, "resid_post")
    wanted = [Wanted("last", last, pool=True)]
    if config.unembedding:
        wanted.append(Wanted("logits", Point(None, "logits"), top_k=1))
    zeros = np.zeros((rows, config.d_model), dtype=np.float32)
    return Sequence("x", zeros, 0, config.n_layers, tuple(wanted))


class Nobody:
    """A sink that waits for each result and forgets it."""

    takes_parts = False

    def put_part(self, wanted: Wanted, at: int, part: Tensor) -> None:
        """No map is asked for."""

    def put(self, wanted: Wanted, tensors: tuple[Tensor, ...]) -> None:
        """Wait until the device has made the tensors."""
        for tensor in tensors:
            tensor.cpu()

    def fail(self, error: NonFiniteResult) -> None:
        """Zeros may overflow in a model of random weights; the time is the same."""

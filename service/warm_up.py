"""The first passes of a loaded model: so that no call is slow, to learn its speed, and to find what does not fit.

All of it runs in the model thread before any batch, because torch makes worker threads and handles for each thread.
"""

import logging
import time
from collections.abc import Callable

import numpy as np
from torch import Tensor

from model.config import StackConfig
from model.errors import CheckpointError, NonFiniteResult
from model.out_of_memory import give_back, is_out_of_memory
from model.points import Point
from model.selection import Wanted
from model.sequence import Sequence

log = logging.getLogger("headwater.warm_up")

SIZES = (16, 64, 256, 1024)  # rows of the passes that are timed
SECONDS = 1.0  # after which no further one is begun, and more than the next one is expected to take

RunRows = Callable[[int], None]
"""Run a pass of so many rows to its end; may raise torch.OutOfMemoryError."""


def speed_of(run_rows: RunRows, most: int | None, clock: Callable[[], float] = time.monotonic) -> float:
    """Rows a second of the largest of some passes of growing size within SECONDS, of at most so many rows."""
    began = clock()
    sizes = [size if most is None else min(size, most) for size in SIZES]
    run_rows(sizes[0])  # reads the weights and makes threads: its time says nothing
    speed = 0.0
    for rows in sizes:
        if speed and (clock() - began) + rows / speed > SECONDS:
            break
        started = clock()
        run_rows(rows)
        speed = rows / max(clock() - started, 1e-6)
    return speed


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
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    else:
        return True
    give_back()
    return False


def rows_of_nobody(config: StackConfig, rows: int) -> Sequence:
    """A sequence of zeros that goes through the whole stack and to the logits where there are any; its answer is small.

    Something is wanted, because a device may still be computing when a pass returns that nothing was taken from.
    """
    last = Point(config.n_layers - 1, "resid_post")
    wanted = [Wanted("last", last, pool=True)]
    if config.unembedding:
        wanted.append(Wanted("logits", Point(None, "logits"), rows=(rows - 1,), top_k=1))
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

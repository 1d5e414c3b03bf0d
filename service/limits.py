"""What the service holds at most: as set, or else as the device's memory and speed allow."""

from dataclasses import dataclass

from model.config import DTYPES, StackConfig
from model.cost import operations_of_pair, products_of_row
from service.fair_queue import Budget
from service.settings import MEBIBYTE, Settings

BATCH_SECONDS = 0.5  # that a full batch should take at most: so long a newcomer waits for the one that runs
QUEUE_SECONDS = 30.0  # of work that may wait
FEWEST_ROWS, MOST_ROWS = 256, 65_536  # of a batch: below, products are slow; above, nothing is gained
FEWEST_WAITING = 8192  # rows that may wait, however slow a machine seems that had other work at the start
_PART_OF_MEMORY = 8  # of what is free, one such part for a batch's own numbers and one for its results


@dataclass(frozen=True)
class Limits:
    """The limits in force.

    Of a batch: rows of the packed matrix, pairs of rows in attention (the sum of N squared), bytes of results. Of
    everything that is admitted, waiting and running: requests, rows, and bytes of bodies and answers.
    """

    max_batch_tokens: int
    max_batch_attention: int
    max_batch_bytes: int
    max_queue_requests: int
    max_queue_tokens: int
    max_held_bytes: int

    @property
    def budget(self) -> Budget:
        """Of one batch."""
        return Budget(self.max_batch_tokens, self.max_batch_attention, self.max_batch_bytes)


def limits_in_force(
    settings: Settings,
    config: StackConfig,
    *,
    rows_per_second: float,
    device_bytes: int,
    host_bytes: int,
) -> Limits:
    """The limits that are set, and for the others what follows from speed and free memory.

    `rows_per_second` is the speed of the whole stack, `device_bytes` and `host_bytes` the memory that is free on the
    device and in the machine.
    """
    tokens = settings.max_batch_tokens
    if tokens is None:
        fit = device_bytes // _PART_OF_MEMORY // bytes_of_row(config, settings.dtype)
        tokens = max(1, min(_between(FEWEST_ROWS, int(rows_per_second * BATCH_SECONDS), MOST_ROWS), fit))
    attention = settings.max_batch_attention
    if attention is None:
        # attention at most as much work as the products of a full batch; a sequence of that length itself fits
        attention = max(tokens * products_of_row(config) // operations_of_pair(config), tokens * tokens)
    nbytes = settings.max_batch_bytes
    if nbytes is None:
        nbytes = max(64 * MEBIBYTE, min(device_bytes, host_bytes) // _PART_OF_MEMORY)
    queue = settings.max_queue_tokens
    if queue is None:
        queue = max(int(rows_per_second * QUEUE_SECONDS), 4 * tokens, FEWEST_WAITING)
    held = settings.max_held_bytes
    if held is None:
        held = max(256 * MEBIBYTE, host_bytes // 2)
    return Limits(tokens, attention, nbytes, settings.max_queue_requests, queue, held)


def bytes_of_row(config: StackConfig, dtype: str) -> int:
    """About what a layer holds at a time for each row: the stream, its norms, q, k, v, z, the inside of the FFN."""
    heads = (config.n_heads + config.n_kv_heads) * (config.d_k + config.d_v)
    return (6 * config.d_model + 2 * heads + 3 * config.d_ff) * DTYPES[dtype].itemsize


def _between(low: int, value: int, high: int) -> int:
    return max(low, min(value, high))

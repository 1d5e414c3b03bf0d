"""What the service says of itself in /metrics."""

import asyncio
import re
import time
from collections.abc import Mapping, Sequence

from bench.load.pool import Pool
from bench.load.requests import get

_SAMPLE = re.compile(rb"^([a-zA-Z_:][\w:]*)(?:\{[^}\n]*\})? +(\S+)", re.MULTILINE)
METRICS_SECONDS, POLL_SECONDS = 10.0, 0.1

ADMISSION = (
    "headwater_admitted_requests",
    "headwater_admitted_tokens",
    "headwater_admitted_bytes",
    "headwater_queue_requests",
    "headwater_queue_tokens",
)
TASKS = "headwater_tasks"


async def read_metrics(pool: Pool) -> dict[str, float]:
    """Each sample's value, those that differ in labels alone added up; empty where there is no /metrics."""
    reply = await pool.exchange(get("/metrics").wire(), METRICS_SECONDS)
    found: dict[str, float] = {}
    if reply.status == 200:
        for name, value in _SAMPLE.findall(reply.body):
            found[name.decode()] = found.get(name.decode(), 0.0) + float(value)
    return found


async def wait_for_at_most(
    pool: Pool, bounds: Mapping[str, float], seconds: float
) -> tuple[bool, dict[str, float | None]]:
    """Poll until each metric is there and at most its bound, or the time is over: whether so, and the last values."""
    deadline = time.monotonic() + seconds
    while True:
        found = await read_metrics(pool)
        values = {name: found.get(name) for name in bounds}
        if all(value is not None and value <= bounds[name] for name, value in values.items()):
            return True, values
        if not found or time.monotonic() >= deadline:
            return False, values
        await asyncio.sleep(POLL_SECONDS)


def told(values: Mapping[str, float | None], names: Sequence[str] = ()) -> str:
    """Values for the report."""
    if values and all(value is None for value in values.values()):
        return "not in /metrics"
    return ", ".join(
        f"{name.removeprefix('headwater_')} {'missing' if values[name] is None else f'{values[name]:g}'}"
        for name in names or values
    )

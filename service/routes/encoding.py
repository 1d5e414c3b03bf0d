"""Answers are written in a thread, and the time that takes is noted."""

import time
from collections.abc import Callable
from typing import Any, TypeVar

from service.parts import Parts

T = TypeVar("T")


async def encoded(work: Callable[[], T], parts: Parts, log: dict[str, Any]) -> T:
    """Write an answer outside the event loop; the log line gets `encode_ms`, the wait for a thread included."""
    began = time.monotonic()
    try:
        return await parts.off_loop(work)
    finally:
        log["encode_ms"] = round(1000 * (time.monotonic() - began), 3)

"""Answers are written in a thread, but for those that take less time than the way there; what it takes is noted."""

import time
from collections.abc import Callable
from typing import Any, TypeVar

from service.parts import Parts
from service.wire.answer import Answer

T = TypeVar("T")

QUICK_RESULTS, QUICK_JSON_BYTES = 16, 1 << 15  # written in a fraction of a millisecond


def is_quick(answer: Answer, *, in_json: bool) -> bool:
    """Whether an answer is written so fast that the event loop can do it."""
    nbytes = sum(spec.nbytes for spec in answer.specs) if in_json else 0
    ids = sum(len(one["ids"]) for one in answer.tokens if one)
    return len(answer.specs) <= QUICK_RESULTS and nbytes + 8 * ids <= QUICK_JSON_BYTES


async def encoded(work: Callable[[], T], parts: Parts, log: dict[str, Any], *, here: bool = False) -> T:
    """Write an answer, outside the event loop unless `here`; the log line gets `encode_ms`, waiting included."""
    began = time.monotonic()
    try:
        return work() if here else await parts.off_loop(work)
    finally:
        log["encode_ms"] = round(1000 * (time.monotonic() - began), 3)

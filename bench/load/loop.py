"""The generator's own event loop: a fast one, that the collector does not stop now and then."""

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")
_OBJECTS = 200_000  # that are made before the collector looks for those to be freed


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end and return what it returns."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_OBJECTS, 50, 100)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(work)
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()

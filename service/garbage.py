"""Python's collector of garbage, so set that nobody waits for it long.

A call that waits is some two hundred objects, and at times a thousand calls wait. To go through all of those takes a
hundred milliseconds, in which nobody is answered, probes neither; to go through the youngest takes a few. So the old
ones are gone through when there is nothing to do.
"""

import gc
import time

THRESHOLDS = 5_000, 1, 1_000  # the last one is for a service that never has a moment
EVERY_SECONDS = 30.0


def settle() -> None:
    """Look at what is there by now for the last time: modules, the model."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)


class IdleCollector:
    """Collects when there is nothing to do."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def collect(self) -> None:
        """Go through everything, if that is some time ago."""
        now = time.monotonic()
        if now - self._last > EVERY_SECONDS:
            self._last = now
            gc.collect()

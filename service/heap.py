"""The C library's heap: memory that is free in it goes back to the system, so that the process does not grow.

Tensors and answers of all sizes come and go in several threads, and small things that stay lie between them. Left
alone, glibc keeps what is free around them, in a heap for each thread, and under mixed traffic a service grows for
minutes.
"""

import ctypes
import time

EVERY_SECONDS = 10.0
MOST_ARENAS = 4
_M_ARENA_MAX = -8  # of mallopt(3)


class Heap:
    """Gives memory back now and then; does nothing where the C library has no such call."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        self._trim = getattr(library, "malloc_trim", None)
        self._last = time.monotonic()
        if hasattr(library, "mallopt"):
            library.mallopt(_M_ARENA_MAX, MOST_ARENAS)

    def give_back(self) -> None:
        """Give free pages back, if that is some time ago: it takes some milliseconds, in which others may wait."""
        now = time.monotonic()
        if self._trim is not None and now - self._last > EVERY_SECONDS:
            self._last = now
            self._trim(0)

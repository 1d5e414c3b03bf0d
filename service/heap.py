"""The C library's heap: memory that is free in it goes back to the system now and then, and not at once.

Tensors and answers of all sizes come and go in several threads, and small things that stay lie between them. Left
alone, glibc keeps what is free around them, in a heap for each thread, and under mixed traffic a service grows for
minutes. What is free at a heap's end it gives back at once, and the next layer's matrices get it anew, page by page: a
twentieth of the time of a model of narrow layers.
"""

import ctypes
import time

EVERY_SECONDS = 10.0
MOST_ARENAS = 4
KEPT_BYTES = 256 << 20  # free at the end of a heap
LARGEST_BYTES = 32 << 20  # in a heap; what is larger has pages of its own. glibc takes no more
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # of mallopt(3)


class Heap:
    """Gives memory back now and then; does nothing where the C library has no such call."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        self._trim = getattr(library, "malloc_trim", None)
        self._last = time.monotonic()
        self._used = True
        if hasattr(library, "mallopt"):
            library.mallopt(_M_ARENA_MAX, MOST_ARENAS)
            library.mallopt(_M_MMAP_THRESHOLD, LARGEST_BYTES)
            library.mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)

    def used(self) -> None:
        """Something ran: there may be pages to give back."""
        self._used = True

    def give_back(self) -> None:
        """Give free pages back, if any were used and that is some time ago.

        It takes some milliseconds, in which others may wait.
        """
        now = time.monotonic()
        if self._used and self._trim is not None and now - self._last > EVERY_SECONDS:
            self._last, self._used = now, False
            self._trim(0)

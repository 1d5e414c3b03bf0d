"""How fast the service works off what it admitted, in rows a second, as lately seen."""

import math

MEMORY_SECONDS = 10.0  # of work: what is older counts little


class Speed:
    """A mean over the time in which there was something to do; it forgets slowly. Times are seconds of one clock."""

    def __init__(self, rows_per_second: float, now: float = 0.0) -> None:
        """`rows_per_second` is what counts until more is seen, as one second of work."""
        self._rows, self._seconds = rows_per_second, 1.0
        self._at = now

    @property
    def rows_per_second(self) -> float:
        """The present estimate, above 0."""
        return max(self._rows / self._seconds, 1e-3)

    def passes(self, now: float, *, busy: bool) -> None:
        """Time has passed up to `now`; `busy` says whether there was something to do."""
        seconds, self._at = max(0.0, now - self._at), max(now, self._at)
        if busy:
            kept = math.exp(-seconds / MEMORY_SECONDS)
            self._rows *= kept
            self._seconds = self._seconds * kept + seconds

    def done(self, rows: int) -> None:
        """So many rows were answered."""
        self._rows += rows

"""Callers who are sent away with a time to come back, and the place that is kept for them when they do.

Under lasting overload a place that becomes free is taken at once by whoever comes next, so a Retry-After alone would
be a lottery. Here each refused caller gets a place in a line that moves at the speed of the service: it is told when
its turn is, and from shortly before until shortly after, that much room is not given to others. A caller is known
again by its X-Request-Id, or by where it comes from and how long its body is. How many come back is learned, and room
is kept for that many alone.
"""

import math
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from heapq import heappop, heappush

AHEAD_SECONDS = 1.0  # before its time, room for a caller begins to be kept
GRACE_SECONDS = 1.0  # after its time, it is kept no longer
EARLY_SECONDS = 0.5  # a caller may come so much before its time
LONGEST_SECONDS = 600.0  # that a caller is told to wait
MOST_PROMISES = 20_000
_LEARNING, _LEAST_RETURNS = 0.02, 0.01


@dataclass(order=True)
class _Promise:
    due: float
    rows: int = field(compare=False)
    known_by: tuple[Hashable, ...] = field(compare=False)
    over: bool = field(default=False, compare=False)


class WaitingRoom:
    """The line of one share. Times are of one clock, in seconds; not safe for threads by itself."""

    def __init__(self) -> None:
        self.returning = 0.5  # of those sent away, the part that comes back in time, as lately seen
        self._front = 0.0  # when the last of the line has its turn
        self._coming: list[_Promise] = []
        self._expected: deque[_Promise] = deque()
        self._expected_rows = 0
        self._known: dict[Hashable, deque[_Promise]] = {}

    def __len__(self) -> int:
        return len(self._coming) + len(self._expected)

    def send_away(
        self, known_by: tuple[Hashable, ...], rows: int, room_in: float, rows_per_second: float, now: float
    ) -> int:
        """The seconds after which a caller of so many rows should come back.

        `room_in` is the time until there will be room for it, were it alone.
        """
        self._front = max(self._front, now + room_in)
        self._front += self.returning * rows / rows_per_second
        seconds = min(max(1, math.ceil(self._front - now)), int(LONGEST_SECONDS))
        if len(self) < MOST_PROMISES:
            promise = _Promise(now + seconds, rows, known_by)
            heappush(self._coming, promise)
            for name in known_by:
                self._known.setdefault(name, deque()).append(promise)
        return seconds

    def welcome(self, known_by: tuple[Hashable, ...], now: float) -> bool:
        """Whether a place is kept for this caller now; it is its own from here on."""
        self._move(now)
        for name in known_by:
            for promise in self._known.get(name, ()):
                if promise.due - EARLY_SECONDS > now:
                    break
                if not promise.over:
                    self._end(promise, 1.0)
                    return True
        return False

    def kept(self, now: float) -> float:
        """Rows that are kept now for those who are likely to come back."""
        self._move(now)
        return self.returning * self._expected_rows

    def _move(self, now: float) -> None:
        while self._coming and self._coming[0].due - AHEAD_SECONDS <= now:
            promise = heappop(self._coming)
            if not promise.over:
                self._expected.append(promise)
                self._expected_rows += promise.rows
        while self._expected and (self._expected[0].over or self._expected[0].due + GRACE_SECONDS < now):
            promise = self._expected.popleft()
            if not promise.over:
                self._end(promise, 0.0)

    def _end(self, promise: _Promise, came: float) -> None:
        promise.over = True
        self._expected_rows -= promise.rows  # before AHEAD_SECONDS nobody is welcome, so it was counted
        self.returning = max(_LEAST_RETURNS, self.returning + _LEARNING * (came - self.returning))
        for name in promise.known_by:
            line = self._known[name]
            while line and line[0].over:
                line.popleft()
            if not line:
                del self._known[name]

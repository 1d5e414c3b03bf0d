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
EARLY_SECONDS = 0.05  # a caller may come so much before its time; most measure it from the answer on
LONGEST_SECONDS = 600.0  # that a caller is told to wait
MOST_PROMISES = 20_000
_LEARNING, _LEAST_RETURNS = 0.02, 0.01
_LEARNING_OF_IDS, _FORGETTING_OF_IDS = 0.1, 0.005


@dataclass(frozen=True)
class Caller:
    """Who asks: its API key's name ("" where there are none), its X-Request-Id if it sent one, and how it looks."""

    share: str = ""
    request_id: str | None = None
    look: Hashable = None


@dataclass(order=True)
class _Promise:
    due: float
    rows: int = field(compare=False)
    caller: Caller = field(compare=False)
    over: bool = field(default=False, compare=False)

    @property
    def names(self) -> list[Hashable]:
        """What it is found by; the id first."""
        return _names(self.caller)


def _names(caller: Caller) -> list[Hashable]:
    return [("id", caller.request_id)] * (caller.request_id is not None) + [("look", caller.look)]


class WaitingRoom:
    """The line of one share. Times are of one clock, in seconds; not safe for threads by itself."""

    def __init__(self) -> None:
        self.returning = 0.5  # of those sent away, the part that comes back in time, as lately seen
        self._front = 0.0  # when the last of the line has its turn
        self._coming: list[_Promise] = []
        self._expected: deque[_Promise] = deque()
        self._expected_rows = 0
        self._known: dict[Hashable, deque[_Promise]] = {}
        # Whether those who come back have the id that they had: some make one for each try, and then their looks are
        # all that is known; where ids last, another id is another caller, however alike it looks.
        self._ids_last = 0.7

    def __len__(self) -> int:
        return len(self._coming) + len(self._expected)

    def send_away(self, caller: Caller, rows: int, room_in: float, rows_per_second: float, now: float) -> int:
        """The seconds after which a caller of so many rows should come back.

        `room_in` is the time until there will be room for it, were it alone.
        """
        self._front = max(self._front, now + room_in)
        self._front += self.returning * rows / rows_per_second
        seconds = min(max(1, math.ceil(self._front - now)), int(LONGEST_SECONDS))
        if len(self) < MOST_PROMISES:
            promise = _Promise(now + seconds, rows, caller)
            heappush(self._coming, promise)
            for name in promise.names:
                self._known.setdefault(name, deque()).append(promise)
        return seconds

    def welcome(self, caller: Caller, now: float) -> bool:
        """Whether a place is kept for this caller now; it is its own from here on."""
        self._move(now)
        by_id, *by_look = _names(caller)
        promise = self._due(by_id, now)
        if promise is not None and by_look:
            self._ids_last += _LEARNING_OF_IDS * (1 - self._ids_last)
        elif by_look and self._ids_last <= 0.5:
            promise = self._due(by_look[0], now)
            if promise is not None and promise.caller.request_id is not None:
                self._ids_last -= _LEARNING_OF_IDS * self._ids_last
        if promise is None:
            return False
        self._end(promise, 1.0)
        return True

    def _due(self, name: Hashable, now: float) -> _Promise | None:
        """The first place that is kept under a name now."""
        for promise in self._known.get(name, ()):
            if promise.due - EARLY_SECONDS > now:
                break
            if not promise.over:
                return promise
        return None

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
                if promise.caller.request_id is not None:
                    self._ids_last -= _FORGETTING_OF_IDS * self._ids_last

    def _end(self, promise: _Promise, came: float) -> None:
        promise.over = True
        self._expected_rows -= promise.rows  # before AHEAD_SECONDS nobody is welcome, so it was counted
        self.returning = max(_LEAST_RETURNS, self.returning + _LEARNING * (came - self.returning))
        for name in promise.names:
            line = self._known[name]
            while line and line[0].over:
                line.popleft()
            if not line:
                del self._known[name]

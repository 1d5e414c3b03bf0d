"""Callers who are sent away are told when to come back, so that there is a place for them when they do.

Under lasting overload a place that becomes free is taken at once by whoever comes next, so a Retry-After alone would be
a lottery: at three times the capacity whoever comes back competes with three newcomers for each place. Here it is an
appointment. Time is cut into periods, and the first second of each is open: until then room is kept for all who were
told to come in it, and for the newcomers of that second, and then whoever comes is let in. In the rest of a period
newcomers get what is left of the room, and the others an appointment in the first period that is not full. So those
who come back need not be known again. They are where they can be, by their X-Request-Id, or by where they come from and
how long their body is, and then come before newcomers in any second: for where the queue is too short for periods.

How many come back is learned from how many more come in open seconds than in others; room is kept for so many alone.
"""

import math
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from heapq import heappop, heappush

SHORTEST_PERIOD, LONGEST_PERIOD = 6, 15  # seconds; in a shorter one the newcomers of its open second fill it
PERIODS_OF_QUEUE = 1.6  # that a full queue takes, so that the model has work while room is kept
LUMP_SECONDS = 2.0  # of work: room does not come evenly, but with the end of each batch
OPEN_SECONDS = 1.25  # who is told to come in a second comes a little later than that
AHEAD_SECONDS, GRACE_SECONDS = 1.0, 1.0  # around its time, within which a place is kept for a caller that is known
EARLY_SECONDS = 0.05  # that a known caller may be too early; most count from the answer on
LONGEST_SECONDS = 600.0  # that a caller is told to wait
MOST_PROMISES = 20_000
_FILLED = 0.9  # of a period's capacity
_LEARNING, _LEARNING_BY_ONE, _LEAST_RETURNS = 0.5, 0.02, 0.02
_LEARNING_OF_IDS, _FORGETTING_OF_IDS = 0.1, 0.005


def period_of(rows: float, rows_per_second: float) -> int:
    """The period, in seconds, for a queue of so many rows; 1 where it is too short for any."""
    period = int(rows / rows_per_second / PERIODS_OF_QUEUE)
    return min(period, LONGEST_PERIOD) if period >= SHORTEST_PERIOD else 1


@dataclass(frozen=True)
class Caller:
    """Who asks: its API key's name ("" where there are none), its X-Request-Id if it sent one, and how it looks."""

    share: str = ""
    request_id: str | None = None
    look: Hashable = None


@dataclass(order=True)
class _Promise:
    due: float
    rows: float = field(compare=False)
    caller: Caller = field(compare=False)
    over: bool = field(default=False, compare=False)


class WaitingRoom:
    """The appointments of one share. Times are of one clock, in seconds; not safe for threads by itself."""

    def __init__(self, period: int = 1) -> None:
        self.period = period
        self.returning = 1.0  # of those sent away, the part that comes back in time, as lately seen
        self._appointed: dict[int, float] = {}  # rows that were told to come, by the number of the period
        self._first = 0  # period that may have room
        self._arrivals = _Arrivals(period)
        # and the same of each caller, as far as it is known
        self._coming: list[_Promise] = []
        self._expected: deque[_Promise] = deque()
        self._expected_rows = 0.0
        self._known: dict[Hashable, deque[_Promise]] = {}
        # Whether those who come back have the id that they had: some make one for each try, and then their looks are
        # all that is known; where ids last, another id is another caller, however alike it looks.
        self._ids_last = 0.7

    def __len__(self) -> int:
        return len(self._coming) + len(self._expected)

    def arrives(self, rows: float, now: float) -> None:
        """Somebody comes, whoever it is, with about so many rows."""
        ended = self._arrivals.add(rows, now)
        if ended is None:
            return
        number, came = ended
        told = self._appointed.get(number, 0.0)
        self._appointed = {later: rows for later, rows in self._appointed.items() if later > number}
        if told and self.period > 1:
            self._learn(min(1.0, came / told), _LEARNING)

    def send_away(self, caller: Caller, rows: float, room_in: float, rows_per_second: float, now: float) -> int:
        """The seconds after which a caller of so many rows should come back.

        `room_in` is the time until there will be room for it, were it alone.
        """
        capacity = self.period * rows_per_second
        if self.period > 1:
            capacity = max(0.1, _FILLED - OPEN_SECONDS * self._arrivals.rate / capacity) * capacity
        number = max(self._first, math.floor((now + room_in) / self.period) + 1)
        while self.returning * self._appointed.get(number, 0.0) >= capacity:
            number += 1
        self._first = number
        self._appointed[number] = self._appointed.get(number, 0.0) + rows
        seconds = min(max(1, math.ceil(number * self.period - now)), int(LONGEST_SECONDS))
        self._remember(_Promise(now + seconds, rows, caller))
        return seconds

    def kept(self, rows_per_second: float, now: float) -> float:
        """Rows that are kept from newcomers now."""
        if self.period == 1:
            self._move(now)
            return self.returning * self._expected_rows
        if self.is_open(now):
            return 0.0
        number, since = divmod(now, self.period)
        appointed = self._appointed.get(int(number) + 1, 0.0)
        if not appointed:
            return 0.0  # nobody was sent away: an open second is like any other
        need = self.returning * appointed + OPEN_SECONDS * self._arrivals.rate
        gone_by_then = rows_per_second * (self.period - since - LUMP_SECONDS)
        return max(0.0, need - gone_by_then)

    def _learn(self, came: float, weight: float) -> None:
        self.returning = max(_LEAST_RETURNS, self.returning + weight * (came - self.returning))

    def is_open(self, now: float) -> bool:
        """Whether this is a second in which whoever comes is let in."""
        return self.period > 1 and now % self.period < OPEN_SECONDS

    # --- who is known again

    def welcome(self, caller: Caller, now: float) -> bool:
        """Whether a place is kept for this very caller now; it is its own from here on."""
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
        self._end(promise, came=True)
        return True

    def _remember(self, promise: _Promise) -> None:
        if len(self) < MOST_PROMISES:
            heappush(self._coming, promise)
            for name in _names(promise.caller):
                self._known.setdefault(name, deque()).append(promise)

    def _due(self, name: Hashable, now: float) -> _Promise | None:
        """The first place that is kept under a name now."""
        for promise in self._known.get(name, ()):
            if promise.due - EARLY_SECONDS > now:
                break
            if not promise.over:
                return promise
        return None

    def _move(self, now: float) -> None:
        while self._coming and self._coming[0].due - AHEAD_SECONDS <= now:
            promise = heappop(self._coming)
            if not promise.over:
                self._expected.append(promise)
                self._expected_rows += promise.rows
        while self._expected and (self._expected[0].over or self._expected[0].due + GRACE_SECONDS < now):
            promise = self._expected.popleft()
            if not promise.over:
                self._end(promise, came=False)
                if promise.caller.request_id is not None:
                    self._ids_last -= _FORGETTING_OF_IDS * self._ids_last

    def _end(self, promise: _Promise, *, came: bool) -> None:
        promise.over = True
        if self.period == 1:
            self._learn(float(came), _LEARNING_BY_ONE)
        self._expected_rows -= promise.rows  # before AHEAD_SECONDS nobody is welcome, so it was counted
        for name in _names(promise.caller):
            line = self._known[name]
            while line and line[0].over:
                line.popleft()
            if not line:
                del self._known[name]


def _names(caller: Caller) -> list[Hashable]:
    """What a caller is found by; the id first."""
    return [("id", caller.request_id)] * (caller.request_id is not None) + [("look", caller.look)]


class _Arrivals:
    """Rows that come: how many a second outside of the open seconds, and how many more in each of those."""

    def __init__(self, period: int) -> None:
        self.rate = 0.0  # rows a second of newcomers
        self._period = period
        self._number = 0
        self._open = self._closed = 0.0

    def add(self, rows: float, now: float) -> tuple[int, float] | None:
        """Count an arrival; of the period that ended with it, if one did, its number and the rows beyond newcomers'."""
        number, since = divmod(now, self._period)
        ended: tuple[int, float] | None = None
        if int(number) != self._number:
            newcomers = self._closed / max(self._period - OPEN_SECONDS, 1.0)
            ended = self._number, max(0.0, self._open - OPEN_SECONDS * newcomers)
            follows = int(number) == self._number + 1
            self.rate = (self.rate + newcomers) / 2 if follows else 0.0
            self._number, self._open, self._closed = int(number), 0.0, 0.0
        if since < OPEN_SECONDS:
            self._open += rows
        else:
            self._closed += rows
        return ended

"""The bounds of the service: how many requests, rows and bytes it holds at a time, waiting and running.

Everything is counted at the door, before it costs anything, and given back when the request ends, however it ends.
"""

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from service.errors import Draining, QueueFull
from service.speed import Speed
from service.waiting_room import Caller, WaitingRoom, period_of

RETURNING_PART = 16  # one such part of the rows is for those alone who come back when they were told to


@dataclass(frozen=True)
class Bounds:
    """Of all that is admitted: requests, rows of their sequences, bytes of their bodies and answers."""

    requests: int
    rows: int
    nbytes: int


UNBOUNDED = Bounds(sys.maxsize, sys.maxsize, sys.maxsize)


@dataclass
class Held:
    """What is admitted of one share, or of all."""

    requests: int = 0
    rows: int = 0
    nbytes: int = 0

    def add(self, requests: int, rows: int, nbytes: int) -> None:
        """Count something in; negative numbers count it out."""
        self.requests += requests
        self.rows += rows
        self.nbytes += nbytes


@dataclass
class _Share:
    room: WaitingRoom
    held: Held = field(default_factory=Held)
    is_full: bool = False
    mean_rows: float = 64.0


class Admission:
    """Counts what is held, and refuses what would be too much with the time after which to come back.

    With `fair` several shares (API keys) divide the bounds among them: each may hold as much as it leaves free, so that
    there is always room for one that has held nothing (dynamic thresholds: Choudhury and Hahne, 1998). A request that
    is over a bound by itself is admitted when there is nothing else; one with more rows than the bound counts as half
    of it, so that it finds a place beside steady traffic too.
    """

    def __init__(
        self,
        bounds: Bounds,
        rows_per_second: float = 1.0,
        *,
        fair: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fair, self._clock = fair, clock
        self.held = Held()
        self._shares: dict[str, _Share] = {}
        self.bound(bounds, rows_per_second)
        self._lock = threading.Lock()
        self._is_open = True
        self._left = asyncio.Event()

    @property
    def requests(self) -> int:
        """Requests that are admitted and not yet answered."""
        return self.held.requests

    @property
    def rows_per_second(self) -> float:
        """How fast admitted rows are answered, as lately seen."""
        return self._speed.rows_per_second

    def bound(self, bounds: Bounds, rows_per_second: float) -> None:
        """The bounds from now on, and the speed until it is seen."""
        self.bounds = bounds
        self._speed = Speed(rows_per_second, self._clock())
        self._period = period_of(bounds.rows / 2 if self._fair else bounds.rows, rows_per_second)

    def is_open(self) -> bool:
        """Whether new work is taken at all."""
        return self._is_open

    def close(self) -> None:
        """From now on new work is refused with Draining."""
        self._is_open = False

    async def emptied(self) -> None:
        """Wait until no request is admitted any more."""
        while self.held.requests:
            self._left.clear()
            await self._left.wait()

    def enter(self, caller: Caller, body_bytes: int) -> "Place":
        """Admit a request before its body is read. Raises QueueFull or Draining.

        `body_bytes` is what its head says of its length, 0 where it says nothing.
        """
        if not self._is_open:
            raise Draining("the service is shutting down", retry_after=5)
        with self._lock:
            now = self._clock()
            share = self._share(caller)
            share.room.arrives(share.mean_rows, now)
            self._speed.passes(now, busy=self.held.rows > 0)
            came_back = share.room.welcome(caller, now)
            self._check("requests", 1, share, "requests are admitted", "max_queue_requests", caller, now)
            self._check("nbytes", body_bytes, share, "bytes are held", "max_held_bytes", caller, now)
            if not came_back:
                limit = self._rows_for_newcomers(share, now)
                slack = self.bounds.rows // RETURNING_PART
                if share.is_full and share.held.rows <= limit - slack:
                    share.is_full = False
                if (share.is_full or share.held.rows >= limit) and self.held.rows:
                    raise self._refused(
                        share,
                        caller,
                        share.mean_rows,
                        f"{self.held.rows} tokens wait or run, the limit max_queue_tokens is {self.bounds.rows}",
                        now,
                    )
            self._count(share, 1, 0, body_bytes)
            return Place(self, share, caller, body_bytes, came_back=came_back)

    # --- for Place

    def grow(self, place: "Place", nbytes: int) -> None:
        """Hold more bytes for a request that is in."""
        with self._lock:
            if not place.is_in:
                return  # the request has ended, and a thread still works on its body
            now = self._clock()
            others = self.held.nbytes - place.nbytes
            if others and nbytes > 0:
                self._check("nbytes", nbytes, place.share, "bytes are held", "max_held_bytes", place.caller, now)
            self._count(place.share, 0, 0, nbytes)
            place.nbytes += nbytes

    def take_rows(self, place: "Place", rows: int) -> None:
        """Hold the rows of a request that is in."""
        with self._lock:
            now = self._clock()
            share = place.share
            counted = rows if rows <= self.bounds.rows else self.bounds.rows // 2
            share.mean_rows += 0.05 * (rows - share.mean_rows)
            limit = self._limit("rows", share) if place.came_back else self._rows_for_newcomers(share, now)
            if self.held.rows and share.held.rows + counted > limit:
                share.is_full = True
                raise self._refused(
                    share,
                    place.caller,
                    counted,
                    f"{rows} tokens came and {self.held.rows} wait or run, "
                    f"the limit max_queue_tokens is {self.bounds.rows}",
                    now,
                )
            self._speed.passes(now, busy=self.held.rows > 0)
            self._count(share, 0, counted, 0)
            place.rows += counted

    def leave(self, place: "Place") -> None:
        """Give back all that a request held."""
        with self._lock:
            if not place.is_in:
                return
            place.is_in = False
            self._speed.passes(self._clock(), busy=self.held.rows > 0)
            if place.answered:
                self._speed.done(place.rows)
            self._count(place.share, -1, -place.rows, -place.nbytes)
        self._left.set()

    # --- the rules

    def _share(self, caller: Caller) -> _Share:
        if caller.share not in self._shares:
            self._shares[caller.share] = _Share(WaitingRoom(self._period))
        return self._shares[caller.share]

    def _speed_for_each(self) -> float:
        """Rows a second for each share that has some."""
        return self._speed.rows_per_second / max(1, sum(1 for one in self._shares.values() if one.held.rows))

    def _count(self, share: _Share, requests: int, rows: int, nbytes: int) -> None:
        self.held.add(requests, rows, nbytes)
        share.held.add(requests, rows, nbytes)

    def _limit(self, what: str, share: _Share) -> float:
        """How much of something a share may hold now."""
        bound: int = getattr(self.bounds, what)
        mine: int = getattr(share.held, what)
        others: int = getattr(self.held, what) - mine
        if not self._fair:
            return bound
        # as much as is left free: mine <= bound - others - mine; one that holds nothing yet may have all of it
        return bound - others if mine == 0 else (bound - others) / 2

    def _rows_for_newcomers(self, share: _Share, now: float) -> float:
        """The rows that a share may hold with those who come for the first time."""
        limit, speed = self._limit("rows", share), self._speed_for_each()
        return limit - min(0.9 * limit, self.bounds.rows // RETURNING_PART + share.room.kept(speed, now))

    def _check(self, what: str, more: int, share: _Share, words: str, name: str, caller: Caller, now: float) -> None:
        held: int = getattr(self.held, what)
        if held and getattr(share.held, what) + more > self._limit(what, share):
            bound = getattr(self.bounds, what)
            raise self._refused(share, caller, share.mean_rows, f"{held} {words}, the limit {name} is {bound}", now)

    def _refused(self, share: _Share, caller: Caller, rows: float, detail: str, now: float) -> QueueFull:
        speed = self._speed_for_each()
        over = share.held.rows + rows - self._limit("rows", share)
        seconds = share.room.send_away(caller, max(1.0, rows), max(0.0, over) / speed, speed, now)
        return QueueFull(detail, retry_after=seconds)


class Place:
    """What one request holds, from its head until its answer is out. `leave` must be called, and may be again."""

    def __init__(self, admission: Admission, share: _Share, caller: Caller, nbytes: int, *, came_back: bool) -> None:
        self.share, self.caller, self.came_back = share, caller, came_back
        self.rows, self.nbytes = 0, nbytes
        self.is_in, self.answered = True, False
        self._admission = admission
        self._body_bytes, self._unpacked_bytes = nbytes, 0

    def body_grows(self, total: int) -> None:
        """The body has so many bytes by now. Raises QueueFull."""
        if total > self._body_bytes:
            self._admission.grow(self, total - self._body_bytes)
            self._body_bytes = total

    def unpacks(self, total: int) -> None:
        """So many bytes have been unpacked of it, and are held beside it; from any thread. Raises QueueFull."""
        self._admission.grow(self, total - self._unpacked_bytes)
        self._unpacked_bytes = total

    def take(self, rows: int, answer_bytes: int) -> None:
        """Hold the rows of the call and the bytes of its answer. Raises QueueFull."""
        self._admission.take_rows(self, rows)
        self._admission.grow(self, answer_bytes)

    def leave(self) -> None:
        """Give everything back."""
        self._admission.leave(self)

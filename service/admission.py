"""The bounds of the service: how many requests, rows and bytes it holds at a time, waiting and running.

Everything is counted at the door, before it costs anything, and given back when the request ends, however it ends.
"""

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from service.errors import Draining, QueueFull
from service.speed import Speed
from service.waiting_room import Caller, WaitingRoom, period_of

RETURNING_PART = 16  # one such part of the queue is for those alone who are known to come back as they were told


@dataclass(frozen=True)
class Bounds:
    """Of all that is admitted: requests, rows of their sequences, bytes of their bodies and answers."""

    requests: int
    rows: int
    nbytes: int


UNBOUNDED = Bounds(sys.maxsize, sys.maxsize, sys.maxsize)


@dataclass
class Held:
    """What is admitted of one share, or of all.

    `load` is what takes room in the queue, in rows: a request's rows, or its part of the bound on requests where that
    is more. So one number tells how full the queue is, and how fast it empties, whichever of the two bounds is nearer.
    """

    requests: int = 0
    rows: int = 0
    nbytes: int = 0
    load: int = 0

    def add(self, requests: int, rows: int, nbytes: int, load: int) -> None:
        """Count something in; negative numbers count it out."""
        self.requests += requests
        self.rows += rows
        self.nbytes += nbytes
        self.load += load


@dataclass
class _Share:
    room: WaitingRoom
    held: Held = field(default_factory=Held)
    is_full: bool = False
    mean_load: float = 64.0


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
            share.room.arrives(share.mean_load, now)
            self._speed.passes(now, busy=self.held.load > 0)
            came_back = share.room.welcome(caller, now) or share.room.is_open(now)
            self._check_bytes(body_bytes, share, caller, now)
            if came_back:
                limit = self._limit("load", share)
            else:
                limit = self._load_of_newcomers(share, now)
                if share.is_full and share.held.load <= limit - self._part_of_known:
                    share.is_full = False
            over = share.held.load + self._least_load > limit
            if self.held.load and (over or (share.is_full and not came_back)):
                raise self._refused(share, caller, share.mean_load, self._fullness(), now)
            self._count(share, 1, 0, body_bytes, self._least_load)
            return Place(self, share, caller, body_bytes, self._least_load, came_back=came_back)

    # --- for Place

    def grow(self, place: "Place", nbytes: int) -> None:
        """Hold more bytes for a request that is in."""
        with self._lock:
            if not place.is_in:
                return  # the request has ended, and a thread still works on its body
            now = self._clock()
            others = self.held.nbytes - place.nbytes
            if others and nbytes > 0:
                self._check_bytes(nbytes, place.share, place.caller, now)
            self._count(place.share, 0, 0, nbytes, 0)
            place.nbytes += nbytes

    def take_rows(self, place: "Place", rows: int) -> None:
        """Hold the rows of a request that is in."""
        with self._lock:
            now = self._clock()
            share = place.share
            load = max(rows if rows <= self.bounds.rows else self.bounds.rows // 2, place.load)
            share.mean_load += 0.05 * (load - share.mean_load)
            limit = self._limit("load", share) if place.came_back else self._load_of_newcomers(share, now)
            others = self.held.load - place.load
            if others and share.held.load - place.load + load > limit:
                share.is_full = True
                raise self._refused(share, place.caller, load, f"{rows} tokens came; {self._fullness()}", now)
            self._speed.passes(now, busy=self.held.load > 0)
            self._count(share, 0, rows, 0, load - place.load)
            place.rows, place.load = rows, load

    def leave(self, place: "Place") -> None:
        """Give back all that a request held."""
        with self._lock:
            if not place.is_in:
                return
            place.is_in = False
            self._speed.passes(self._clock(), busy=self.held.load > 0)
            if place.answered:
                self._speed.done(place.load)
            self._count(place.share, -1, -place.rows, -place.nbytes, -place.load)
        self._left.set()

    # --- the rules

    def _share(self, caller: Caller) -> _Share:
        if caller.share not in self._shares:
            self._shares[caller.share] = _Share(WaitingRoom(self._period))
        return self._shares[caller.share]

    def _speed_for_each(self) -> float:
        """Rows a second for each share that has some."""
        return self._speed.rows_per_second / max(1, sum(1 for one in self._shares.values() if one.held.load))

    @property
    def _least_load(self) -> int:
        """What a request takes of the queue by being one."""
        return max(1, self.bounds.rows // self.bounds.requests)

    @property
    def _part_of_known(self) -> int:
        """Load that newcomers leave free; none where a request is a large part of the bound."""
        rows, requests = self.bounds.rows // RETURNING_PART, self.bounds.requests // RETURNING_PART
        return min(rows, requests * self._least_load)

    def _fullness(self) -> str:
        """What is held of the bound that is nearest."""
        requests, rows = self.bounds.requests, self.bounds.rows
        if self.held.requests / requests > self.held.rows / rows:
            return f"{self.held.requests} requests are admitted, the limit max_queue_requests is {requests}"
        return f"{self.held.rows} tokens wait or run, the limit max_queue_tokens is {rows}"

    def _count(self, share: _Share, requests: int, rows: int, nbytes: int, load: int) -> None:
        self.held.add(requests, rows, nbytes, load)
        share.held.add(requests, rows, nbytes, load)

    def _limit(self, what: Literal["load", "nbytes"], share: _Share) -> float:
        """How much of something a share may hold now."""
        bound = self.bounds.rows if what == "load" else self.bounds.nbytes
        mine: int = getattr(share.held, what)
        others: int = getattr(self.held, what) - mine
        if not self._fair:
            return bound
        # as much as is left free: mine <= bound - others - mine; one that holds nothing yet may have all of it
        return bound - others if mine == 0 else (bound - others) / 2

    def _load_of_newcomers(self, share: _Share, now: float) -> float:
        """The load that a share may hold with those who come for the first time."""
        limit, speed = self._limit("load", share), self._speed_for_each()
        return limit - min(0.9 * limit, self._part_of_known + share.room.kept(speed, now))

    def _check_bytes(self, more: int, share: _Share, caller: Caller, now: float) -> None:
        if self.held.nbytes and share.held.nbytes + more > self._limit("nbytes", share):
            full = (
                f"{more} bytes are needed and {self.held.nbytes} are held, "
                f"the limit max_held_bytes is {self.bounds.nbytes}"
            )
            raise self._refused(share, caller, share.mean_load, full, now)

    def _refused(self, share: _Share, caller: Caller, load: float, detail: str, now: float) -> QueueFull:
        speed = self._speed_for_each()
        over = share.held.load + load - self._limit("load", share)
        seconds = share.room.send_away(caller, max(1.0, load), max(0.0, over) / speed, speed, now)
        return QueueFull(detail, retry_after=seconds)


class Place:
    """What one request holds, from its head until its answer is out. `leave` must be called, and may be again."""

    def __init__(
        self, admission: Admission, share: _Share, caller: Caller, nbytes: int, load: int, *, came_back: bool
    ) -> None:
        self.share, self.caller, self.came_back = share, caller, came_back
        self.rows, self.nbytes, self.load = 0, nbytes, load
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

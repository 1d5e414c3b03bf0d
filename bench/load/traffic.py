"""Simulated callers in closed and open loops, and what each of them saw.

Closed: so many callers, each of whom asks again as soon as it is answered. Open: callers come at a rate, whether or not
others are answered, and their waiting counts from the moment when they meant to come.
"""

import asyncio
import itertools
import math
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from bench.load.answers import Answers
from bench.load.connection import Reply
from bench.load.pool import Pool
from bench.load.requests import Request

ANSWER_SECONDS = 300.0
REFUSED_PAUSE_SECONDS = 0.05  # of a caller in a closed loop, who would ask nothing but refusals otherwise


@dataclass(slots=True)
class Attempt:
    """One time that a caller asked. Times are of time.monotonic()."""

    sent: float
    ended: float
    status: int
    fault: str
    queue_ms: float
    compute_ms: float
    retry_after: str | None
    right: bool | None  # whether the answer is the one that was given alone; None where it was not compared


@dataclass(slots=True)
class Visit:
    """A caller with one request, from the moment it meant to come; `waits` if it comes again as Retry-After says."""

    request: Request
    due: float
    waits: bool = False
    attempts: list[Attempt] = field(default_factory=list)

    @property
    def last(self) -> Attempt | None:
        """What it saw last."""
        return self.attempts[-1] if self.attempts else None

    @property
    def is_answered(self) -> bool:
        """Whether it got its answer in the end."""
        return self.last is not None and self.last.status == 200


@dataclass(slots=True)
class Callers:
    """Whoever asks through one pool: with which headers, and whether each has an X-Request-Id of its own."""

    pool: Pool
    answers: Answers | None = None
    headers: bytes = b""
    own_ids: bool = False
    answer_seconds: float = ANSWER_SECONDS
    again: bool = True  # whether a request is sent once more where its connection had been closed before
    sent: int = 0
    _name: str = field(default_factory=lambda: secrets.token_hex(4))

    async def visit(self, request: Request, due: float) -> Visit:
        """Ask once."""
        visit = Visit(request, due)
        await self.go_on(visit)
        return visit

    async def go_on(self, visit: Visit) -> None:
        """Ask; where the answer is 429 and this caller waits, ask once more when Retry-After says."""
        headers = self.headers
        if self.own_ids:
            headers += f"X-Request-Id: {self._name}-{self.sent}\r\n".encode()
        wire = visit.request.wire(headers)
        attempt = await self._attempt(visit, wire)
        if visit.waits and attempt.status == 429 and (seconds := seconds_to_wait(attempt)) is not None:
            await asyncio.sleep(seconds)
            await self._attempt(visit, wire)

    async def _attempt(self, visit: Visit, wire: bytes) -> Attempt:
        sent = time.monotonic()
        self.sent += 1
        reply = await self.pool.exchange(wire, self.answer_seconds, again=self.again)
        attempt = self._noted(visit.request, sent, reply)
        visit.attempts.append(attempt)
        return attempt

    def _noted(self, request: Request, sent: float, reply: Reply) -> Attempt:
        queue_ms = compute_ms = math.nan
        retry_after = right = None
        if reply.status == 200:
            queue_ms, compute_ms = reply.times_ms()
            right = None if self.answers is None else self.answers.check(request, reply)
        elif reply.status:
            retry_after = reply.header("retry-after")
        return Attempt(sent, reply.ended, reply.status, reply.fault, queue_ms, compute_ms, retry_after, right)


def seconds_to_wait(attempt: Attempt) -> float | None:
    """What Retry-After says, in seconds; None where it says nothing of use."""
    return float(attempt.retry_after) if attempt.retry_after and attempt.retry_after.isdecimal() else None


async def closed_loop(
    callers: Callers, requests: Sequence[Request], clients: int, until: Callable[[], bool]
) -> list[Visit]:
    """So many clients, each with one request at a time, until it is time to stop. The requests take turns."""
    turns, visits = itertools.cycle(requests), list[Visit]()

    async def client() -> None:
        while not until():
            visit = await callers.visit(next(turns), time.monotonic())
            visits.append(visit)
            if not visit.is_answered:
                await asyncio.sleep(REFUSED_PAUSE_SECONDS)

    await asyncio.gather(*(client() for _ in range(clients)))
    return visits


async def open_loop(
    callers: Callers,
    requests: Sequence[Request],
    rate: float,
    seconds: float,
    *,
    afterwards_seconds: float,
    waiting: float = 0.0,
    seed: int = 6,
) -> list[Visit]:
    """Callers who come at random moments, `rate` a second; after the last, wait that long for all to be through.

    Of those who are refused a share of `waiting` waits as Retry-After says. Who is not through by the end stays so.
    """
    loop, turns = asyncio.get_running_loop(), itertools.cycle(requests)
    visits: list[Visit] = []
    tasks: set[asyncio.Task[None]] = set()
    failed: list[BaseException] = []

    def finished(task: asyncio.Task[None]) -> None:
        tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            failed.append(error)

    random, began = np.random.default_rng([seed, 1]), time.monotonic()
    for after in arrivals(rate, seconds, seed):
        due = began + after
        if (early := due - time.monotonic()) > 0:
            await asyncio.sleep(early)
        visit = Visit(next(turns), due, waits=bool(random.random() < waiting))
        visits.append(visit)
        task = loop.create_task(callers.go_on(visit))
        tasks.add(task)
        task.add_done_callback(finished)
    if tasks:
        _, late = await asyncio.wait(tuple(tasks), timeout=afterwards_seconds)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
    if failed:
        raise failed[0]
    return visits


def arrivals(rate: float, seconds: float, seed: int) -> Iterable[float]:
    """When callers of a Poisson process come; the same ones each time."""
    gaps = np.random.default_rng(seed).exponential(1 / rate, int(rate * seconds * 1.5) + 100)
    moments = np.cumsum(gaps)
    return [float(one) for one in moments[moments < seconds]]


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the server completes when it always has something to do."""

    requests_per_second: float
    tokens_per_second: float
    batch_ms: float  # median time of the batches that the answers ran in
    cost: "Cost"

    def told(self) -> str:
        """For the report."""
        return f"{self.requests_per_second:.0f} answers/s, {self.tokens_per_second:.0f} tokens/s"


@dataclass(frozen=True, slots=True)
class Cost:
    """What the generator took of the machine."""

    cpu_seconds: float
    seconds: float
    requests: int

    def told(self) -> str:
        """For the report."""
        each = 1e6 * self.cpu_seconds / max(self.requests, 1)
        return f"{each:.0f} µs of CPU a request, {self.cpu_seconds / self.seconds:.0%} of a core"


class Meter:
    """Counts what the generator itself takes from here on."""

    def __init__(self, callers: Callers) -> None:
        self._callers, self._sent = callers, callers.sent
        self._cpu, self._began = time.process_time(), time.perf_counter()

    def read(self) -> Cost:
        """What it took up to now."""
        seconds = time.perf_counter() - self._began
        return Cost(time.process_time() - self._cpu, seconds, self._callers.sent - self._sent)


async def capacity(callers: Callers, requests: Sequence[Request], clients: int, seconds: float) -> Capacity:
    """Measure it in a closed loop; its first fifth does not count."""
    begins, ends = time.monotonic() + seconds / 5, time.monotonic() + seconds
    meter = Meter(callers)
    visits = await closed_loop(callers, requests, clients, lambda: time.monotonic() >= ends)
    cost = meter.read()
    done = answered(visits, begins, ends)
    span = ends - begins
    return Capacity(
        len(done) / span,
        sum(visit.request.tokens for visit, _ in done) / span,
        percentile([attempt.compute_ms for _, attempt in done], 50),
        cost,
    )


def answered(visits: Iterable[Visit], begins: float = -math.inf, ends: float = math.inf) -> list[tuple[Visit, Attempt]]:
    """The visits whose answer came in that time, with the attempt that got it."""
    return [
        (visit, attempt)
        for visit in visits
        for attempt in visit.attempts
        if attempt.status == 200 and begins <= attempt.ended < ends
    ]


def percentile(values: Sequence[float], q: float) -> float:
    """The smallest value that q percent of them do not exceed; NaN of nothing."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(q / 100 * len(ordered)) - 1)] if ordered else math.nan

"""The servers of a contest, one after the other, under one load."""

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from statistics import median

from bench.load.loop import run
from bench.load.requests import Request
from bench.load.traffic import Cost
from bench.peers.figures import Figures
from bench.peers.loads import C1, C32, LOADS, OURS, P50, REQUESTS
from bench.peers.measure import Measured, ask_each, measure
from bench.peers.memory import Memory, Peak
from bench.peers.processes import cpu_seconds, hold
from bench.peers.prompts import Want, prompts
from bench.peers.quiet import Quiet

IN_TURN = 8  # requests of a single client to one server before the next


@dataclass(frozen=True)
class Contestant:
    """A server that is up: its requests by what they want."""

    name: str
    port: int
    pid: int
    requests: dict[Want, list[Request]]
    polls: bool = False


@dataclass
class Outcome:
    """What came of one model."""

    figures: Figures = field(default_factory=Figures)
    notes: list[str] = field(default_factory=list)
    quiet: Quiet = field(default_factory=Quiet)
    memory: Memory | None = None
    start_seconds: float = 0.0


class Turns:
    """The servers, one after the other, under one load."""

    def __init__(self, contestants: list[Contestant], outcome: Outcome, seconds: float) -> None:
        self._contestants, self._outcome, self._seconds = contestants, outcome, seconds
        self._idle: list[float] = []
        self._costs: list[Cost] = []
        for one in contestants:
            if one.polls:
                hold(one.pid, True)

    def take(self, load: str) -> None:
        """Measure each server that knows such requests under a closed loop."""
        want, clients = LOADS[load]
        figures = self._outcome.figures
        for one in self._contestants:
            if want not in one.requests:
                continue
            with self._watched(one, load):
                found = self._outcome.quiet.measured(partial(self._ask, one.port, one.requests[want], clients))
            figures.add(one.name, load, found.tokens_per_second)
            if load == C32:
                figures.add(one.name, REQUESTS, found.requests_per_second)
            if found.refused:
                self._outcome.notes.append(f"{one.name}, {load}: {found.refused} requests were refused")
            self._costs.append(found.cost)
            told = f"  {load}, {one.name}: {found.tokens_per_second:.0f} tokens/s, p50 {found.p50_ms:.0f} ms"
            print(told, file=sys.stderr, flush=True)

    def take_one_by_one(self, beside: Mapping[str, Callable[[slice], list[float]]]) -> None:
        """One request at a time, to each server and to what runs `beside` them, a few requests each in turn.

        So what the machine gives, which changes from one second to the next, falls on all alike.
        """
        want, _ = LOADS[C1]
        count, quiet = len(prompts()), self._outcome.quiet
        seconds: dict[str, list[float]] = defaultdict(list)
        for first in range(0, count, IN_TURN):
            part = slice(first, min(count, first + IN_TURN))
            for row, work in beside.items():
                seconds[row] += quiet.measured(partial(work, part))
            for one in self._contestants:
                if want in one.requests:
                    with self._watched(one, C1):
                        found, cost = quiet.measured(partial(self._ask_each, one.port, one.requests[want][part]))
                    seconds[one.name] += found
                    self._costs.append(cost)
        for row, of_row in seconds.items():
            speed, p50 = sum(map(len, prompts())) / sum(of_row), 1000 * median(of_row)
            self._outcome.figures.add(row, C1, speed)
            self._outcome.figures.add(row, P50, p50)
            print(f"  {C1}, {row}: {speed:.0f} tokens/s, p50 {p50:.0f} ms", file=sys.stderr, flush=True)

    def _ask_each(self, port: int, requests: list[Request]) -> tuple[list[float], Cost]:
        return run(ask_each(port, requests))

    def _ask(self, port: int, requests: list[Request], clients: int) -> Measured:
        return run(measure(port, requests, clients, self._seconds))

    def told(self) -> list[str]:
        """What the generator cost, and the idle servers."""
        each = [1e6 * cost.cpu_seconds / max(1, cost.requests) for cost in self._costs]
        share = [cost.cpu_seconds / cost.seconds for cost in self._costs]
        shares = self._outcome.quiet.shares
        return [
            f"what else ran took {median(shares):.1%} of the machine during a measurement (most: {max(shares):.0%})",
            f"the load generator took {median(each):.0f} µs of CPU a request (most: {max(each):.0f}), "
            f"{median(share):.1%} of a core (most: {max(share):.1%})",
            f"all idle servers together took {median(self._idle):.1%} of a core (most: {max(self._idle):.1%})",
        ]

    @contextmanager
    def _watched(self, busy: Contestant, load: str) -> Iterator[None]:
        """Let this one go on, and note the processor time of the others, and our own server's memory at its peak."""
        if busy.polls:
            hold(busy.pid, False)
        others = [one.pid for one in self._contestants if one is not busy]
        before, began = sum(map(cpu_seconds, others)), time.monotonic()
        memory = self._outcome.memory
        if busy.name == OURS and load == C32 and memory is not None:
            with Peak(busy.pid) as peak:
                yield
            memory.peak = max(memory.peak, peak.nbytes)
        else:
            yield
        self._idle.append((sum(map(cpu_seconds, others)) - before) / (time.monotonic() - began))
        if busy.polls:
            hold(busy.pid, True)

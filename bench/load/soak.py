"""Hours in small: all kinds of traffic below the capacity, for minutes; nothing may be left over or grow."""

import asyncio
import itertools
import math
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from bench.load.answers import Answers
from bench.load.disturbance import check_callers
from bench.load.disturbers import Disturbers, Shares
from bench.load.loop import run
from bench.load.metrics import ADMISSION, TASKS, read_metrics, wait_for_at_most
from bench.load.metrics import told as metrics_told
from bench.load.mixed import mixed_requests
from bench.load.pool import Pool
from bench.load.probes import probing
from bench.load.probes import told as probes_told
from bench.load.process import MEBIBYTE, Sampler, resident_bytes, settled_files
from bench.load.report import Outcome
from bench.load.requests import Request, token_requests
from bench.load.traffic import Callers, Meter, Visit, answered, arrivals, capacity, percentile
from tests.server import Server


@dataclass(frozen=True, slots=True)
class Soak:
    """How long, how much of the capacity, and what must hold."""

    seconds: float = 600.0
    load: float = 0.7  # of the capacity
    capacity_seconds: float = 15.0
    clients: int = 32
    shares: Shares = field(default_factory=lambda: Shares(0.1, 0.05, 0.01))
    first_seconds: float = 60.0  # for caches and pools to fill
    window_seconds: float = 60.0  # memory is the median of so long a time, since answers come and go
    memory_growth: float = 0.02
    hang_seconds: float = 60.0
    calm_seconds: float = 10.0
    seed: int = 10

    @property
    def first(self) -> float:
        """When memory is first looked at: after a minute, in short runs after a fourth."""
        return min(self.first_seconds, self.seconds / 4)

    @property
    def window(self) -> float:
        """Of a long run a minute, of a short one an eighth."""
        return min(self.window_seconds, self.seconds / 8)


def soak(server: Server, plan: Soak) -> Outcome:
    """Measure the capacity of the mixture, then keep the load up, on a server that does nothing else."""
    with probing(server.port, 1.0) as probes:
        outcome, begins = run(_drive(server, plan))
    outcome.numbers["probes, one a second"] = probes_told(probes.between(begins, begins + plan.seconds))
    return outcome


async def _drive(server: Server, plan: Soak) -> tuple[Outcome, float]:
    outcome = Outcome(f"Soak for {plan.seconds:g} s at {plan.load:.0%} of the capacity")
    pid = server.process.pid
    requests = [*mixed_requests(), *token_requests(16)]
    pool, answers = Pool(server.port), Answers()
    await answers.gather(pool, requests)
    tasks = (await read_metrics(pool)).get(TASKS)
    await pool.close()
    files = await settled_files(pid, None, plan.calm_seconds)

    callers = Callers(pool, answers, answer_seconds=plan.hang_seconds)
    disturbers = Disturbers(server.port, pool, requests, plan.shares, plan.hang_seconds)
    most = await capacity(callers, requests, plan.clients, plan.capacity_seconds)
    assert most.requests_per_second, "nothing was answered while the capacity was measured"
    meter = Meter(callers)
    begins = time.monotonic()
    async with Sampler(pid, 1.0 if plan.seconds > 60 else 0.1) as memory:
        visits = await _traffic(plan, plan.load * most.requests_per_second, callers, disturbers, requests)
    cost, loaded = meter.read(), time.monotonic() - begins
    calm, left = await wait_for_at_most(pool, dict.fromkeys(ADMISSION, 0.0), plan.calm_seconds)
    tasks_gone, tasks_left = await wait_for_at_most(
        pool, {TASKS: math.nan if tasks is None else tasks}, plan.calm_seconds
    )
    await pool.close()
    files_left = await settled_files(pid, files, plan.calm_seconds)

    check_callers(outcome, visits, answers, disturbers)
    _check_memory(outcome, plan, memory, begins)
    outcome.check("admission counters afterwards", calm, metrics_told(left), "all exactly 0")
    outcome.check("file descriptors afterwards", files_left <= files, files_left, f"<= {files}, as before")
    outcome.check("asyncio tasks afterwards", tasks_gone, metrics_told(tasks_left), f"<= {tasks}, as before")
    taken = [1000 * (attempt.ended - visit.due) for visit, attempt in answered(visits)]
    outcome.numbers |= {
        "capacity": most.told(),
        "asked properly": f"{len(visits)}, {len(visits) / plan.seconds:.0f}/s; all through after {loaded:.0f} s",
        "answered, ms since they came": f"p50 {percentile(taken, 50):.0f}, p99 {percentile(taken, 99):.0f}",
        "resident memory afterwards": f"{resident_bytes(pid) / MEBIBYTE:.0f} MiB",
        "generator": cost.told(),
    }
    return outcome, begins


async def _traffic(
    plan: Soak, rate: float, callers: Callers, disturbers: Disturbers, requests: Sequence[Request]
) -> list[Visit]:
    """Callers of all kinds who come at random moments; returns when all are through."""
    random = np.random.default_rng(plan.seed)
    visits: list[Visit] = []
    turns = itertools.cycle(random.permutation(len(requests)))
    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for after in arrivals(rate, plan.seconds, plan.seed):
            if (early := began + after - time.monotonic()) > 0:
                await asyncio.sleep(early)
            wrong = disturbers.drawn(random)
            if wrong is None:
                visit = Visit(requests[next(turns)], began + after)
                visits.append(visit)
                wrong = callers.go_on(visit)
            group.create_task(_awaited(wrong))
    return visits


async def _awaited(work: Awaitable[None]) -> None:
    await work


def _check_memory(outcome: Outcome, plan: Soak, memory: Sampler, begins: float) -> None:
    def level(at: float) -> float:
        return median(memory.between(begins + at, begins + at + plan.window) or [0]) / MEBIBYTE

    starts = np.arange(plan.first, plan.seconds - plan.window + 0.01, plan.window)
    levels = [level(at) for at in starts]
    first, last = levels[0], level(plan.seconds - plan.window)
    growth = last / first - 1 if first else math.inf
    outcome.check(
        f"resident memory after the first {plan.first:g} s",
        growth < plan.memory_growth,
        f"{growth:+.1%}: {first:.0f} MiB then, {last:.0f} at the end",
        f"< {plan.memory_growth:.0%}",
    )
    outcome.numbers[f"resident memory, medians of {plan.window:g} s, MiB"] = " ".join(f"{one:.0f}" for one in levels)

"""Three times as many callers as can be served: who is admitted is served as fast as ever, the others are told when."""

import asyncio
import json
import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.load.answers import Answers
from bench.load.loop import run
from bench.load.pool import Pool
from bench.load.probes import Probes, probing
from bench.load.probes import told as probes_told
from bench.load.process import MEBIBYTE, Sampler, cpu_seconds
from bench.load.report import Outcome
from bench.load.requests import MEDIAN_TOKENS, get, token_requests
from bench.load.traffic import (
    Attempt,
    Callers,
    Capacity,
    Meter,
    Visit,
    answered,
    capacity,
    open_loop,
    percentile,
    seconds_to_wait,
)
from tests.server import Server

PROBES_OF_A_PERCENTILE = 100


@dataclass(frozen=True, slots=True)
class Overload:
    """How long and how much, and what must hold. The bounds are those of the issue; short runs set wider ones."""

    seconds: float = 60.0
    capacity_seconds: float = 15.0
    clients: int = 32
    factor: float = 3.0
    median_tokens: float = MEDIAN_TOKENS  # of a request
    waiting: float = 1.0  # of those who are refused; the others do not come again
    own_ids: bool = True  # each caller has an X-Request-Id, which it keeps when it comes again
    of_the_lesser: bool = False  # capacity, before and after: for short runs on a machine that others use too
    afterwards_seconds: float = 180.0  # for callers who were told to come again after the end
    memory_settles_seconds: float = 30.0  # by then the queue is full
    least_completed: float = 0.9  # of the capacity
    least_readmitted: float = 0.9
    memory_growth: float = 0.05
    memory_allowance_bytes: int = 16 * MEBIBYTE
    probe_p99_ms: float = 100.0
    probe_longest_ms: float = 100.0


@dataclass(slots=True)
class _Seen:
    capacity: Capacity
    capacity_afterwards: Capacity
    limits: dict[str, Any]
    visits: list[Visit]
    begins: float
    memory: Sampler
    answers: Answers
    cost: str
    server_cores: float


def overload(server: Server, plan: Overload) -> Outcome:
    """Measure the capacity, then the overload, on a server that does nothing else."""
    outcome = Outcome(f"Overload at {plan.factor:g}x for {plan.seconds:g} s, callers {_ids(plan)} X-Request-Id")
    with probing(server.port) as probes:
        seen = run(_drive(server, plan))
    _check_throughput(outcome, plan, seen)
    _check_refusals(outcome, seen)
    _check_returning(outcome, plan, seen)
    _check_waits(outcome, seen)
    _check_memory(outcome, plan, seen)
    _check_probes(outcome, plan, seen, probes)
    outcome.check("answers equal those given alone", not seen.answers.tally.wrong, seen.answers.tally.told(), "0 wrong")
    return outcome


def _ids(plan: Overload) -> str:
    return "with an" if plan.own_ids else "without"


async def _drive(server: Server, plan: Overload) -> _Seen:
    requests, pool, answers = token_requests(median=plan.median_tokens), Pool(server.port), Answers()
    limits = json.loads((await pool.exchange(get("/model").wire(), 30.0)).body)["limits"]
    await answers.gather(pool, requests)
    callers = Callers(pool, answers, own_ids=plan.own_ids)
    most = await capacity(callers, requests, plan.clients, plan.capacity_seconds)
    assert most.requests_per_second, "nothing was answered while the capacity was measured"
    meter, cpu = Meter(callers), cpu_seconds(server.process.pid)
    async with Sampler(server.process.pid) as memory:
        begins = time.monotonic()
        used = asyncio.create_task(_read_after(plan.seconds, meter, server.process.pid))
        visits = await open_loop(
            callers,
            requests,
            plan.factor * most.requests_per_second,
            plan.seconds,
            afterwards_seconds=plan.afterwards_seconds,
            waiting=plan.waiting,
        )
        cost, cpu_then = await used
    again = await capacity(callers, requests, plan.clients, plan.capacity_seconds)
    await pool.close()
    return _Seen(most, again, limits, visits, begins, memory, answers, cost, (cpu_then - cpu) / plan.seconds)


async def _read_after(seconds: float, meter: Meter, pid: int) -> tuple[str, float]:
    await asyncio.sleep(seconds)
    return meter.read().told(), cpu_seconds(pid)


def _check_throughput(outcome: Outcome, plan: Overload, seen: _Seen) -> None:
    done = answered(seen.visits, seen.begins, seen.begins + plan.seconds)
    rate, most = len(done) / plan.seconds, seen.capacity.requests_per_second
    if plan.of_the_lesser:
        most = min(most, seen.capacity_afterwards.requests_per_second)
    tokens = sum(visit.request.tokens for visit, _ in done) / plan.seconds
    outcome.numbers |= {
        "capacity": f"{seen.capacity.told()}; batches of {seen.capacity.batch_ms:.0f} ms",
        "capacity afterwards": seen.capacity_afterwards.told(),
        "callers": f"{len(seen.visits)}, {len(seen.visits) / plan.seconds:.0f}/s",
        "answered meanwhile": f"{rate:.0f}/s, {tokens:.0f} tokens/s",
        "generator, capacity": seen.capacity.cost.told(),
        "generator, overload": seen.cost,
        "server, overload": f"{seen.server_cores:.0%} of a core",
    }
    share = rate / most
    outcome.check(
        "completed answers, of the capacity",
        share >= plan.least_completed,
        f"{share:.2f}",
        f">= {plan.least_completed}",
    )


def _check_refusals(outcome: Outcome, seen: _Seen) -> None:
    attempts = [attempt for visit in seen.visits for attempt in visit.attempts]
    refused = [attempt for attempt in attempts if attempt.status != 200]
    kinds = Counter(attempt.fault or str(attempt.status) for attempt in refused)
    kinds["never answered"] += sum(not visit.attempts for visit in seen.visits)
    told = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()) if count) or "no refusals"
    unlike = [one for one in refused if one.status != 429 or seconds_to_wait(one) is None]
    right = bool(refused) and not unlike and not kinds["never answered"]
    outcome.check("every refusal is a 429 with Retry-After", right, told, "429 alone, and some")


def _check_returning(outcome: Outcome, plan: Overload, seen: _Seen) -> None:
    told = [one for one in seen.visits if one.waits and one.attempts and seconds_to_wait(one.attempts[0]) is not None]
    back = [visit for visit in told if len(visit.attempts) > 1]
    admitted = [visit for visit in back if visit.attempts[1].status == 200]
    ends = seen.begins + plan.seconds
    early, late = ([one for one in back if (one.attempts[1].sent >= ends) is after] for after in (False, True))
    waits = [seconds_to_wait(visit.attempts[0]) or 0.0 for visit in told]
    share = len(admitted) / len(told) if told else math.nan
    outcome.check(
        "of those who wait as Retry-After says, answered at the next try",
        share >= plan.least_readmitted,
        f"{share:.3f}: {len(admitted)} of {len(told)} who were told; {len(told) - len(back)} of them had no answer to "
        f"their next try {plan.afterwards_seconds:g} s after the load"
        if told
        else "nobody was told",
        f">= {plan.least_readmitted}",
    )
    if told:
        outcome.numbers["Retry-After"] = (
            f"p50 {percentile(waits, 50):g}, p99 {percentile(waits, 99):g}, longest {max(waits):g} s"
        )
        outcome.numbers["of those who came again during the load, answered"] = _share(early)
        outcome.numbers["of those who came again after it, answered"] = _share(late)


def _share(visits: Sequence[Visit]) -> str:
    if not visits:
        return "nobody came"
    return f"{sum(visit.attempts[1].status == 200 for visit in visits) / len(visits):.3f} of {len(visits)}"


def _check_waits(outcome: Outcome, seen: _Seen) -> None:
    queued: list[float] = [attempt.queue_ms for _, attempt in answered(seen.visits)]
    first: list[tuple[Visit, Attempt]] = [(v, a) for v, a in answered(seen.visits) if a is v.attempts[0]]
    taken = [1000 * (attempt.ended - visit.due) for visit, attempt in first]
    p50, p99, longest = (percentile(queued, q) for q in (50, 99, 100))
    outcome.numbers["wait of the admitted, queue_ms"] = f"p50 {p50:.0f}, p99 {p99:.0f}, longest {longest:.0f}"
    outcome.numbers["answered at the first try, ms since they came"] = (
        f"p50 {percentile(taken, 50):.0f}, p99 {percentile(taken, 99):.0f}"
    )
    bounds = {}
    if "max_queue_tokens" in seen.limits:
        bounds["max_queue_tokens"] = seen.limits["max_queue_tokens"] / seen.capacity.tokens_per_second
    if "max_queue_requests" in seen.limits:
        bounds["max_queue_requests"] = seen.limits["max_queue_requests"] / seen.capacity.requests_per_second
    least = min(bounds, key=lambda name: bounds[name], default=None)
    outcome.check(
        "p99 wait of the admitted, under the queue bound / speed",
        least is not None and p99 / 1000 <= bounds[least],
        f"{p99 / 1000:.2f} s",
        f"{bounds[least]:.2f} s ({least} {seen.limits[least]})" if least else "GET /model has no limit of the queue",
    )


def _check_memory(outcome: Outcome, plan: Overload, seen: _Seen) -> None:
    settled = seen.begins + plan.memory_settles_seconds
    before = seen.memory.between(seen.begins, settled)
    after = seen.memory.between(settled, math.inf)
    # Peak against peak: in between it goes up and down by a tenth, with the batches and what the heap gives back.
    level, most = max(before, default=0), max(after, default=0)
    allowed = plan.memory_growth * level + plan.memory_allowance_bytes
    outcome.check(
        f"most resident memory after the first {plan.memory_settles_seconds:g} s, and in them",
        bool(level) and most - level <= allowed,
        f"{(most - level) / MEBIBYTE:+.0f} MiB, {level / MEBIBYTE:.0f} at most in them, {most / MEBIBYTE:.0f} after",
        f"+{plan.memory_growth:.0%} and {plan.memory_allowance_bytes / MEBIBYTE:.0f} MiB",
    )


def _check_probes(outcome: Outcome, plan: Overload, seen: _Seen, probes: Probes) -> None:
    during = probes.between(seen.begins, seen.begins + plan.seconds)
    outcome.numbers["probes"] = probes_told(during)
    took = [one.took_ms for one in during]
    p99, longest = percentile(took, 99), max(took, default=math.nan)
    # of fewer than a hundred the 99th percentile is the longest, which has a bound of its own
    usually = len(took) < PROBES_OF_A_PERCENTILE or p99 < plan.probe_p99_ms
    outcome.check(
        "p99 and longest of /livez and /readyz",
        usually and longest < plan.probe_longest_ms,
        f"{p99:.0f} and {longest:.0f} ms",
        f"< {plan.probe_p99_ms:g} and {plan.probe_longest_ms:g} ms",
    )
    wrong = Counter(f"{one.path} {one.status}" for one in during if one.status != 200)
    outcome.check("probes say 200", bool(during) and not wrong, dict(wrong) or "all", "all")

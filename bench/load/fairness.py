"""One key floods the service while another asks once a second: the second waits little longer than it would alone."""

import asyncio
import math
import secrets
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.load.loop import run
from bench.load.pool import Pool
from bench.load.report import Outcome
from bench.load.requests import MEDIAN_TOKENS, Request, token_requests
from bench.load.traffic import Callers, Meter, Visit, answered, capacity, closed_loop, open_loop, percentile
from tests.server import Server

KEYS_SETTING = "HEADWATER_API_KEYS_FILE"


@dataclass(frozen=True, slots=True)
class Fairness:
    """How long each of the two parts lasts, how the flood comes, and how often the other one asks."""

    seconds: float = 60.0
    factor: float | None = 3.0  # of the measured capacity, open loop; None: `clients` in a closed loop
    clients: int = 64
    median_tokens: float = MEDIAN_TOKENS  # of a request
    capacity_seconds: float = 10.0
    afterwards_seconds: float = 60.0  # for what the flood left in the queue
    every: float = 1.0
    times: float = 2.0  # the p99 of the second key may be that much longer than alone, and a batch
    allowance_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Keys:
    """The file with the keys, and each key as a header."""

    path: Path
    flooding: bytes
    calm: bytes


@contextmanager
def two_keys() -> Iterator[Keys]:
    """A file with two new keys, one line each: NAME KEY."""
    keys = {name: secrets.token_hex(16) for name in ("flooding", "calm")}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "keys"
        path.touch(mode=0o600)
        path.write_text("".join(f"{name} {key}\n" for name, key in keys.items()))
        yield Keys(path, *(f"Authorization: Bearer {key}\r\n".encode() for key in keys.values()))


def fairness(server: Server, plan: Fairness, keys: Keys) -> Outcome:
    """First the second key alone, then both, on a server that has these keys and does nothing else."""
    return run(_drive(server, plan, keys))


async def _drive(server: Server, plan: Fairness, keys: Keys) -> Outcome:
    kind = f"at {plan.factor:g}x the capacity" if plan.factor else f"of {plan.clients} callers, closed loop,"
    outcome = Outcome(f"A flood {kind} with one key, {1 / plan.every:g} requests/s with another, {plan.seconds:g} s")
    requests, pool = token_requests(median=plan.median_tokens), Pool(server.port)
    calm, flooding = Callers(pool, headers=keys.calm), Callers(pool, headers=keys.flooding)
    without = await Callers(pool).visit(requests[0], time.monotonic())
    most = await capacity(flooding, requests, 32, plan.capacity_seconds)
    assert most.requests_per_second, "nothing was answered while the capacity was measured"
    alone = await _steadily(calm, requests, plan.seconds, plan.every)
    meter = Meter(flooding)
    flood = asyncio.create_task(_flood(flooding, requests, plan, most.requests_per_second))
    beside = await _steadily(calm, requests, plan.seconds, plan.every)
    cost = meter.read()
    flooded = await flood
    await pool.close()

    status = without.last.status if without.last else 0
    outcome.check("without a key", status == 401, status or "no answer", 401)
    lost = Counter(
        one.last.fault or str(one.last.status) if one.last else "nothing" for one in beside if not one.is_answered
    )
    outcome.check("the second key is never refused", not lost, dict(lost) or f"{len(beside)} answered", "all answered")
    p99, p99_alone = _p99_ms(beside), _p99_ms(alone)
    batch = percentile([attempt.compute_ms for _, attempt in answered(flooded)], 99)
    bound = plan.times * p99_alone + batch + plan.allowance_ms
    some = f" + {plan.allowance_ms:g}" if plan.allowance_ms else ""
    outcome.check(
        "p99 of the second key beside the flood",
        p99 <= bound,
        f"{p99:.0f} ms",
        f"<= {bound:.0f} ms: {plan.times:g} x {p99_alone:.0f} alone + {batch:.0f} of a batch{some}",
    )
    got = sum(one.is_answered for one in flooded)
    refusals = Counter(str(a.fault or a.status) for visit in flooded for a in visit.attempts if a.status != 200)
    outcome.numbers |= {
        "capacity": most.told(),
        "second key alone": _told(alone),
        "second key beside the flood": _told(beside),
        "flood": f"{len(flooded)} requests, {got} answered, refusals {dict(refusals) or 0}",
        "flood, ms": _told(flooded),
        "batches in the flood, compute_ms": f"p50 {percentile([a.compute_ms for _, a in answered(flooded)], 50):.0f}, "
        f"p99 {batch:.0f}",
        "generator": cost.told(),
    }
    return outcome


async def _flood(callers: Callers, requests: Sequence[Request], plan: Fairness, capacity: float) -> list[Visit]:
    if plan.factor is None:
        ends = time.monotonic() + plan.seconds
        return await closed_loop(callers, requests, plan.clients, lambda: time.monotonic() >= ends)
    rate = plan.factor * capacity
    return await open_loop(callers, requests, rate, plan.seconds, afterwards_seconds=plan.afterwards_seconds)


async def _steadily(callers: Callers, requests: Sequence[Request], seconds: float, every: float) -> list[Visit]:
    """Ask every so often, whether or not the one before is answered; the same requests in the same order each time."""
    began = time.monotonic()
    asked: list[asyncio.Task[Visit]] = []
    for i in range(round(seconds / every)):
        due = began + i * every
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        asked.append(asyncio.create_task(callers.visit(requests[i % len(requests)], due)))
    return list(await asyncio.gather(*asked))


def _taken_ms(visits: Sequence[Visit]) -> list[float]:
    return [1000 * (attempt.ended - visit.due) for visit, attempt in answered(visits)]


def _p99_ms(visits: Sequence[Visit]) -> float:
    """Who was not answered waited for ever."""
    taken = _taken_ms(visits)
    return percentile(taken + [math.inf] * (len(visits) - len(taken)), 99)


def _told(visits: Sequence[Visit]) -> str:
    taken = _taken_ms(visits)
    return f"{len(taken)} answers, p50 {percentile(taken, 50):.0f}, p99 {percentile(taken, 99):.0f} ms"

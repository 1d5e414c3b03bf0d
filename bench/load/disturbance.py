"""Most callers do it wrong: they leave at any moment, send garbage or NaN. The others must not notice."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from bench.load.answers import Answers
from bench.load.disturbers import Disturbers, Shares, counted, drawn_from
from bench.load.loop import run
from bench.load.metrics import ADMISSION, wait_for_at_most
from bench.load.metrics import told as metrics_told
from bench.load.mixed import mixed_requests
from bench.load.pool import Pool
from bench.load.process import settled_files
from bench.load.report import Outcome
from bench.load.requests import Request, token_requests
from bench.load.traffic import Callers, Meter, Visit
from tests.server import Server


@dataclass(frozen=True, slots=True)
class Disturbance:
    """How many, how long, and how much time a caller has before it counts as hanging."""

    seconds: float = 60.0
    clients: int = 32
    shares: Shares = field(default_factory=Shares)
    hang_seconds: float = 30.0
    calm_seconds: float = 5.0  # until nothing may be left of the load
    seed: int = 9


def disturbance(server: Server, plan: Disturbance) -> Outcome:
    """Gather the answers alone, then let the load go, on a server that does nothing else."""
    return run(_drive(server, plan))


async def _drive(server: Server, plan: Disturbance) -> Outcome:
    outcome = Outcome(f"Disturbance for {plan.seconds:g} s, {plan.clients} callers")
    requests = [*mixed_requests(), *token_requests(16)]
    pool, answers = Pool(server.port), Answers()
    await answers.gather(pool, requests)
    await pool.close()
    files = await settled_files(server.process.pid, None, plan.calm_seconds)

    callers = Callers(pool, answers, answer_seconds=plan.hang_seconds)
    disturbers = Disturbers(server.port, pool, requests, plan.shares, plan.hang_seconds)
    visits: list[Visit] = []
    meter, ends = Meter(callers), time.monotonic() + plan.seconds
    await asyncio.gather(
        *(
            _client(np.random.default_rng([plan.seed, i]), ends, callers, disturbers, requests, visits)
            for i in range(plan.clients)
        )
    )
    cost = meter.read()
    calm, left = await wait_for_at_most(pool, dict.fromkeys(ADMISSION, 0.0), plan.calm_seconds)
    await pool.close()
    files_left = await settled_files(server.process.pid, files, plan.calm_seconds)

    check_callers(outcome, visits, answers, disturbers)
    outcome.check("admission counters afterwards", calm, metrics_told(left), "all exactly 0")
    outcome.check("file descriptors afterwards", files_left <= files, files_left, f"<= {files}, as before")
    outcome.numbers["generator"] = f"{cost.cpu_seconds / cost.seconds:.0%} of a core"
    return outcome


async def _client(
    random: np.random.Generator,
    ends: float,
    callers: Callers,
    disturbers: Disturbers,
    requests: Sequence[Request],
    visits: list[Visit],
) -> None:
    while time.monotonic() < ends:
        wrong = disturbers.drawn(random)
        if wrong is not None:
            await wrong
        else:
            request = drawn_from(requests, random)
            visits.append(await callers.visit(request, time.monotonic()))


def check_callers(outcome: Outcome, visits: Sequence[Visit], answers: Answers, disturbers: Disturbers) -> None:
    """Note what both kinds of callers saw."""
    lost = Counter(f"{one.last.fault or one.last.status}" for one in visits if one.last and one.last.status != 200)
    late = lost.pop("late", 0)
    good = sum(visit.is_answered for visit in visits)
    figure = f"{good} answered" + (f"; not: {counted(lost)}" if lost else "")
    outcome.check("callers who did it right are answered", bool(good) and not lost, figure, "all")
    outcome.check("surviving answers equal those given alone", not answers.tally.wrong, answers.tally.told(), "0 wrong")
    hanging = disturbers.hanging + Counter({"a good caller": late})
    outcome.check(
        f"nothing hangs for {disturbers.hang_seconds:g} s", not +hanging, counted(+hanging) or "nothing", "nothing"
    )
    unlike = counted(disturbers.wrong) or "all"
    outcome.check("garbage and NaN are refused", not disturbers.wrong, unlike, "all with a 4xx")
    outcome.numbers |= {
        "what callers did": counted(Counter({"asked properly": len(visits)}) + disturbers.did),
        "refusals": counted(disturbers.refused),
    }

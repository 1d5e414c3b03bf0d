"""SIGTERM in the middle of work: who was admitted is answered, who comes later is told so, and the exit code is 0."""

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from bench.load.answers import Answers
from bench.load.loop import run
from bench.load.pool import Pool
from bench.load.probes import Probes, probing
from bench.load.report import Outcome
from bench.load.requests import token_requests
from bench.load.traffic import Attempt, Callers, Visit, closed_loop, seconds_to_wait
from tests.server import Server


@dataclass(frozen=True, slots=True)
class Shutdown:
    """How long the load lasts before SIGTERM comes, and how long the end may take."""

    seconds: float = 30.0
    clients: int = 16
    exit_seconds: float = 30.0  # drain_delay_seconds + drain_seconds, and some for the rest
    not_ready_seconds: float = 0.5  # after SIGTERM; from then on /readyz may not say 200
    probe_every: float = 0.02


@dataclass(slots=True)
class _Seen:
    visits: list[Visit]
    answers: Answers
    signalled: float
    seconds_to_exit: float | None


def shutdown(server: Server, plan: Shutdown) -> Outcome:
    """Load a server, end it with SIGTERM, and go on asking until it is gone."""
    with probing(server.port, plan.probe_every) as probes:
        seen = run(_drive(server, plan))
    outcome = Outcome(f"SIGTERM after {plan.seconds:g} s under {plan.clients} callers")
    attempts = [attempt for visit in seen.visits for attempt in visit.attempts]
    before = [attempt for attempt in attempts if attempt.sent < seen.signalled]
    after = [attempt for attempt in attempts if attempt.sent >= seen.signalled]
    under_way = [attempt for attempt in before if attempt.ended >= seen.signalled]
    _check_before(outcome, before, under_way, seen)
    _check_after(outcome, after)
    _check_exit(outcome, server, plan, seen)
    _check_probes(outcome, plan, seen, probes)
    return outcome


async def _drive(server: Server, plan: Shutdown) -> _Seen:
    requests, pool, answers = token_requests(), Pool(server.port), Answers()
    await answers.gather(pool, requests)
    callers = Callers(pool, answers, answer_seconds=plan.exit_seconds, again=False)
    gone = asyncio.Event()
    load = asyncio.create_task(closed_loop(callers, requests, plan.clients, gone.is_set))
    await asyncio.sleep(plan.seconds)
    signalled = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    seconds_to_exit = None
    while time.monotonic() < signalled + plan.exit_seconds:
        if server.process.poll() is not None:
            seconds_to_exit = time.monotonic() - signalled
            break
        await asyncio.sleep(0.01)
    gone.set()
    visits = await load
    await pool.close()
    return _Seen(visits, answers, signalled, seconds_to_exit)


def _check_before(outcome: Outcome, before: Sequence[Attempt], under_way: Sequence[Attempt], seen: _Seen) -> None:
    lost = Counter(one.fault or str(one.status) for one in before if one.status != 200)
    outcome.check(
        "requests sent before SIGTERM are answered",
        bool(under_way) and not lost,
        f"{len(before)} sent, {len(under_way)} of them under way at SIGTERM; not answered: {dict(lost) or 0}",
        "all, and some under way",
    )
    outcome.check("answers equal those given alone", not seen.answers.tally.wrong, seen.answers.tally.told(), "0 wrong")


def _check_after(outcome: Outcome, after: Sequence[Attempt]) -> None:
    kinds = Counter(one.fault or str(one.status) for one in after)
    told = [one for one in after if one.status == 503 and seconds_to_wait(one) is not None]
    # an idle connection that the server closes just then takes the request along unread: like a refused one
    unlike = Counter(
        one.fault or str(one.status)
        for one in after
        if one not in told and one.status != 200 and one.fault not in ("refused", "closed")
    )
    outcome.numbers["requests sent after SIGTERM"] = (
        ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "none"
    )
    outcome.check(
        "who came after SIGTERM: answered, 503 with Retry-After, or no connection",
        not unlike,
        f"otherwise: {dict(unlike)}" if unlike else "all",
        "all",
    )
    outcome.check("new ones get a 503 while what was admitted is finished", bool(told), f"{len(told)} did", ">= 1")


def _check_exit(outcome: Outcome, server: Server, plan: Shutdown, seen: _Seen) -> None:
    code = server.process.poll()
    outcome.check("exit code", code == 0, "still there" if code is None else code, 0)
    outcome.check(
        "from SIGTERM to the exit",
        seen.seconds_to_exit is not None,
        "still there" if seen.seconds_to_exit is None else f"{seen.seconds_to_exit:.2f} s",
        f"<= {plan.exit_seconds:g} s",
    )


def _check_probes(outcome: Outcome, plan: Shutdown, seen: _Seen, probes: Probes) -> None:
    after = [probe for probe in probes.all if probe.woken >= seen.signalled]
    not_ready = [one for one in after if one.path == "/readyz" and one.status == 503]
    outcome.numbers["/readyz after SIGTERM"] = (
        f"503 for the first time after {1000 * (not_ready[0].answered - seen.signalled):.0f} ms, {len(not_ready)} times"
        if not_ready
        else "never answered 503"
    )
    ready = [
        one
        for one in after
        if one.path == "/readyz" and one.status == 200 and one.woken > seen.signalled + plan.not_ready_seconds
    ]
    outcome.check(
        f"/readyz is not 200 any more {plan.not_ready_seconds:g} s after SIGTERM",
        not ready,
        f"{len(ready)} times",
        "never",
    )

"""One server under a closed loop of some clients, or asked one request at a time: tokens a second, time of a request.

Clients go on asking for so many seconds, and what is under way then is awaited, so that nothing is left for the server
that is measured next. What ends in the first part does not count, for batches have not filled yet.
"""

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from bench.load.pool import Pool
from bench.load.requests import Request
from bench.load.traffic import Callers, Cost, Meter, Visit, closed_loop

STARTING = 0.2  # of the time


@dataclass(frozen=True, slots=True)
class Measured:
    """What came of one loop; `p50_ms` is over the requests, of each of which it takes the median.

    Those that were `refused` count nowhere else.
    """

    tokens_per_second: float
    requests_per_second: float
    p50_ms: float
    refused: int
    cost: Cost


async def ask_each(port: int, requests: Sequence[Request]) -> tuple[list[float], Cost]:
    """The seconds of each request, one after the other. Raises AssertionError where one fails.

    The first is asked once before, which does not count: others have just had the machine.
    """
    pool = Pool(port)
    callers = Callers(pool)
    meter = Meter(callers)
    seconds: list[float] = []
    for request in (requests[0], *requests):
        visit = await callers.visit(request, time.monotonic())
        assert visit.last is not None
        assert visit.is_answered, f"{request.name}: {visit.last.status} {visit.last.fault}"
        seconds.append(visit.last.ended - visit.due)
    cost = meter.read()
    await pool.close()
    return seconds[1:], cost


async def measure(port: int, requests: Sequence[Request], clients: int, seconds: float) -> Measured:
    """Ask in a closed loop. Raises AssertionError where a request fails."""
    pool = Pool(port)
    callers = Callers(pool)
    meter, began = Meter(callers), time.monotonic()
    visits = await closed_loop(callers, requests, clients, lambda: time.monotonic() >= began + seconds)
    cost = meter.read()
    await pool.close()
    return summary(visits, began, began + STARTING * seconds, cost)


def summary(visits: Sequence[Visit], began: float, starting_until: float, cost: Cost) -> Measured:
    """Rates from the last answer of the starting time (or from the beginning) to the last answer of all."""
    ends: list[tuple[float, int]] = []
    times: dict[str, list[float]] = defaultdict(list)
    refused = [visit for visit in visits if visit.last is not None and visit.last.status == 429]
    for visit in visits:
        assert visit.last is not None
        if visit.last.status == 429:  # in a closed loop the same client asks again
            continue
        assert visit.is_answered, f"{visit.request.name}: {visit.last.status} {visit.last.fault}"
        ends.append((visit.last.ended, visit.request.tokens))
        times[visit.request.name].append(visit.last.ended - visit.due)
    first = max((ended for ended, _ in ends if ended <= starting_until), default=began)
    counted = [tokens for ended, tokens in ends if ended > first]
    span = max(ended for ended, _ in ends) - first
    p50 = median(median(of_one) for of_one in times.values())
    return Measured(sum(counted) / span, len(counted) / span, 1000 * p50, len(refused), cost)

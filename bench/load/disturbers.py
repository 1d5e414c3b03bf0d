"""Callers who do it wrong, drawn at random: they leave at any moment, send garbage, or numbers that are none."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from bench.load.garbage import Misframed, misframed, not_finite_requests, wrong_requests
from bench.load.leaving import MOMENTS, leave, send_misframed
from bench.load.pool import Pool
from bench.load.requests import Request

MISFRAMED = 0.3  # of all garbage
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Shares:
    """Of all callers, those who leave, send garbage, and send NaN or Inf."""

    leaving: float = 0.5
    garbage: float = 0.1
    not_finite: float = 0.02


@dataclass(slots=True)
class Disturbers:
    """What callers who do it wrong did, and what they saw that they should not have seen."""

    port: int
    pool: Pool
    requests: Sequence[Request]
    shares: Shares
    hang_seconds: float
    longest_wait: float = 0.5
    did: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    hanging: Counter[str] = field(default_factory=Counter)
    _garbage: Sequence[Request] = field(default_factory=wrong_requests)
    _not_finite: Sequence[Request] = field(default_factory=not_finite_requests)
    _misframed: Sequence[Misframed] = field(default_factory=misframed)

    def drawn(self, random: np.random.Generator) -> Awaitable[None] | None:
        """What a caller does wrong this time; None if it does it right."""
        drawn, shares = random.random(), self.shares
        if drawn < shares.leaving:
            return self.leave(random)
        if drawn < shares.leaving + shares.garbage:
            return self.send_garbage(random)
        if drawn < shares.leaving + shares.garbage + shares.not_finite:
            return self.send_not_finite(random)
        return None

    async def leave(self, random: np.random.Generator) -> None:
        """Go away in the middle of any request."""
        moment = drawn_from(MOMENTS, random)
        request = drawn_from(self.requests, random)
        self.did[f"left: {moment}"] += 1
        await self._bounded(f"left: {moment}", leave(self.port, request, moment, random, self.longest_wait))

    async def send_garbage(self, random: np.random.Generator) -> None:
        """Send what must be refused, well framed or not."""
        self.did["garbage"] += 1
        if random.random() >= MISFRAMED:
            await self._refused(drawn_from(self._garbage, random), range(400, 500))
            return
        one = drawn_from(self._misframed, random)
        statuses = await self._bounded(one.name, send_misframed(self.port, one))
        for status in statuses or ():
            self.refused[str(status)] += 1
            if not 400 <= status < 500:
                self.wrong[f"{one.name}: {status}"] += 1

    async def send_not_finite(self, random: np.random.Generator) -> None:
        """Send NaN or Inf."""
        self.did["NaN or Inf"] += 1
        await self._refused(drawn_from(self._not_finite, random), (400, 422))

    async def _refused(self, request: Request, statuses: Sequence[int]) -> None:
        reply = await self.pool.exchange(request.wire(), self.hang_seconds)
        if reply.fault == "late":
            self.hanging[request.name] += 1
        elif reply.status not in statuses:
            self.wrong[f"{request.name}: {reply.fault or reply.status}"] += 1
        else:
            self.refused[str(reply.status)] += 1

    async def _bounded(self, name: str, work: Awaitable[list[int] | None]) -> list[int] | None:
        try:
            async with asyncio.timeout(self.hang_seconds):
                return await work
        except TimeoutError:
            self.hanging[name] += 1
        except OSError as error:
            self.wrong[f"{name}: {type(error).__name__}"] += 1
        return None


def drawn_from(several: Sequence[T], random: np.random.Generator) -> T:
    """One of them."""
    return several[int(random.integers(len(several)))]


def counted(counts: Counter[str]) -> str:
    """Counts for the report."""
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()) if count)

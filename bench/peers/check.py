"""Whether another server answers what ours does, before it is timed: otherwise it would be faster at something else."""

import asyncio
from collections.abc import Sequence

import numpy as np
import safetensors.numpy

from bench.load.connection import Reply
from bench.load.pool import Pool
from bench.load.requests import Request
from bench.peers.prompts import Array, Want, numbers_of_ours, numbers_of_theirs
from model.config import StackConfig

TOLERANCE = 1e-3  # of the largest magnitude in a row
CLIENTS, SECONDS = 8, 300.0


async def replies(port: int, requests: Sequence[Request]) -> list[Reply]:
    """Each request answered once, a few at a time, so that batches form. Raises AssertionError if one is not."""
    pool, turn = Pool(port), asyncio.Semaphore(CLIENTS)

    async def one(request: Request) -> Reply:
        async with turn:
            reply = await pool.exchange(request.wire(), SECONDS)
        assert reply.status == 200, f"{request.name}: {reply.status} {reply.fault} {reply.body[:300]!r}"
        return reply

    found = await asyncio.gather(*map(one, requests))
    await pool.close()
    return found


def ours(found: Sequence[Reply], want: Want, config: StackConfig) -> list[Array]:
    """The numbers of our answers."""
    return [numbers_of_ours(safetensors.numpy.load(reply.body), want, config) for reply in found]


def worst_deviation(
    found: Sequence[Reply], expected: Sequence[Array], requests: Sequence[Request], width: int
) -> float:
    """Of the largest magnitude in a row of `width` states, or in a map's row, over all answers."""
    worst = 0.0
    for reply, right, request in zip(found, expected, requests, strict=True):
        got = numbers_of_theirs(reply)
        assert got.shape == right.shape, f"{request.name}: {got.size} numbers, and not {right.size}"
        maps_at = request.tokens * width if request.name.startswith("maps") else right.size
        parts = ((slice(0, maps_at), width), (slice(maps_at, None), request.tokens))
        worst = max(worst, *(_deviation(got[part], right[part], columns) for part, columns in parts))
    return worst


def _deviation(got: Array, right: Array, columns: int) -> float:
    if not right.size:
        return 0.0
    difference = np.abs(got - right).reshape(-1, columns).max(axis=1)
    return float((difference / np.maximum(np.abs(right).reshape(-1, columns).max(axis=1), 1e-30)).max())

"""The load generator itself: what it would not see, no load test would find."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import numpy as np
import pytest
import safetensors.numpy

from bench.load.answers import Answers
from bench.load.connection import Reply
from bench.load.metrics import read_metrics, wait_for_at_most
from bench.load.pool import Pool
from bench.load.requests import get, token_requests
from bench.load.traffic import Callers, Visit, arrivals, open_loop, percentile

SECONDS = 10.0
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nserver-timing: queue;dur=3.5, compute;dur=7.25\r\n\r\nhi"
FULL = b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n"

Handler = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def answering(handle: Handler) -> AsyncIterator[Pool]:
    """A pool of connections with a server that does this on each request's head."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                await handle(head, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    pool = Pool(server.sockets[0].getsockname()[1])
    try:
        async with asyncio.timeout(SECONDS):
            yield pool
    finally:
        await pool.close()
        server.close()


def replying(*replies: bytes) -> Handler:
    """Each request gets the next of these; after a short one the connection ends."""
    left = list(replies)

    async def handle(_: bytes, writer: asyncio.StreamWriter) -> None:
        reply = left.pop(0)
        writer.write(reply)
        if reply not in (OK, FULL):
            writer.close()

    return handle


def reply_of(tensors: dict[str, np.ndarray], usage: str = "{}") -> Reply:
    body = safetensors.numpy.save(tensors, {"usage": usage})
    return Reply(200, 0.0, b"HTTP/1.1 200 OK\r\ncontent-type: application/x-safetensors\r\n", body)


async def answers_to(reply: Reply) -> Answers:
    async def handle(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(reply.head + b"content-length: %d\r\n\r\n" % len(reply.body) + reply.body)

    answers = Answers()
    async with answering(handle) as pool:
        await answers.gather(pool, [REQUEST])
    return answers


REQUEST = get("/x")
X = np.random.default_rng(1).standard_normal((7, 5)).astype(np.float32)


def test_an_answer_with_one_number_off_is_wrong_and_other_metadata_are_not() -> None:
    answers = asyncio.run(answers_to(reply_of({"x": X})))
    assert answers.check(REQUEST, reply_of({"x": X}, usage='{"queue_ms": 17.25, "tokens": 3}'))
    assert answers.tally.equal == 1
    off = X.copy()
    off[3, 2] += 1e-3
    assert not answers.check(REQUEST, reply_of({"x": off}))
    close = X.copy()
    close[3, 2] += 1e-6
    assert answers.check(REQUEST, reply_of({"x": close}))
    assert not answers.check(REQUEST, reply_of({"y": X}))
    assert not answers.check(REQUEST, reply_of({"x": X[:6]}))
    assert not answers.check(REQUEST, reply_of({"x": np.full_like(X, np.nan)}))
    tally = answers.tally
    assert (tally.compared, tally.equal, tally.wrong) == (6, 1, 4)


def test_a_deviation_counts_against_the_largest_of_its_own_row() -> None:
    x = X.copy()
    x[0] *= 1e6
    answers = asyncio.run(answers_to(reply_of({"x": x})))
    off = x.copy()
    off[4, 1] += 1e-3  # much in its row, nothing beside the first
    assert not answers.check(REQUEST, reply_of({"x": off}))


def test_json_answers_are_compared_by_their_numbers() -> None:
    def reply(value: float, queue_ms: float) -> Reply:
        outputs = {"x": {"shape": [1, 2], "dtype": "float32", "data": [[value, 2.0]]}}
        body = json.dumps({"model": "m", "outputs": outputs, "usage": {"queue_ms": queue_ms}}, separators=(",", ":"))
        return Reply(200, 0.0, b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n", body.encode())

    answers = asyncio.run(answers_to(reply(1.0, 1.0)))
    assert answers.check(REQUEST, reply(1.0, 99.0))
    assert not answers.check(REQUEST, reply(1.001, 1.0))


@pytest.mark.parametrize(
    ("sent", "fault"),
    [(b"", "closed"), (OK[:-1], "broken"), (OK[:20], "broken"), (OK + b"more", "broken"), (b"hello\r\n\r\n", "broken")],
)
def test_an_answer_that_is_not_whole_is_no_answer(sent: bytes, fault: str) -> None:
    async def ask() -> Reply:
        async with answering(replying(sent)) as pool:
            return await pool.exchange(REQUEST.wire(), SECONDS)

    reply = asyncio.run(ask())
    assert (reply.status, reply.fault) == (0, fault)


def test_an_answer_that_takes_too_long_is_late_and_a_closed_port_refuses() -> None:
    async def silent(_: bytes, __: asyncio.StreamWriter) -> None: ...

    async def ask() -> tuple[Reply, Reply]:
        async with answering(silent) as pool:
            late = await pool.exchange(REQUEST.wire(), 0.05)
        gone = await pool.exchange(REQUEST.wire(), SECONDS)
        await pool.close()
        return late, gone

    late, gone = asyncio.run(ask())
    assert (late.fault, gone.fault) == ("late", "refused")


def test_a_connection_that_was_closed_while_idle_is_replaced_unless_told_otherwise() -> None:
    async def ask(again: bool) -> list[str]:
        async with answering(replying(OK, b"", OK)) as pool:
            return [(await pool.exchange(REQUEST.wire(), SECONDS, again=again)).fault for _ in range(2)]

    assert asyncio.run(ask(True)) == ["", ""]
    assert asyncio.run(ask(False)) == ["", "closed"]


def test_a_refused_caller_comes_again_once_when_retry_after_says_with_the_same_id() -> None:
    heads: list[bytes] = []
    replies = replying(FULL, OK)

    async def handle(head: bytes, writer: asyncio.StreamWriter) -> None:
        heads.append(head)
        await replies(head, writer)

    async def ask() -> Visit:
        async with answering(handle) as pool:
            visit = Visit(REQUEST, time.monotonic(), waits=True)
            await Callers(pool, own_ids=True).go_on(visit)
            return visit

    visit = asyncio.run(ask())
    assert [attempt.status for attempt in visit.attempts] == [429, 200]
    assert 1.0 <= visit.attempts[1].sent - visit.attempts[0].ended < 1.5
    assert heads[0] == heads[1]
    assert b"X-Request-Id: " in heads[0]
    assert (visit.attempts[1].queue_ms, visit.attempts[1].compute_ms) == (3.5, 7.25)


def test_in_an_open_loop_nobody_waits_for_those_before() -> None:
    heads: list[bytes] = []

    async def slow(head: bytes, writer: asyncio.StreamWriter) -> None:
        heads.append(head)
        await asyncio.sleep(0.5)
        writer.write(OK)

    async def ask() -> list[Visit]:
        async with answering(slow) as pool:
            return await open_loop(Callers(pool), [REQUEST], 50.0, 0.4, afterwards_seconds=5.0)

    visits = asyncio.run(ask())
    assert len(visits) == len(heads) == len(list(arrivals(50.0, 0.4, 6)))
    assert all(visit.is_answered for visit in visits)
    assert all(visit.attempts[0].ended - visit.due >= 0.5 for visit in visits)


def test_arrivals_come_at_their_rate_and_are_the_same_each_time() -> None:
    moments = list(arrivals(100.0, 50.0, 3))
    assert moments == list(arrivals(100.0, 50.0, 3))
    assert len(moments) == pytest.approx(5000, rel=0.05)
    assert moments == sorted(moments)
    assert moments[-1] < 50


def test_a_percentile_is_a_value_that_was_seen() -> None:
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0
    assert percentile(list(range(1, 101)), 99) == 99
    assert percentile([5.0], 99) == 5.0


def test_counters_that_do_not_return_to_zero_are_seen() -> None:
    text = b'# HELP a b\na 0.0\nb{route="/x"} 1.0\nb{route="/y"} 2.0\n'

    async def metrics(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(text) + text)

    async def ask() -> tuple[dict[str, float], bool, bool, bool]:
        async with answering(metrics) as pool:
            return (
                await read_metrics(pool),
                (await wait_for_at_most(pool, {"a": 0.0}, 0.1))[0],
                (await wait_for_at_most(pool, {"a": 0.0, "b": 0.0}, 0.1))[0],
                (await wait_for_at_most(pool, {"missing": 0.0}, 0.1))[0],
            )

    assert asyncio.run(ask()) == ({"a": 0.0, "b": 3.0}, True, False, False)


def test_the_requests_are_the_same_each_time_and_as_long_as_texts_are() -> None:
    requests = token_requests(1000)
    assert requests == token_requests(1000)
    lengths = sorted(request.tokens for request in requests)
    assert 58 < lengths[500] < 70
    assert (lengths[0] >= 4, lengths[-1] <= 512) == (True, True)
    assert len({request.body for request in token_requests()}) == 64

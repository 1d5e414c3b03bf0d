"""A call's way through the service, whatever protocol it came by: admitted, run with others, answered."""

from collections.abc import AsyncGenerator, Awaitable
from typing import Any

from service.door import Admitted
from service.errors import CallerLeft
from service.exchange import Exchange
from service.parts import Parts
from service.result_stream import ResultStream
from service.ticket import Began, Ran
from service.wire.answer import Answer, Usage
from service.wire.binary_answer import safetensors_header, tensor_bytes
from service.wire.pieces import Piece

Log = dict[str, Any]


async def run_whole(
    admitted: Admitted, parts: Parts, *, share: str, arrived: float, left: Awaitable[None], log: Log
) -> Answer:
    """Run a call and give its answer when all of it is there. Raises ServiceError."""
    exchange = _exchange(admitted, parts, share, arrived, left, None)
    try:
        ran = await exchange.ran()
        usage = _usage_of_runs(admitted, ran)
        _note(log, usage)
        tensors = {name: tensor for ticket in exchange.tickets for name, tensor in ticket.results.items()}
        return _answer(admitted, usage, parts, tensors)
    finally:
        exchange.close()


async def run_streamed(
    admitted: Admitted, parts: Parts, *, share: str, arrived: float, left: Awaitable[None], log: Log
) -> tuple[int, AsyncGenerator[Piece, None], Answer]:
    """Run a call and give the bytes of its safetensors answer while they are made: length, pieces, what is known.

    Returns when the batches of all sequences have started; until then it raises ServiceError. Later an
    error ends the pieces, which must be closed.
    """
    stream = ResultStream()
    exchange = _exchange(admitted, parts, share, arrived, left, stream)
    try:
        began = await exchange.begun()
        usage = [_usage(n, one, None) for n, one in zip(_lengths(admitted), began, strict=True)]
        answer = _answer(admitted, usage, parts, {})
        header = await parts.off_loop(lambda: safetensors_header(answer))
    except BaseException:
        exchange.close()
        raise

    async def pieces() -> AsyncGenerator[Piece, None]:
        try:
            yield header
            for spec in admitted.specs:
                left_over = spec.nbytes
                while left_over:
                    part = tensor_bytes(await exchange.wait_for(stream.take(spec.name)))
                    left_over -= len(part)
                    if exchange.has_left():
                        # the server would take what it cannot send, and count it as sent
                        raise CallerLeft("the caller left before its answer was out")
                    yield part
            ran = await exchange.settled()
            _note(log, _usage_of_runs(admitted, ran))
        finally:
            exchange.close()

    return len(header) + admitted.nbytes, pieces(), answer


def _exchange(
    admitted: Admitted,
    parts: Parts,
    share: str,
    arrived: float,
    left: Awaitable[None],
    stream: ResultStream | None,
) -> Exchange:
    return Exchange(
        list(zip(admitted.sequences, admitted.costs, strict=True)),
        parts.batcher,
        arrived=arrived,
        seconds=admitted.seconds,
        left=left,
        deliver=stream.deliver if stream else None,
        share=share,
    )


def _lengths(admitted: Admitted) -> list[int]:
    return [sequence.length for sequence in admitted.sequences]


def _usage_of_runs(admitted: Admitted, ran: list[Ran]) -> list[Usage]:
    return [_usage(n, one.began, one) for n, one in zip(_lengths(admitted), ran, strict=True)]


def _usage(tokens: int, began: Began, ran: Ran | None) -> Usage:
    return Usage(
        tokens=tokens,
        queue_ms=1000 * (began.started - began.arrived),
        compute_ms=None if ran is None else 1000 * (ran.ended - began.started),
        batch_sequences=began.batch_sequences,
        batch_tokens=began.batch_tokens,
    )


def _note(log: Log, usage: list[Usage]) -> None:
    log.update(
        tokens=sum(one.tokens for one in usage),
        sequences=len(usage),
        queue_ms=round(max(one.queue_ms for one in usage), 3),
        compute_ms=round(max(one.compute_ms or 0.0 for one in usage), 3),
    )


def _answer(admitted: Admitted, usage: list[Usage], parts: Parts, tensors: dict[str, Any]) -> Answer:
    return Answer(
        model=parts.model.name,
        specs=admitted.specs,
        tensors=tensors,
        usage=usage,
        several=admitted.several,
        tokens=admitted.tokens,
        manifest=admitted.manifest,
    )

"""`POST /forward`: translate, submit, translate."""

import asyncio
import time
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.door import Admitted, admit
from service.errors import DeadlinePassed
from service.manifest import manifest
from service.openapi import FORWARD
from service.parts import Parts, PartsDep
from service.ticket import Ran, Ticket
from service.wire.answer import Answer, Usage
from service.wire.binary_answer import encode_npy, encode_safetensors
from service.wire.body import read_body
from service.wire.decode import decode
from service.wire.formats import CONTENT_TYPES, Format, format_of_answer, format_of_body
from service.wire.json_answer import encode as encode_json
from service.wire.pieces import PiecesResponse

router = APIRouter()
_ENCODERS = {"json": encode_json, "safetensors": encode_safetensors, "npy": encode_npy}
_CALLER_LEFT = 499  # nobody reads it; it stands in the log


@router.post("/forward", summary="Run token matrices through the stack", **FORWARD)
async def forward(request: Request, parts: PartsDep) -> Response:
    """Run token matrices through the stack and return the points asked for.

    Calls that come together share a model call; no answer depends on which.
    """
    arrived = time.monotonic()
    body_format = format_of_body(request.headers.get("content-type"))
    answer_format = format_of_answer(request.headers.get("accept"))
    parameter = request.query_params.get("request")
    body = await read_body(request, parts.settings)
    request.state.log["bytes_in"] = len(body)
    call = await parts.off_loop(lambda: decode(body, body_format, parameter))
    admitted = await parts.off_loop(lambda: admit(call, answer_format, parts.model, parts.settings))
    seconds = min(parts.settings.deadline_seconds, (call.timeout_ms or float("inf")) / 1000)
    tickets = [Ticket(sequence, arrived, arrived + seconds) for sequence in admitted.sequences]
    ran = await _run(tickets, parts, request, arrived + seconds)
    if ran is None:
        return Response(status_code=_CALLER_LEFT)
    usage = [_usage(ticket, one) for ticket, one in zip(tickets, ran, strict=True)]
    request.state.log.update(
        tokens=sum(one.tokens for one in usage),
        sequences=len(usage),
        queue_ms=round(max(one.queue_ms for one in usage), 3),
        compute_ms=round(max(one.compute_ms for one in usage), 3),
    )
    answer = _answer(admitted, tickets, usage, call.several, parts)
    return await parts.off_loop(lambda: _respond(answer, answer_format))


async def _run(tickets: list[Ticket], parts: Parts, request: Request, deadline: float) -> list[Ran] | None:
    """Wait for the tickets' runs; None if the caller left before. Whoever leaves or is late costs nothing more."""
    parts.batcher.submit(tickets)
    runs = asyncio.gather(*(ticket.done for ticket in tickets))
    leaving = asyncio.ensure_future(_until_disconnected(request))
    either: list[asyncio.Future[Any]] = [runs, leaving]
    try:
        done, _ = await asyncio.wait(either, timeout=deadline - time.monotonic(), return_when=asyncio.FIRST_COMPLETED)
        if runs in done:
            return runs.result()
        if leaving in done:
            return None
        raise DeadlinePassed("the deadline passed while the request was waiting or running")
    finally:
        for ticket in tickets:
            ticket.abandoned = True
        runs.cancel()
        leaving.cancel()


async def _until_disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _usage(ticket: Ticket, ran: Ran) -> Usage:
    return Usage(
        tokens=ticket.sequence.length,
        queue_ms=1000 * (ran.started - ran.arrived),
        compute_ms=1000 * (ran.ended - ran.started),
        batch_sequences=ran.batch_sequences,
        batch_tokens=ran.batch_tokens,
    )


def _answer(admitted: Admitted, tickets: list[Ticket], usage: list[Usage], several: bool, parts: Parts) -> Answer:
    return Answer(
        model=parts.model.name,
        specs=admitted.specs,
        tensors={name: tensor for ticket in tickets for name, tensor in ticket.results.items()},
        usage=usage,
        several=several,
        tokens=admitted.tokens,
        manifest=manifest((w for ticket in tickets for w in ticket.sequence.wanted), parts.model),
    )


def _respond(answer: Answer, answer_format: Format) -> Response:
    pieces = list(_ENCODERS[answer_format](answer))
    queued = max(one.queue_ms for one in answer.usage)
    computed = max(one.compute_ms for one in answer.usage)
    timing = f"queue;dur={queued:.3f}, compute;dur={computed:.3f}"
    return PiecesResponse(pieces, CONTENT_TYPES[answer_format], {"Server-Timing": timing})

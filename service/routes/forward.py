"""`POST /forward`: translate, submit, translate."""

import json
import time
from collections.abc import Callable, Iterable, Iterator

from fastapi import APIRouter, Request
from pydantic import TypeAdapter, ValidationError
from starlette.responses import Response

from service.door import admit
from service.dry_run import estimate, refused
from service.errors import NotAcceptable, Unprocessable, invalid
from service.forwarding import run_streamed, run_whole
from service.openapi.routes import FORWARD
from service.parts import Parts, parts_in
from service.routes.arriving import arrived_call, is_small
from service.routes.encoding import encoded, is_quick
from service.routes.leaving import until_disconnected
from service.wire.answer import Answer
from service.wire.binary_answer import encode_npy, encode_safetensors, npy_headers
from service.wire.body import read_body
from service.wire.call import ForwardCall
from service.wire.coding import coding_of_body, unpacked
from service.wire.decode import decode
from service.wire.formats import CONTENT_TYPES, Format, format_of_answer, format_of_body
from service.wire.json_answer import encode as encode_json
from service.wire.pieces import Piece, PiecesResponse, StreamedResponse

router = APIRouter()
_FLAG = TypeAdapter(bool)
_PARAMETERS = ("dry_run", "request")
_ENCODERS: dict[Format, Callable[[Answer], Iterator[Piece]]] = {
    "json": encode_json,
    "safetensors": encode_safetensors,
    "npy": encode_npy,
}


@router.post("/forward", summary="Run token matrices through the stack", **FORWARD)
async def forward(request: Request) -> Response:
    """Run token matrices through the stack and return the points asked for.

    Calls that come together share a model call; no answer depends on which.
    """
    arrived = time.monotonic()
    # by hand, where FastAPI would fill in arguments: that takes a tenth of all that the event loop does for a call
    parts = parts_in(request.app)
    _know_all(request.query_params)
    dry_run = _flag(request.query_params.get("dry_run", "false"), "/dry_run")
    coding = coding_of_body(request.headers.get("content-encoding"))
    body_format = format_of_body(request.headers.get("content-type"))
    accept = ",".join(request.headers.getlist("accept"))
    answer_format = None if dry_run else format_of_answer(accept)
    parameter = request.query_params.get("request")
    log, place = request.state.log, request.state.place
    body = await read_body(request, parts.settings, place.body_grows)

    def decoded() -> ForwardCall:
        return decode(unpacked(body, coding, parts.settings.max_body_bytes, place.unpacks), body_format, parameter)

    if answer_format is None:
        outcome = await parts.off_loop(lambda: _dry_run(decoded, accept, parts))
        return Response(outcome, media_type=CONTENT_TYPES["json"])
    admitted = await arrived_call(
        decoded,
        lambda call: admit(call, answer_format, parts.model, parts.settings),
        parts,
        small=body_format != "npy" and is_small(body, coding),
        arrived=arrived,
    )
    place.take(admitted.rows, admitted.held_bytes)
    media_type = CONTENT_TYPES[answer_format]
    run = {"share": place.caller.share, "arrived": arrived, "left": until_disconnected(request), "log": log}
    if answer_format == "safetensors" and admitted.nbytes > parts.settings.stream_above_bytes:
        length, coming, answer = await run_streamed(admitted, parts, **run)
        return StreamedResponse(coming, length, media_type, {"Server-Timing": answer.server_timing()})
    answer = await run_whole(admitted, parts, **run)
    here = is_quick(answer, in_json=answer_format == "json")
    pieces = await encoded(lambda: list(_ENCODERS[answer_format](answer)), parts, log, here=here)
    headers = npy_headers(answer) if answer_format == "npy" else {}
    return PiecesResponse(pieces, media_type, headers | {"Server-Timing": answer.server_timing()})


def _know_all(parameters: Iterable[str]) -> None:
    """A slip in `dry_run` would run what should not be."""
    for name in parameters:
        if name not in _PARAMETERS:
            raise invalid(f"/{name:.40}", "is no query parameter of this call; there are dry_run and request")


def _flag(value: str, pointer: str) -> bool:
    try:
        return _FLAG.validate_python(value)
    except ValidationError:
        raise invalid(pointer, f"must be true or false, not {value!r:.40}") from None


def _dry_run(decoded: Callable[[], ForwardCall], accept: str, parts: Parts) -> bytes:
    try:
        outcome = estimate(decoded(), format_of_answer(accept), parts.model, parts.settings)
    except (Unprocessable, NotAcceptable) as error:
        outcome = refused(error)
    return json.dumps(outcome, separators=(",", ":")).encode()  # operations may be more than fit 64 bits

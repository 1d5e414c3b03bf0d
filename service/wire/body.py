"""Reading a request's body: into one buffer, up to a limit, in time."""

import asyncio
import mmap
from collections.abc import Callable

from fastapi import Request
from starlette.requests import ClientDisconnect

from service.errors import CallerLeft, TooLarge, TooSlow
from service.settings import Settings

Body = bytearray | mmap.mmap
MAPPED_BYTES = 1 << 20


async def read_body(request: Request, settings: Settings, grown: Callable[[int], None] | None = None) -> Body:
    """The whole body. Raises TooLarge (before a byte is read, where Content-Length tells), TooSlow, CallerLeft.

    Of a body without a known length `grown` is told, as it comes, how many bytes have come; it may raise to end it.
    """
    limit = settings.max_body_bytes
    declared = request.headers.get("content-length", "")
    length = int(declared) if declared.isdecimal() else None
    if length is not None and length > limit:
        raise _too_large(f"the body has {length} bytes", limit)
    # A large body of known length goes to its place as it comes and is never held twice; memory that is mapped costs
    # nothing until it is filled, however much a header claims.
    body: Body = bytearray() if length is None or length < MAPPED_BYTES else mmap.mmap(-1, length)
    came = 0
    try:
        async with asyncio.timeout(settings.body_timeout_seconds):
            async for chunk in request.stream():
                body[came : came + len(chunk)] = chunk
                came += len(chunk)
                if came > limit:
                    raise _too_large(f"{came} bytes of the body have come", limit)
                if length is None and grown is not None:
                    grown(came)
    except TimeoutError:
        raise TooSlow(
            f"{came} bytes of the body came in {settings.body_timeout_seconds:g} seconds, "
            "the limit body_timeout_seconds"
        ) from None
    except ClientDisconnect:
        raise CallerLeft("the caller left before its body was there") from None
    return body


def _too_large(what: str, limit: int) -> TooLarge:
    return TooLarge(f"{what}, the limit max_body_bytes is {limit}", code="body_too_large")

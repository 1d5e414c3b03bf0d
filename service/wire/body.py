"""Reading a request's body: into one buffer, up to a limit, in time."""

import asyncio

from fastapi import Request
from starlette.requests import ClientDisconnect

from service.errors import Malformed, TooLarge, TooSlow
from service.settings import Settings


async def read_body(request: Request, settings: Settings) -> bytearray:
    """The whole body. Raises TooLarge (before a byte is read, where Content-Length tells), TooSlow, Malformed."""
    limit = settings.max_body_bytes
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise _too_large(f"the body has {declared} bytes", limit)
    # where the length is known every byte goes to its place at once, and is never held twice
    body = bytearray(int(declared) if declared.isdecimal() else 0)
    came = 0
    try:
        async with asyncio.timeout(settings.body_timeout_seconds):
            async for chunk in request.stream():
                body[came : came + len(chunk)] = chunk
                came += len(chunk)
                if came > limit:
                    raise _too_large(f"{came} bytes of the body have come", limit)
    except TimeoutError:
        raise TooSlow(
            f"{came} bytes of the body came in {settings.body_timeout_seconds:g} seconds, "
            "the limit body_timeout_seconds"
        ) from None
    except ClientDisconnect:
        raise Malformed("the body broke off") from None
    del body[came:]
    return body


def _too_large(what: str, limit: int) -> TooLarge:
    return TooLarge(f"{what}, the limit max_body_bytes is {limit}", code="body_too_large")

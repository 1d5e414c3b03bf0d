"""Callers who leave before their answer is there."""

from fastapi import Request


async def until_disconnected(request: Request) -> None:
    """Wait until the caller has left. The body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass

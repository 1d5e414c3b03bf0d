"""Answers that go out piece by piece, at the pace at which the caller reads them."""

from collections.abc import AsyncGenerator, Sequence

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.errors import ServiceError

SEND_BYTES = 1 << 20

Piece = bytes | memoryview


class PiecesResponse(Response):
    """A body of several buffers that are all there, sent without joining or copying them."""

    def __init__(self, pieces: Sequence[Piece], media_type: str, headers: dict[str, str]) -> None:
        super().__init__(None, 200, headers, media_type)
        self._pieces = pieces
        self.headers["content-length"] = str(sum(len(piece) for piece in pieces))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _start(self, send)
        for piece in self._pieces:
            await _send(piece, send)
        await _end(send)


class StreamedResponse(Response):
    """A body of known length whose pieces come as they are made.

    If they stop with an error the body stays short, by which the client knows that it failed.
    """

    def __init__(
        self, pieces: AsyncGenerator[Piece, None], length: int, media_type: str, headers: dict[str, str]
    ) -> None:
        super().__init__(None, 200, headers, media_type)
        self._pieces = pieces
        self.headers["content-length"] = str(length)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await _start(self, send)
            async for piece in self._pieces:
                await _send(piece, send)
            await _end(send)
        except ServiceError as error:
            scope["state"]["log"]["code"] = error.code  # the rest does not come: the server breaks the connection
        finally:
            await self._pieces.aclose()


async def _start(response: Response, send: Send) -> None:
    await send({"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers})


async def _send(piece: Piece, send: Send) -> None:
    for first in range(0, len(piece), SEND_BYTES):
        part = piece[first : first + SEND_BYTES]
        await send({"type": "http.response.body", "body": part, "more_body": True})


async def _end(send: Send) -> None:
    await send({"type": "http.response.body", "body": b"", "more_body": False})

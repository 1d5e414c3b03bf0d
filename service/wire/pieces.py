"""An answer that goes out piece by piece, at the pace at which the caller reads it."""

from collections.abc import Sequence

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

SEND_BYTES = 1 << 20


class PiecesResponse(Response):
    """A body of several buffers, sent without joining or copying them."""

    def __init__(self, pieces: Sequence[bytes | memoryview], media_type: str, headers: dict[str, str]) -> None:
        super().__init__(None, 200, headers, media_type)
        self._pieces = pieces
        self.headers["content-length"] = str(sum(len(piece) for piece in pieces))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for piece in self._pieces:
            for first in range(0, len(piece), SEND_BYTES):
                part = piece[first : first + SEND_BYTES]
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

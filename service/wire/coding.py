"""Bodies that are packed for their way: Content-Encoding and Accept-Encoding (RFC 9110, 8.4 and 12.5.3)."""

import zlib
from collections.abc import Iterable, Iterator
from typing import Literal

from service.errors import Malformed, TooLarge, UnsupportedMediaType
from service.wire.body import Body
from service.wire.formats import with_quality
from service.wire.pieces import Piece

Coding = Literal["gzip", "deflate"]

_WINDOW: dict[Coding, int] = {"gzip": 31, "deflate": 15}  # deflate is the zlib format, as the RFC has it
_CODINGS: dict[str, Coding] = {"gzip": "gzip", "x-gzip": "gzip", "deflate": "deflate"}
_PACKED_BYTES = 1 << 16  # given to zlib at a time: it copies what it leaves of them
_UNPACKED_BYTES = 1 << 20  # taken from zlib at a time
_LEVEL = 1  # numbers get hardly smaller with more work


def coding_of_body(content_encoding: str | None) -> Coding | None:
    """The coding that a Content-Encoding header names; None where the body is as it is."""
    name = (content_encoding or "identity").strip().lower()
    if name == "identity":
        return None
    if name not in _CODINGS:
        raise UnsupportedMediaType(f"Content-Encoding must be gzip, deflate or identity; {name[:80]!r} came")
    return _CODINGS[name]


def coding_of_answer(accept_encoding: str | None) -> Coding | None:
    """The coding that an Accept-Encoding header asks for by its name, unless it likes identity better."""
    asked: dict[Coding | None, float] = {}
    for part in (accept_encoding or "").split(","):
        name, quality = with_quality(part)
        if name == "identity":
            asked[None] = quality
        elif name in _CODINGS and quality > 0:
            asked[_CODINGS[name]] = quality
    # where two are liked as much: gzip, then deflate, then identity
    return max((*_WINDOW, None), key=lambda coding: asked.get(coding, 0.0)) if asked else None


def unpacked(body: Body, coding: Coding | None, limit: int) -> Body:
    """The body that a packed one holds, of at most `limit` bytes. Raises TooLarge or Malformed."""
    if coding is None:
        return body
    unpacker = zlib.decompressobj(_WINDOW[coding])
    whole = bytearray()
    try:
        for first in range(0, len(body), _PACKED_BYTES):
            part: bytes | memoryview = memoryview(body)[first : first + _PACKED_BYTES]
            while part and not unpacker.eof:
                whole += unpacker.decompress(part, _UNPACKED_BYTES)
                if len(whole) > limit:
                    raise TooLarge(
                        f"{len(whole)} bytes of the body are unpacked, the limit max_body_bytes is {limit}",
                        code="body_too_large",
                    )
                part = unpacker.unconsumed_tail
            # a gzip file may have several members; a body of very many tiny ones would cost minutes
            if part or unpacker.unused_data:
                raise Malformed(f"the {coding} body goes on behind its end")
    except zlib.error as error:
        raise Malformed(f"the body is not {coding}: {error}") from None
    if not unpacker.eof:
        raise Malformed(f"the {coding} body breaks off")
    return whole


def packed(pieces: Iterable[Piece], coding: Coding) -> Iterator[bytes]:
    """The pieces of a body, packed."""
    packer = zlib.compressobj(_LEVEL, wbits=_WINDOW[coding])
    for piece in pieces:
        for first in range(0, len(piece), _UNPACKED_BYTES):
            yield packer.compress(piece[first : first + _UNPACKED_BYTES])
    yield packer.flush()

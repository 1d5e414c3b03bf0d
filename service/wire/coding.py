"""Bodies that are packed for their way: Content-Encoding and Accept-Encoding (RFC 9110, 8.4 and 12.5.3)."""

import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, Protocol

from service.errors import Malformed, TooLarge, UnsupportedMediaType
from service.wire.body import Body
from service.wire.formats import with_quality
from service.wire.pieces import Piece

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd  # the same module, from before it was in the standard library

Coding = Literal["zstd", "gzip", "deflate"]

# where a caller likes several as much, the first: zstd packs twenty times as fast as the other two
_CODINGS: dict[str, Coding] = {"zstd": "zstd", "gzip": "gzip", "x-gzip": "gzip", "deflate": "deflate"}
_WINDOW: dict[Coding, int] = {"gzip": 31, "deflate": 15}  # deflate is the zlib format, as the RFC has it
_ZSTD_WINDOW_LOG = 23  # 8 MiB: what RFC 9659 lets a body need
_PACKED_BYTES = 1 << 16  # given to the unpacker at a time: it copies what it leaves of them
_UNPACKED_BYTES = 1 << 20  # taken from it at a time, for 4 bytes of zstd may stand for 128 KiB
_LEVEL = 1  # numbers get hardly smaller with more work


def coding_of_body(content_encoding: str | None) -> Coding | None:
    """The coding that a Content-Encoding header names; None where the body is as it is."""
    name = (content_encoding or "identity").strip().lower()
    if name == "identity":
        return None
    if name not in _CODINGS:
        raise UnsupportedMediaType(f"Content-Encoding must be zstd, gzip, deflate or identity; {name[:80]!r} came")
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
    return max((*_CODINGS.values(), None), key=lambda coding: asked.get(coding, 0.0)) if asked else None


def unpacked(body: Body, coding: Coding | None, limit: int, grown: Callable[[int], None] | None = None) -> Body:
    """The body that a packed one holds, of at most `limit` bytes. Raises TooLarge or Malformed.

    `grown` is told the bytes unpacked so far after each part, of at most 1 MiB, and may raise to end it.
    """
    if coding is None:
        return body
    whole = bytearray()
    for part in _unpacked_parts(body, coding):
        whole += part
        if len(whole) > limit:
            raise TooLarge(
                f"{len(whole)} bytes of the body are unpacked, the limit max_body_bytes is {limit}",
                code="body_too_large",
            )
        if grown is not None:
            grown(len(whole))
    return whole


def packed(pieces: Iterable[Piece], coding: Coding) -> Iterator[bytes]:
    """The pieces of a body, packed."""
    packer = zstd.ZstdCompressor(_LEVEL) if coding == "zstd" else zlib.compressobj(_LEVEL, wbits=_WINDOW[coding])
    for piece in pieces:
        for first in range(0, len(piece), _UNPACKED_BYTES):
            yield packer.compress(piece[first : first + _UNPACKED_BYTES])
    yield packer.flush()


# --- unpacking, in parts


class _Unpacker(Protocol):
    """One member or frame; `unused_data` is what came behind its end."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def parts(self, packed: memoryview) -> Iterator[bytes]: ...


class _Zlib:
    def __init__(self, coding: Coding) -> None:
        self._inner = zlib.decompressobj(_WINDOW[coding])

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def parts(self, packed: memoryview) -> Iterator[bytes]:
        left: bytes | memoryview = packed
        while left and not self._inner.eof:
            yield self._inner.decompress(left, _UNPACKED_BYTES)
            left = self._inner.unconsumed_tail


class _Zstd:
    def __init__(self) -> None:
        self._inner = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG})

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def parts(self, packed: memoryview) -> Iterator[bytes]:
        yield self._inner.decompress(packed, _UNPACKED_BYTES)
        while not self._inner.eof and not self._inner.needs_input:
            yield self._inner.decompress(b"", _UNPACKED_BYTES)


def _unpacked_parts(body: Body, coding: Coding) -> Iterator[bytes]:
    unpacker: _Unpacker = _Zstd() if coding == "zstd" else _Zlib(coding)
    try:
        for first in range(0, len(body), _PACKED_BYTES):
            # a body may have several members or frames; one of very many tiny ones would cost minutes
            if unpacker.eof:
                raise Malformed(f"the {coding} body goes on behind its end")
            yield from unpacker.parts(memoryview(body)[first : first + _PACKED_BYTES])
            if unpacker.unused_data:
                raise Malformed(f"the {coding} body goes on behind its end")
    except (zlib.error, zstd.ZstdError) as error:
        raise Malformed(f"the body is not {coding}: {error}") from None
    if not unpacker.eof:
        raise Malformed(f"the {coding} body breaks off")

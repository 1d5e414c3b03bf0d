"""A JSON body to objects, its long lists of numbers to arrays, in pieces: no step holds the interpreter for long.

A parser is fast, and yet it holds the interpreter until it is through: a body of 100 MB would stop every other thread
of the process, probes included, for seconds. So in a large body the long lists without texts and objects in them are
found first and parsed a piece at a time; the parser gets the small rest, with a name in the place of each.
"""

import re
import secrets
from typing import Any

import numpy as np
import orjson

from service.errors import Malformed
from service.wire.body import Body
from service.wire.json_lists import Floats, Irregular, Numbers, flat_of, rows_of

LARGE_BYTES = 1 << 20  # of a body that is read in pieces
LONG_BYTES = 1 << 17  # of a list of numbers that is parsed apart
PIECE_BYTES = 1 << 17  # that are searched or parsed at a time: half a millisecond

# where a list of numbers is an array, in the calls of this service and of the Open Inference Protocol
ARRAY_KEYS = frozenset({"x", "inputs_embeds", "tokens", "positions", "data"})

_TEXT_OR_LIST = re.compile(rb'["\[]')
_BARE = re.compile(rb'[^"{}]*')  # what can stand in a list without texts and objects
_BLANK = re.compile(rb"\s*")


def loads(body: bytes | Body, what: str) -> Any:
    """The value of a JSON text; long lists of numbers in it are arrays, Floats or Irregular. Raises Malformed."""
    if not body:
        raise Malformed(f"{what} is empty")
    if len(body) < LARGE_BYTES:
        return _parse(memoryview(body), what)
    return _Reader(body, what).read()


def _parse(text: bytes | bytearray | memoryview, what: str, offset: int = 0) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        where = f" (after byte {offset})" if offset else ""
        raise Malformed(f"{what} is not JSON: {error}{where}") from None


class _Reader:
    """One large body. `read` goes over it once."""

    def __init__(self, body: bytes | Body, what: str) -> None:
        self._body, self._what = body, what
        self._secret = f"headwater:{secrets.token_hex(16)}:"
        self._lists: dict[str, tuple[int, int, int]] = {}

    def read(self) -> Any:
        rest: list[bytes | bytearray] = []
        at = copied = 0
        while (at := self._next_text_or_list(at)) < len(self._body):
            if self._body[at] == ord('"'):
                at = self._end_of_text(at)
                continue
            end, depth = self._end_of_list(at)
            if depth and end - at >= LONG_BYTES:
                name = f"{self._secret}{len(self._lists)}"
                self._lists[name] = at, end, depth
                rest += (self._body[copied:at], orjson.dumps(name))
                copied = end
            at = end
        rest.append(self._body[copied:])
        parsed = _parse(b"".join(rest), self._what)
        try:
            return self._named(parsed) if self._lists else parsed
        except RecursionError:
            raise Malformed(f"{self._what} is nested too deep") from None

    def _next_text_or_list(self, at: int) -> int:
        while at < len(self._body):
            if found := _TEXT_OR_LIST.search(self._body, at, at + PIECE_BYTES):
                return found.start()
            at += PIECE_BYTES
        return len(self._body)

    def _end_of_text(self, at: int) -> int:
        """Behind the quote that ends a text: the first with an even number of backslashes before it."""
        end = at
        while (end := self._body.find(b'"', end + 1)) >= 0:
            first = end
            while self._body[first - 1] == ord("\\"):
                first -= 1
            if (end - first) % 2 == 0:
                return end + 1
        return len(self._body)

    def _end_of_list(self, at: int) -> tuple[int, int]:
        """Behind the bracket that closes the list at `at`, and how deep it is nested.

        If a text or an object comes first, or the end of the body, the place where it does, and 0: no list that begins
        before that place is looked at again, so that the time is linear whatever comes.
        """
        end, depth, deepest = at, 0, 0
        while (match := _BARE.match(self._body, end, end + PIECE_BYTES)) and match.end() > end:
            characters = np.frombuffer(self._body, np.uint8, match.end() - end, end)
            depths = depth + np.cumsum((characters == ord("[")).astype(np.int32) - (characters == ord("]")))
            closed = np.flatnonzero(depths == 0)
            if closed.size:
                return end + int(closed[0]) + 1, max(deepest, int(depths[: closed[0] + 1].max()))
            end, depth, deepest = match.end(), int(depths[-1]), max(deepest, int(depths.max()))
        return end, 0

    def _list(self, at: int, end: int, depth: int) -> Numbers | Floats | Irregular:
        """The array of a long list of numbers, or of rows of them."""
        if depth > 2:
            return Irregular("", f"must be a list of rows of numbers, and is nested {depth} deep")
        rows = depth == 2
        mark = b"]" if rows else b","
        parts: list[Any] = []
        no_integer: Irregular | None = None
        count, width = 0, None
        first, last = at + 1, end - 1
        while first <= last:
            cut = self._body.find(mark, first + PIECE_BYTES, last)
            stop = last if cut < 0 else cut + rows
            piece = self._body[first:stop]
            if not piece.strip():
                raise Malformed(f"{self._what} is not JSON: a list lacks a value before byte {stop}")
            values = _parse(b"[" + piece + b"]", self._what, first)
            part = rows_of(values, count, width) if rows else flat_of(values, count)
            if isinstance(part, Irregular):
                return part
            if isinstance(part, Floats):
                no_integer = no_integer or part.no_integer
                part = part.numbers
            parts.append(part)
            count += len(part)
            width = part.shape[1] if rows else None
            first = _after_blank(self._body, stop)
            if first < last and self._body[first] != ord(","):
                raise Malformed(f"{self._what} is not JSON: a comma is missing at byte {first}")
            first += 1
        array = np.concatenate(parts)
        return array if no_integer is None else Floats(array, no_integer)

    def _named(self, value: Any, key: str = "") -> Any:
        """The parsed rest with the lists in the places of their names; arrays where one belongs under `key`."""
        match value:
            case str() if value.startswith(self._secret):
                at, end, depth = self._lists[value]
                if key in ARRAY_KEYS:
                    return self._list(at, end, depth)
                return _parse(self._body[at:end], self._what, at)
            case list():
                return [self._named(one) for one in value]
            case dict():
                return {key: self._named(one, key) for key, one in value.items()}
            case _:
                return value


def _after_blank(body: bytes | Body, at: int) -> int:
    found = _BLANK.match(body, at)
    assert found is not None
    return found.end()

"""A JSON body to objects, its long lists of numbers to arrays, in pieces: no step holds the interpreter for long.

A parser is fast, and yet it holds the interpreter until it is through: a body of 100 MB would stop every other thread
of the process, probes included, for seconds. So in a large body the long texts, and the long lists without texts and
objects in them, are found first and parsed apart, lists a piece at a time; the parser gets the small rest, with a name
in the place of each. A rest that is not small is refused: no call of this service has one.
"""

import json
import re
import secrets
from typing import Any

import numpy as np
import orjson

from service.errors import Malformed, TooLarge, invalid
from service.wire.body import Body
from service.wire.json_lists import Floats, Irregular, Numbers, flat_of, rows_of

LARGE_BYTES = 1 << 20  # of a body that is read in pieces
LONG_BYTES = 1 << 8  # of a list of numbers, or a text, that is parsed apart
PIECE_BYTES = 1 << 17  # that are searched or parsed at a time: half a millisecond
REST_BYTES = 4 << 20  # of what is left, which is parsed in one go
MIXED_BYTES = 1 << 17  # of numbers in a list before a text or an object: it is no list of any call
TEXT_BYTES = 16 << 20  # of a text, which is parsed in one go
MAX_PARTS = 100_000  # texts and lists that are looked at one by one: about a second

# where a list of numbers is an array, in the calls of this service and of the Open Inference Protocol
ARRAY_KEYS = frozenset({"x", "inputs_embeds", "tokens", "positions", "data"})

# Short texts and lists, and what is between, up to one that is looked at by itself.
_PASSED_OVER = re.compile(rb'(?:[^"\[]++|"[^"\\]{0,64}+"|\[[^"\[\]{}]{0,64}+\])*+')
_IN_TEXT = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_FIRST_BYTES = 1 << 10  # of a list that are searched first: most are short
_BARE = re.compile(rb'[^"{}]*')  # what can stand in a list without texts and objects
_BLANK = re.compile(rb"\s*")


def loads(body: bytes | Body, what: str) -> Any:
    """The value of a JSON text; long lists of numbers in it are arrays, Floats or Irregular.

    Raises Malformed, for two equal keys in an object too; TooLarge or Unprocessable for a large body that no call has.
    """
    if not body:
        raise Malformed(f"{what} is empty")
    if len(body) < LARGE_BYTES:
        text = bytes(body)
        return _without_repeats(text, _parse(text, what), what)
    return _Reader(body, what).read()


def _parse(text: bytes | bytearray, what: str, offset: int = 0) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        where = f" (after byte {offset})" if offset else ""
        raise Malformed(f"{what} is not JSON: {error}{where}") from None


def _without_repeats(text: bytes, parsed: Any, what: str) -> Any:
    """What was parsed of a text. Raises Malformed where an object has a key twice.

    The parser takes the last of them in silence. Every key has a colon behind it: so if there are as many colons as
    keys were parsed, none was twice; else, for colons stand in texts too, a slower parser looks.
    """

    def unlike(pairs: list[tuple[str, Any]]) -> None:
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise Malformed(f"{what} has the key {key!r:.80} twice in one object")
            seen.add(key)

    try:
        if text.count(b":") != _count_keys(parsed):
            json.loads(text, object_pairs_hook=unlike)
    except RecursionError:
        raise Malformed(f"{what} is nested too deep") from None
    return parsed


def _count_keys(value: Any) -> int:
    """The keys of all objects; those in a list that does not begin with an object or a list are not looked for."""
    if isinstance(value, dict):
        return len(value) + sum(map(_count_keys, value.values()))
    if isinstance(value, list) and value and isinstance(value[0], (dict, list)):
        return sum(map(_count_keys, value))
    return 0


class _Reader:
    """One large body. `read` goes over it once."""

    def __init__(self, body: bytes | Body, what: str) -> None:
        self._body, self._what = body, what
        self._secret = f"headwater:{secrets.token_hex(16)}:"
        self._apart: list[tuple[int, int, int]] = []  # where each begins and ends, and how deep; 0 is a text
        self._in_one_go = 0

    def read(self) -> Any:
        rest: list[bytes | bytearray] = []
        at = copied = parts = 0
        while (at := self._passed_over(at)) < len(self._body):
            parts += 1
            if parts > MAX_PARTS:
                raise TooLarge(f"{self._what} has more than {MAX_PARTS} texts and lists between others")
            if self._body[at] == ord('"'):
                end, depth = self._end_of_text(at), 0
                apart = end - at >= LONG_BYTES
            else:
                end, depth = self._end_of_list(at)
                apart = depth > 0 and end - at >= LONG_BYTES
                if not depth and end - at >= MIXED_BYTES:
                    self._refuse_mixed(at, end)
            if apart:
                self._spend(at - copied)
                rest += (self._body[copied:at], orjson.dumps(f"{self._secret}{len(self._apart)}"))
                self._apart.append((at, end, depth))
                copied = end
            elif end - copied > REST_BYTES:
                break
            at = end
        self._spend(len(self._body) - copied)
        rest.append(self._body[copied:])
        text = b"".join(rest)
        parsed = _without_repeats(text, _parse(text, self._what), self._what)
        try:
            return self._named(parsed) if self._apart else parsed
        except RecursionError:
            raise Malformed(f"{self._what} is nested too deep") from None

    def _spend(self, size: int) -> None:
        """So many bytes more are parsed in one go."""
        self._in_one_go += size
        if self._in_one_go > REST_BYTES:
            raise TooLarge(
                f"{self._what} has more than {REST_BYTES} bytes beside its long texts and the long lists of numbers "
                "of its arrays, the limit for them"
            )

    def _refuse_mixed(self, at: int, end: int) -> None:
        if end == len(self._body) or self._body[end] == ord("}"):
            raise Malformed(f"{self._what} is not JSON: the list that begins at byte {at} does not end before {end}")
        raise invalid("", f"the list that begins at byte {at} of {self._what} has a text or an object at byte {end}")

    def _passed_over(self, at: int) -> int:
        """The place of the next text or list that has to be looked at, or the end of the body."""
        while at < len(self._body):
            found = _PASSED_OVER.match(self._body, at, at + PIECE_BYTES)
            assert found is not None
            at = found.end()
            if found.end() - found.start() < PIECE_BYTES:
                break
        return at

    def _end_of_text(self, at: int) -> int:
        """Behind the quote that ends the text at `at`, or the end of the body."""
        end = at + 1
        while end < len(self._body) and (match := _IN_TEXT.match(self._body, end, end + PIECE_BYTES)):
            begin, end = end, match.end()
            if end < len(self._body) and self._body[end] == ord('"'):
                return end + 1
            if end == begin:
                break  # a backslash is the last byte
            if end - at > TEXT_BYTES:
                raise TooLarge(f"{self._what} has a text of over {TEXT_BYTES} bytes, the limit of one")
        return len(self._body)

    def _end_of_list(self, at: int) -> tuple[int, int]:
        """Behind the bracket that closes the list at `at`, and how deep it is nested.

        If a text or an object comes first, or the end of the body, the place where it does, and 0: no list that begins
        before that place is looked at again, so that the time is linear whatever comes.
        """
        end, depth, deepest = at, 0, 0
        window = min(_FIRST_BYTES, PIECE_BYTES)
        while (match := _BARE.match(self._body, end, end + window)) and match.end() > end:
            window = min(4 * window, PIECE_BYTES)
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
            if stop - first > PIECE_BYTES + REST_BYTES:
                what = "row" if rows else "number"
                return Irregular(f"/{count}", f"is a {what} of over {REST_BYTES} bytes, the limit of one")
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
        """The parsed rest with texts and lists in the places of their names; arrays where one belongs under `key`."""
        match value:
            case str() if value.startswith(self._secret):
                at, end, depth = self._apart[int(value.removeprefix(self._secret))]
                if depth and key in ARRAY_KEYS:
                    return self._list(at, end, depth)
                if depth:
                    self._spend(end - at)
                return _parse(self._body[at:end], self._what, at)
            case list():
                return [self._named(one) for one in value]
            case dict():
                keys = {key: self._named(key) if key.startswith(self._secret) else key for key in value}
                if len(set(keys.values())) < len(keys):
                    raise Malformed(f"{self._what} has a key of over {LONG_BYTES} bytes twice in one object")
                return {keys[key]: self._named(one, keys[key]) for key, one in value.items()}
            case _:
                return value


def _after_blank(body: bytes | Body, at: int) -> int:
    while (found := _BLANK.match(body, at, at + PIECE_BYTES)) and found.end() - at == PIECE_BYTES:
        at = found.end()
    assert found is not None
    return found.end()

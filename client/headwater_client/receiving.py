"""Bodies as they arrive, piece by piece: into one buffer for all, or into one for each tensor. No network in here."""

from collections import deque
from collections.abc import Iterator

import numpy as np

from headwater_client.errors import BrokenAnswer
from headwater_client.safetensors import Entry, Header, header_length, read_header
from headwater_client.tensors import Array, Tensor


class WholeBody:
    """One buffer for a body; of the announced length where there is one, so that nothing is copied twice."""

    def __init__(self, length: int | None) -> None:
        self._length = length
        self._buffer: Array = np.empty(length or 0, np.uint8)
        self._filled = 0

    def add(self, piece: bytes) -> None:
        """The next bytes. Raises BrokenAnswer where they are more than was announced."""
        end = self._filled + len(piece)
        if end > len(self._buffer):
            if self._length is not None:
                raise BrokenAnswer(f"more than the {self._length} bytes came that were announced")
            grown = np.empty(max(end, 2 * len(self._buffer)), np.uint8)
            grown[: self._filled] = self._buffer[: self._filled]
            self._buffer = grown
        self._buffer[self._filled : end] = np.frombuffer(piece, np.uint8)
        self._filled = end

    def whole(self) -> Array:
        """The body, uint8 [bytes]. Raises BrokenAnswer where it is shorter than was announced."""
        if self._length is not None and self._filled != self._length:
            raise BrokenAnswer(f"the answer ended after {self._filled} of {self._length} bytes")
        return self._buffer[: self._filled]


class TensorsOneByOne:
    """Gives each tensor of a body as soon as its last byte is there; holds one at a time."""

    def __init__(self) -> None:
        self.header: Header | None = None
        self._waiting: deque[Entry] = deque()
        self._start = bytearray()  # until the header is whole
        self._buffer: Array = np.empty(0, np.uint8)
        self._filled = 0
        self._came = 0

    def feed(self, piece: bytes) -> Iterator[tuple[str, Tensor]]:
        """The tensors that these bytes complete, in the order in which they were made. Raises BrokenAnswer."""
        self._came += len(piece)
        rest = memoryview(piece)
        if self.header is None:
            self._start += piece
            rest = self._after_header()
        yield from self._empty_tensors()
        while rest and self._waiting:
            taken = rest[: len(self._buffer) - self._filled]
            rest = rest[len(taken) :]
            self._buffer[self._filled : self._filled + len(taken)] = np.frombuffer(taken, np.uint8)
            self._filled += len(taken)
            if self._filled == len(self._buffer):
                yield self._take()
                yield from self._empty_tensors()
        if rest:
            raise BrokenAnswer("more bytes came than the header announced")

    def finish(self) -> None:
        """The body has ended. Raises BrokenAnswer where that is too early."""
        if self.header is None:
            raise BrokenAnswer(f"the answer ended after {self._came} bytes, within its header")
        if self._waiting:
            total, left = len(self.header.entries), len(self._waiting)
            raise BrokenAnswer(
                f"the answer ended after {total - left} of {total} tensors, in {self._waiting[0].name!r}"
            )

    def _after_header(self) -> memoryview:
        if len(self._start) < 8:
            return memoryview(b"")
        end = 8 + header_length(bytes(self._start[:8]))
        if len(self._start) < end:
            return memoryview(b"")
        self.header = read_header(bytes(self._start[8:end]))
        self._waiting.extend(self.header.entries)
        rest = bytes(self._start[end:])
        self._start.clear()
        self._next_buffer()
        return memoryview(rest)

    def _next_buffer(self) -> None:
        self._filled = 0
        self._buffer = np.empty(self._waiting[0].end - self._waiting[0].begin if self._waiting else 0, np.uint8)

    def _take(self) -> tuple[str, Tensor]:
        entry, buffer = self._waiting.popleft(), self._buffer
        self._next_buffer()
        return entry.name, entry.tensor(buffer)

    def _empty_tensors(self) -> Iterator[tuple[str, Tensor]]:
        while self._waiting and self._waiting[0].begin == self._waiting[0].end:
            yield self._take()

"""A call over a plain socket, with a clock on every byte, and a server that has its answer ready.

No client library stands between the socket and the clock, so what is measured is the server and the kernel.
`ready_made` answers the same calls with bytes that lie in its memory: the most that one socket carries on this machine.
"""

import json
import multiprocessing
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

ROOM_BYTES = 512 << 20
_SEND_BYTES = 1 << 20


class Reader:
    """A place for answers that is touched before any clock runs; each call overwrites the one before."""

    def __init__(self) -> None:
        self.room = memoryview(bytearray(b"\1") * ROOM_BYTES)

    def call(
        self, port: int, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None, pause: float = 0.0
    ) -> "Timed":
        """Post a body and read the answer, `pause` seconds after it was sent; the clock runs from then."""
        head = f"POST {path} HTTP/1.1\r\nHost: bench\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        with socket.create_connection(("127.0.0.1", port), timeout=600) as connection:
            began = time.perf_counter()
            connection.sendall(f"{head}\r\n".encode())
            connection.sendall(body)
            if pause:
                time.sleep(pause)
                began = time.perf_counter()
            marks: list[tuple[int, float]] = []
            came = 0
            while n := connection.recv_into(self.room[came:]):
                came += n
                marks.append((came, time.perf_counter() - began))
        head_end = bytes(self.room[:65536]).index(b"\r\n\r\n") + 4
        answer = Timed(self.room[head_end:came], [(at - head_end, seconds) for at, seconds in marks])
        status, *lines = bytes(self.room[: head_end - 4]).decode().split("\r\n")
        assert " 200 " in status, bytes(answer.body[:500])
        length = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}["content-length"]
        assert int(length) == len(answer.body), f"{len(answer.body)} bytes came of {length}"
        return answer


@dataclass(frozen=True)
class Timed:
    """An answer's body, and after how many seconds how many bytes of it were there."""

    body: memoryview
    marks: list[tuple[int, float]]

    def seconds_to(self, count: int) -> float:
        """When so many bytes of the body were there."""
        return next(seconds for came, seconds in self.marks if came >= count)

    @property
    def seconds(self) -> float:
        """When all of it was there."""
        return self.seconds_to(len(self.body))

    def tensor_ends(self) -> list[int]:
        """Of a safetensors body, the byte behind its header, and behind each tensor."""
        size = 8 + int.from_bytes(self.body[:8], "little")
        header: dict[str, Any] = json.loads(bytes(self.body[8:size]))
        return [size, *sorted(size + header[name]["data_offsets"][1] for name in header if name != "__metadata__")]


@contextmanager
def ready_made(count: int) -> Iterator[int]:
    """A process that answers any call with so many bytes; its port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        process = multiprocessing.get_context("fork").Process(target=_answer_all, args=(listening, count), daemon=True)
        process.start()
        try:
            yield listening.getsockname()[1]
        finally:
            process.terminate()
            process.join()


def _answer_all(listening: socket.socket, count: int) -> None:
    body = memoryview(bytearray(b"\1") * count)
    while True:
        connection, _ = listening.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {count}\r\n\r\n".encode())
            for first in range(0, count, _SEND_BYTES):
                connection.sendall(body[first : first + _SEND_BYTES])

"""Asks for the health of a service every so often: a process of its own, run as a script, that imports next to nothing.

    python prober.py PORT SECONDS

until stdin ends; then stdout has one line a probe: path, when it was due, when this process was woken for it, when the
answer was there (seconds of the monotonic clock), status (0: none came). A probe that comes late because the one before
was not yet answered has waited since it was due; being woken late is the machine's doing, and stands apart.
"""

import select
import socket
import sys
import time

PATHS = ("/livez", "/readyz")
ANSWER_SECONDS = 30.0


def main(port: int, every: float) -> None:
    """Probe until stdin ends."""
    lines: list[str] = []
    connection: socket.socket | None = None
    due = time.monotonic()
    print("probing", flush=True)
    while True:
        early = due - time.monotonic()
        if select.select([sys.stdin], [], [], max(early, 0.0))[0]:
            break
        # where there was nothing to sleep, it is the answer before this one that made it late
        woken = time.monotonic() if early > 0 else due
        path = PATHS[len(lines) % len(PATHS)]
        try:
            if connection is None:
                connection = socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            status, stays = probe(connection, path)
        except OSError:
            status, stays = 0, False
        answered = time.monotonic()
        if not stays and connection is not None:
            connection.close()
            connection = None
        lines.append(f"{path} {due:.6f} {woken:.6f} {answered:.6f} {status}")
        due += every
    print("\n".join(lines))
    if connection is not None:
        connection.close()


def probe(connection: socket.socket, path: str) -> tuple[int, bool]:
    """The status of one answer, 0 where the connection ended before, and whether the connection stays."""
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: probe\r\n\r\n".encode())
    came = b""
    while b"\r\n\r\n" not in came:
        part = connection.recv(65536)
        if not part:
            return 0, False
        came += part
    head, _, body = came.partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    length = int(next((line[15:] for line in lines if line.startswith(b"content-length:")), b"0"))
    while len(body) < length:
        part = connection.recv(65536)
        if not part:
            return 0, False
        body += part
    return int(lines[0][9:12]), b"connection: close" not in lines


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))

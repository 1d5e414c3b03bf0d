"""Callers who leave before or while their body comes stand in the log as such, and nothing more is taken from them."""

import json
import socket
import time
from contextlib import suppress

import pytest

from tests.server import Server

HEAD = b"POST /forward HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
HEAD += b"X-Request-Id: %s\r\nContent-Length: %d\r\n\r\n"


@pytest.mark.parametrize("came", [b"", b'{"tokens": [1'])
def test_a_caller_who_leaves_while_its_body_comes_has_left_and_sent_nothing_wrong(
    tiny_server: Server, came: bytes
) -> None:
    name = b"left-in-body-%d" % len(came)
    with socket.create_connection(("127.0.0.1", tiny_server.port), timeout=10) as connection:
        connection.sendall(HEAD % (name, 100) + came)
    line = json.loads(tiny_server.wait_for_line(f'"{name.decode()}"'))
    assert (line["status"], line["code"]) == (499, "caller_left")


def test_little_is_taken_of_a_body_that_was_refused(limited_server: Server) -> None:
    """Its head says that it is too large; whoever sends it all the same is cut off after a little more than 1 MiB."""
    with socket.create_connection(("127.0.0.1", limited_server.port), timeout=10) as connection:
        connection.sendall(HEAD % (b"far-too-large", 10**12))
        assert connection.recv(100).startswith(b"HTTP/1.1 413")
        sent, deadline = 0, time.monotonic() + 20
        with suppress(OSError):  # until it is cut off
            while time.monotonic() < deadline:
                sent += connection.send(bytes(1 << 16))
    assert 0 < sent < 64 << 20  # what lies in the kernel's buffers on the way counts as sent

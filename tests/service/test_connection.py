"""Callers who hold a connection: with a head that does not end, an answer that they do not read, what is no HTTP."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import safetensors.numpy

from tests.server import Server, serving
from tests.service.calls import SAFETENSORS, rows

HEADER_SECONDS, SEND_SECONDS = 0.6, 0.5
GET = b"GET /livez HTTP/1.1\r\nHost: h\r\n\r\n"
OPEN = b"POST /forward HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def server(tiny_directory: Path) -> Iterator[Server]:
    timeouts = ("--header-timeout-seconds", str(HEADER_SECONDS), "--send-timeout-seconds", str(SEND_SECONDS))
    with serving(tiny_directory, "--threads", "1", *timeouts) as running:
        yield running


@contextmanager
def connected(server: Server) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        yield connection


def until_closed(connection: socket.socket) -> bytes:
    """All that comes until the server closes."""
    came = b""
    while part := connection.recv(1 << 16):
        came += part
    return came


def one_answer(connection: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the next answer, which has a Content-Length; the connection stays."""
    came = b""
    while b"\r\n\r\n" not in came:
        came += connection.recv(1)
    head, _, body = came.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    while len(body) < int(headers["content-length"]):
        body += connection.recv(int(headers["content-length"]) - len(body))
    return int(status.split()[1]), headers, body


def only_problem(connection: socket.socket) -> dict[str, Any]:
    """The problem that is the last answer of a connection, which the server then closes."""
    status, headers, body = one_answer(connection)
    assert headers["content-type"] == "application/problem+json"
    assert headers["connection"] == "close"
    assert headers["x-request-id"]
    assert until_closed(connection) == b""
    problem: dict[str, Any] = json.loads(body)
    assert problem["status"] == status
    return problem


def still_there(server: Server) -> None:
    with server.client() as client:
        assert client.get("/livez").status_code == 200


# --- heads that do not end


def test_who_sends_nothing_is_not_waited_for(server: Server) -> None:
    with connected(server) as connection:
        began = time.monotonic()
        assert until_closed(connection) == b""
        assert HEADER_SECONDS / 2 < time.monotonic() - began < 10


def test_a_head_that_comes_byte_by_byte_is_ended_by_the_header_timeout(server: Server) -> None:
    with connected(server) as connection:
        connection.settimeout(HEADER_SECONDS / 6)
        began, came = time.monotonic(), b""
        connection.sendall(GET[:-4])
        while not came and time.monotonic() - began < 20:
            connection.sendall(b"a")  # each byte comes well within the timeout
            try:
                came = connection.recv(1 << 16)
            except TimeoutError:
                continue
        assert time.monotonic() - began < 10
    assert came.startswith(b"HTTP/1.1 408 ")
    assert b'"header_timeout"' in came
    assert b"header_timeout_seconds" in came


def test_the_next_head_on_a_connection_has_as_long_as_the_first(server: Server) -> None:
    with connected(server) as connection:
        for _ in range(3):
            connection.sendall(GET)
            assert one_answer(connection)[0] == 200
        connection.sendall(GET[:9])
        assert only_problem(connection)["code"] == "header_timeout"


def test_blank_lines_do_not_keep_a_connection(server: Server) -> None:
    with connected(server) as connection:
        connection.sendall(GET)
        assert one_answer(connection)[0] == 200
        connection.sendall(b"\r\n")
        assert until_closed(connection) == b""


def test_the_rest_of_a_body_that_has_been_refused_is_not_waited_for(server: Server) -> None:
    with connected(server) as connection:
        connection.sendall(b"POST /forward HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\n{")
        assert one_answer(connection)[0] == 415
        began = time.monotonic()
        assert until_closed(connection) == b""
        assert time.monotonic() - began < 4, "uvicorn's own timeout is 5 seconds, and one byte ends it"


def test_a_body_that_comes_slowly_is_no_slow_head(server: Server) -> None:
    body = b'{"tokens": [1, 2]}'
    with connected(server) as connection:
        connection.sendall(OPEN + f"Content-Length: {len(body)}\r\n\r\n".encode() + body[:5])
        connection.settimeout(2 * HEADER_SECONDS)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.settimeout(20)
        connection.sendall(body[5:])
        assert one_answer(connection)[0] == 200


# --- heads that are too large


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /livez HTTP/1.1\r\n" + b"".join(b"a%d: b\r\n" % i for i in range(101)) + b"\r\n",
        b"GET /livez HTTP/1.1\r\na: " + b"b" * 66_000 + b"\r\n\r\n",
        b"GET /livez HTTP/1.1\r\na: " + b"b" * 66_000,
        b"GET /" + b"a" * 66_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /" + b"a" * 66_000,
        b"GET /livez HTTP/1.1\r\n" + b"a: b\r\n" * 12_000,
    ],
    ids=["101 headers", "a long header", "no end of a header", "a long path", "no end of a path", "no end of headers"],
)
def test_a_head_over_the_bounds_is_a_431(server: Server, sent: bytes) -> None:
    with connected(server) as connection:
        connection.sendall(sent)
        problem = only_problem(connection)
    assert (problem["status"], problem["code"]) == (431, "head_too_large")
    assert any(limit in problem["detail"] for limit in ("65536 bytes", "100 headers"))
    still_there(server)


def test_a_head_within_the_bounds_is_answered(server: Server) -> None:
    with connected(server) as connection:
        headers = b"".join(b"a%d: %s\r\n" % (i, b"b" * 600) for i in range(99))
        connection.sendall(b"GET /livez HTTP/1.1\r\nHost: h\r\n" + headers + b"\r\n")
        assert one_answer(connection)[0] == 200


@pytest.mark.parametrize("endless", [b"a: b\r\n" * 90_000, b"a: " + b"b" * 540_000], ids=["many", "long"])
def test_trailers_without_an_end_are_refused(server: Server, endless: bytes) -> None:
    with connected(server) as connection:
        connection.sendall(OPEN + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n" + endless)
        assert only_problem(connection)["code"] == "head_too_large"


def test_a_trailer_is_no_header(server: Server) -> None:
    body = b'{"tokens": [1, 2]}'
    with connected(server) as connection:
        trailers = b"X-Request-Id: from-a-trailer\r\nAccept: application/x-npy\r\n\r\n"
        connection.sendall(OPEN + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n" % (len(body), body) + trailers)
        status, headers, _ = one_answer(connection)
    assert (status, headers["content-type"]) == (200, "application/json")
    assert headers["x-request-id"] != "from-a-trailer"


# --- what is no HTTP


@pytest.mark.parametrize(
    "sent",
    [b"hello\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
     b"GET /livez HTTP/1.1\r\nbad header\r\n\r\n", b"GET /livez HTTP/9.9\r\n\r\n", b"BREW /livez HTTP/1.1\r\n\r\n",
     OPEN + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}", OPEN + b"Content-Length: -1\r\n\r\n",
     OPEN + b"Content-Length: " + b"9" * 500 + b"\r\n\r\n", OPEN + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}"],
)  # fmt: skip
def test_what_is_no_http_is_a_400_problem(server: Server, sent: bytes) -> None:
    with connected(server) as connection:
        connection.sendall(sent)
        problem = only_problem(connection)
    assert (problem["status"], problem["code"]) == (400, "malformed_request")
    still_there(server)


def test_a_chunk_that_is_none_is_a_400_though_the_request_had_begun(server: Server) -> None:
    with connected(server) as connection:
        connection.sendall(OPEN + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\nxyz\r\n")
        assert only_problem(connection)["code"] == "malformed_request"


def test_under_v2_it_is_refused_in_the_protocols_form(server: Server) -> None:
    with connected(server) as connection:
        connection.sendall(b"POST /v2/models/tiny/infer HTTP/1.1\r\nbad header\r\n\r\n")
        status, headers, body = one_answer(connection)
    assert (status, headers["content-type"]) == (400, "application/json")
    assert set(json.loads(body)) == {"error"}


def test_requests_before_one_that_is_none_get_their_answers(server: Server) -> None:
    with connected(server) as connection:
        connection.sendall(GET + GET + b"nonsense\r\n\r\n")
        came = until_closed(connection)
    assert came.count(b"HTTP/1.1 200 ") == 2
    assert came.count(b"HTTP/1.1 ") == 2


def test_a_refusal_of_the_head_has_a_line_in_the_log(server: Server) -> None:
    with connected(server) as connection:
        connection.sendall(b"nonsense\r\n\r\n")
        request_id = one_answer(connection)[1]["x-request-id"]
    line = json.loads(server.wait_for_line(request_id))
    assert (line["status"], line["code"]) == (400, "malformed_request")
    assert "nonsense" not in json.dumps(line)


@pytest.mark.parametrize("upgrade", [b"websocket", b"h2c"])
def test_an_upgrade_is_not_done_and_the_request_is_answered(server: Server, upgrade: bytes) -> None:
    with connected(server) as connection:
        connection.sendall(GET[:-2] + b"Connection: Upgrade\r\nUpgrade: " + upgrade + b"\r\n\r\n")
        assert until_closed(connection).startswith(b"HTTP/1.1 200 ")


# --- answers that are not read


def large_call() -> bytes:
    """A call whose answer has 72 MB, more than the kernel takes, and costs one norm."""
    outputs = [{"name": "final_norm", "as": f"o{i}"} for i in range(30)]
    return safetensors.numpy.save({"x": rows(20_000)}, {"request": json.dumps({"start": 3, "outputs": outputs})})


def sent_large_call(connection: socket.socket, request_id: str) -> None:
    body = large_call()
    head = (
        "POST /forward HTTP/1.1\r\nHost: h\r\nConnection: keep-alive\r\n"
        f"Content-Type: {SAFETENSORS}\r\nAccept: {SAFETENSORS}\r\nX-Request-Id: {request_id}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    connection.sendall(head.encode() + body)


def test_who_does_not_read_an_answer_loses_the_connection(server: Server) -> None:
    with connected(server) as connection:
        sent_large_call(connection, "reads-nothing")
        line = json.loads(server.wait_for_line("reads-nothing", seconds=30))
    assert line["bytes_out"] < 72 * 10**6
    still_there(server)


def test_who_reads_slowly_gets_the_whole_answer(server: Server) -> None:
    with connected(server) as connection:
        sent_large_call(connection, "reads-slowly")
        came, pauses = 0, 0
        while came < 72 * 10**6:
            part = len(connection.recv(1 << 22))
            assert part, f"broke off after {came} bytes"
            came += part
            if came > (pauses + 1) * 14 * 10**6:
                pauses += 1
                time.sleep(SEND_SECONDS / 2)  # a reader who is at times slow, and yet makes progress
    assert pauses == 5

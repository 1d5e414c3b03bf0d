"""The log: one JSON object a line, whoever writes it, and nothing in it of what a caller sent."""

import json
import logging
import re
import socket
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from model.checkpoint.load import load_model
from service.app import create_app
from service.logs import JsonLines
from service.settings import Settings
from tests.server import Server, serving
from tests.service.calls import post
from tests.service.in_process import fail_on_tokens, ready
from tests.service.test_metrics import table

ACCESS = "headwater.access"
TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def written(message: object, *arguments: Any, exc_info: Any = None, created: float = 1.0) -> dict[str, Any]:
    """The line of one record, read back."""
    record = logging.LogRecord("thames", logging.WARNING, __file__, 1, message, arguments, exc_info)
    record.created = created
    line = JsonLines().format(record)
    assert "\n" not in line
    assert line.isascii()
    found: dict[str, Any] = json.loads(line)
    return found


def test_a_line_says_when_how_bad_who_and_what() -> None:
    created = datetime(2026, 11, 30, 7, 8, 9, 123_456, UTC).timestamp()
    assert written("%d rows of %s", 7, "X", created=created) == {
        "time": "2026-11-30T07:08:09.123Z",
        "level": "warning",
        "logger": "thames",
        "message": "7 rows of X",
    }
    assert written("on the second", created=1.0)["time"] == "1970-01-01T00:00:01.000Z"


@pytest.mark.parametrize("text", ["two\nlines", "\ud800", "\u2028\x00\x1b[31m", '"}', "ü"])
def test_no_text_breaks_a_line(text: str) -> None:
    assert written(text)["message"] == text
    assert written("%s", text)["message"] == text


def test_arguments_that_do_not_fit_are_written_all_the_same() -> None:
    assert "7" in written("%d and %d", 7)["message"]


def test_fields_stand_in_the_line_itself() -> None:
    line = written({"status": 200, "route": None, "what": Path("x")})
    assert (line["status"], line["route"], line["what"]) == (200, None, "x")
    assert "message" not in line


def test_an_exception_is_a_field_with_its_traceback_and_cut_lines() -> None:
    try:
        raise ValueError("v" * 5000)
    except ValueError:
        line = written("failed", exc_info=sys.exc_info())
    assert line["message"] == "failed"
    assert line["exception"].startswith("Traceback")
    assert "test_logs.py" in line["exception"]
    assert "ValueError: vvv" in line["exception"]
    assert max(map(len, line["exception"].split("\n"))) <= 300


# --- a service that runs


@pytest.fixture(scope="module")
def server(tiny_directory: Path) -> Iterator[Server]:
    # in capitals, as many write it
    with serving(tiny_directory, "--threads", "1", "--log-level", "INFO") as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


@pytest.mark.parametrize("level", ["INFO", "Warning", "error"])
def test_the_level_may_be_in_capitals(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings(log_level=level).log_level == level.lower()  # type: ignore[arg-type]
    monkeypatch.setenv("HEADWATER_LOG_LEVEL", level)
    assert Settings().log_level == level.lower()


def test_every_line_but_those_of_the_start_is_json(client: httpx.Client, server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(b"BREW /coffee HTTP/1.1\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 400")
    assert json.loads(server.wait_for_line("malformed_request"))["status"] == 400
    post(client, {"tokens": [1]}, headers={"X-Request-Id": "json-1"})
    client.get("/nowhere", headers={"X-Request-Id": "json-2"})
    server.wait_for_line("json-2")
    plain = [line for line in server.lines if not line.startswith("{")]
    assert all(line.startswith("headwater: ") for line in plain)
    for line in server.lines:
        if line not in plain:
            found = json.loads(line)
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", found["time"])
            assert found["level"] in ("info", "warning", "error")
            assert ("message" in found) is (found["logger"] != ACCESS)


def test_a_request_has_the_fields_that_the_docs_list(client: httpx.Client, server: Server) -> None:
    post(client, {"tokens": [1, 2]}, headers={"X-Request-Id": "fields-1", "traceparent": TRACEPARENT})
    post(client, {"tokens": []}, headers={"X-Request-Id": "fields-2"})
    ran, refused = (json.loads(server.wait_for_line(f"fields-{i}")) for i in (1, 2))
    fields = {one: where for names, where, _ in table("observability.md", "fields") for one in names_of(names)}
    every = {name for name, where in fields.items() if where in ("every line", "requests")}
    assert set(ran) | set(refused) == set(fields) - {"message", "exception", "key"}
    assert set(ran) & set(refused) == every - {"code", "trace_id"}
    assert ran["bytes_out"] > ran["bytes_in"] > 0
    assert 0 < ran["compute_ms"] < ran["ms"]
    assert 0 < ran["encode_ms"] < ran["ms"]
    assert refused["code"] == "invalid_request"


def names_of(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


def test_a_trace_that_the_caller_began_is_named_in_the_line(client: httpx.Client, server: Server) -> None:
    client.get("/livez", headers={"traceparent": TRACEPARENT, "X-Request-Id": "trace-1"})
    client.get("/livez", headers={"traceparent": "00-secret-secret-01", "X-Request-Id": "trace-2"})
    assert json.loads(server.wait_for_line("trace-1"))["trace_id"] == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert "trace_id" not in json.loads(server.wait_for_line("trace-2"))


def test_no_line_holds_what_a_caller_sent(client: httpx.Client, server: Server) -> None:
    secret = "xylophone"
    headers = {
        "Authorization": f"Bearer {secret}",
        "Cookie": f"key={secret}",
        "X-Other": secret,
        "User-Agent": secret,
        "traceparent": secret,
        "X-Request-Id": f"{secret} with a space",
        "Accept": f"text/{secret}",
    }
    calls: list[dict[str, Any]] = [
        {"tokens": [1], "outputs": [{"name": "embeddings", "as": secret}]},
        {"tokens": [1], "outputs": [secret]},
        {"tokens": [secret]},
        {"tokens": [1], secret: secret},
        {"text": secret},
        {"x": np.full((2, 30), 0.8713).tolist()},
        {"x": np.full((2, 29), 0.8713).tolist()},
    ]
    for call in calls:
        for also in ({}, headers):
            post(client, call, headers=also)
            client.post(f"/forward?request={secret}&dry_run={secret}", json=call, headers=also)
            client.post(f"/v2/models/{secret}/infer", json=call, headers=also)
            client.post("/v2/models/tiny/infer", json={"inputs": [call], "id": secret}, headers=also)
    client.post("/forward", content=secret, headers={"Content-Type": "application/json"})
    client.post("/forward", content=secret, headers={"Content-Type": f"application/{secret}"})
    client.post("/forward", content=secret, headers={"Content-Encoding": secret})
    client.get(f"/{secret}?{secret}={secret}")
    client.get("/livez", headers={"X-Request-Id": "last-of-all"})
    server.wait_for_line("last-of-all")
    whole = "\n".join(server.lines)
    assert len(server.lines) > 60
    assert secret not in whole
    assert "0.8713" not in whole
    assert "Bearer" not in whole


def test_an_error_of_ours_is_logged_with_its_traceback_and_its_request(
    tiny_directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fail_on_tokens(monkeypatch)
    caplog.set_level(logging.INFO)
    with ready(create_app(Settings(), lambda _: load_model(tiny_directory, name="tiny"))) as client:
        assert client.post("/forward", json={"tokens": [1]}).status_code == 500
    lines = [json.loads(JsonLines().format(record)) for record in caplog.records]
    lines = [line for line in lines if line.get("route") != "/readyz"]
    (failed,) = [line for line in lines if "exception" in line]
    assert failed["logger"] == "headwater.batcher"
    assert failed["exception"].endswith("RuntimeError: planted")
    (request,) = [line for line in lines if line["logger"] == ACCESS]
    assert (request["status"], request["code"]) == (500, "internal_error")

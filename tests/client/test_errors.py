"""Every refusal and every loss of a connection is an error of its kind, with what the service said of it."""

import asyncio
import logging
import socket
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headwater_client as hw
from headwater_client import AsyncClient, Client, HeadwaterError
from headwater_client.retrying import Retries, Tries
from tests.client.conftest import KEY, Faulty, async_client_of, client_of, until
from tests.server import Server
from tests.service.calls import ids
from tests.service.faulty import FAILS, HOLDS, NO_MEMORY
from tests.service.test_life import SLOW_LOADER, Planted, planted


def both(server: Server, call: dict[str, Any], **options: Any) -> HeadwaterError:
    """What a call raises, which must be the same from both clients."""

    async def of_the_other() -> None:
        async with async_client_of(server, **options) as other:
            await other.forward(**call)

    with client_of(server, **options) as client, pytest.raises(HeadwaterError) as failed:
        client.forward(**call)
    with pytest.raises(HeadwaterError) as again:
        asyncio.run(of_the_other())
    one, two = failed.value, again.value
    assert type(one) is type(two)
    assert (one.status, one.code, one.errors) == (two.status, two.code, two.errors)
    assert one.request_id
    assert two.request_id
    return one


@pytest.mark.parametrize(
    ("call", "kind", "status", "code", "pointer"),
    [
        ({"tokens": [101]}, hw.InvalidRequest, 422, "invalid_request", "/tokens/0"),
        ({"tokens": [1], "outputs": "layers.1.attn_prob"}, hw.UnknownPoint, 422, "unknown_point", "/outputs/0/name"),
        ({"x": np.full((2, 30), 3e38, np.float32)}, hw.NonFiniteResult, 422, "non_finite_result", None),
        ({"x": np.zeros((2, 29), np.float32)}, hw.InvalidRequest, 422, "invalid_request", "/x"),
        ({"tokens": [1] * 42}, hw.TooLarge, 413, "too_large", None),
        ({"x": np.zeros((200, 30))}, hw.TooLarge, 413, "body_too_large", None),
        ({"x": np.zeros((40_009, 30))}, hw.TooLarge, 413, "body_too_large", None),
        ({"tokens": [1] * 40, "timeout_ms": 0}, hw.InvalidRequest, 422, "invalid_request", "/timeout_ms"),
    ],
)
def test_a_refusal_has_its_kind_and_all_that_the_service_said(
    limited_server: Server, call: dict[str, Any], kind: type[HeadwaterError], status: int, code: str, pointer: str
) -> None:
    error = both(limited_server, call)
    assert type(error) is kind
    assert (error.status, error.code) == (status, code)
    assert error.detail in str(error)
    assert code in str(error)
    if pointer is not None:
        assert error.errors[0].pointer == pointer
        assert error.errors[0].message in error.detail


def test_a_deadline_of_the_callers_own_is_a_deadline_exceeded(mgm_server: Server) -> None:
    error = both(mgm_server, {"tokens": ids(500, 9669), "timeout_ms": 1})
    assert type(error) is hw.DeadlineExceeded
    assert (error.status, error.code) == (504, "deadline_passed")


def test_faults_of_the_service_are_told_from_the_callers(faulty: Faulty) -> None:
    error = both(faulty.server, {"tokens": [FAILS, 1]}, api_key=KEY)
    assert type(error) is hw.ServerFault
    assert (error.status, error.code) == (500, "internal_error")
    error = both(faulty.server, {"tokens": [NO_MEMORY, 1]}, api_key=KEY)
    assert type(error) is hw.OutOfMemory
    assert error.status == 500


@pytest.mark.parametrize("key", [None, "another-key"])
def test_without_the_right_key_it_is_unauthorized(faulty: Faulty, key: str | None) -> None:
    error = both(faulty.server, {"tokens": [1]}, api_key=key)
    assert type(error) is hw.Unauthorized
    assert error.status == 401


def test_another_service_at_the_address_is_not_found(tiny_server: Server) -> None:
    with Client(f"{tiny_server.url}/some/path", trust_env=False) as client:
        with pytest.raises(hw.NotFound):
            client.model()
        with pytest.raises(hw.NotFound):
            client.forward(tokens=[1])


def test_a_full_queue_is_busy_a_silence_is_timed_out_and_room_ends_both(faulty: Faulty) -> None:
    """One caller holds the model; the next is sent away with an appointment, and what is asked twice is answered."""
    with client_of(faulty.server, api_key=KEY, retries=0, timeout=0.5) as impatient:
        with pytest.raises(hw.TimedOut) as silent:
            impatient.forward(tokens=[HOLDS])
        assert isinstance(silent.value, hw.DeadlineExceeded)
        (faulty.folder / "go").touch()
        until(lambda: not (faulty.folder / "go").exists() and not (faulty.folder / "held").exists())
    held: list[Any] = []

    def hold() -> None:
        with client_of(faulty.server, api_key=KEY) as first:
            held.append(first.forward(tokens=[HOLDS]))

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        until(lambda: (faulty.folder / "held").exists())
        error = both(faulty.server, {"tokens": [1]}, api_key=KEY, retries=0)
        assert type(error) is hw.Busy
        assert (error.status, error.code) == (429, "queue_full")
        assert error.retry_after is not None
        assert error.retry_after >= 1
    finally:
        (faulty.folder / "go").touch()
        holder.join(30)
    assert held[0]["layers.2.resid_post"].shape == (1, 30)
    with client_of(faulty.server, api_key=KEY) as patient:
        assert patient.forward(tokens=[1])["layers.2.resid_post"].shape == (1, 30)


def test_a_service_that_loads_is_not_ready_with_the_progress_and_is_waited_for(
    tiny_directory: Path, tmp_path: Path
) -> None:
    with planted(tiny_directory, SLOW_LOADER, tmp_path, until="listening") as it:
        it.wait_for("load")
        error = both(it.server, {"tokens": [1]}, retries=0)
        assert type(error) is hw.NotReady
        assert (error.status, error.code) == (503, "not_ready")
        assert "120 of 272 tensors" in error.detail
        assert error.retry_after is not None
        with client_of(it.server) as client:
            assert not client.ready()
            with pytest.raises(hw.NotReady):
                client.wait_until_ready(0.1)
            _loaded_while_waiting(it, client)
            assert client.ready()


def _loaded_while_waiting(it: Planted, client: Client) -> None:
    """One call waits by its retries, the probe by its own."""
    answers: list[Any] = []
    call = threading.Thread(target=lambda: answers.append(client.forward(tokens=[1])))
    call.start()
    it.let("load")
    client.wait_until_ready(20)
    call.join(20)
    assert answers[0]["layers.2.resid_post"].shape == (1, 30)


def test_where_nobody_listens_the_service_is_unreachable() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        with Client(url, trust_env=False, retries=Retries(attempts=3, first_wait=0.01)) as client:
            with pytest.raises(hw.Unreachable) as failed:
                client.forward(tokens=[1])
            assert failed.value.status is None
            assert not client.ready()
            with pytest.raises(hw.Unreachable):
                client.wait_until_ready(0.1)
            with pytest.raises(hw.Unreachable):  # by the client's retries, and not by those of a run that has begun
                client.map([[1]]).run()


def test_what_is_no_answer_of_headwater_is_a_broken_answer(tiny_server: Server) -> None:
    """A page where an answer should be, a refusal that is no problem+json, a body that is no safetensors."""
    for head, body, kind in [
        ("200 OK\r\nContent-Type: text/html", b"<html>", hw.BrokenAnswer),
        ("200 OK\r\nContent-Type: application/x-safetensors", b"no tensors", hw.BrokenAnswer),
        ("502 Bad Gateway\r\nContent-Type: text/html", b"<html>", hw.ServerFault),
        ("418 I'm a teapot\r\nContent-Type: application/json", b"[]", hw.InvalidRequest),
        ("302 Found\r\nLocation: http://127.0.0.1:1/", b"", hw.BrokenAnswer),
    ]:
        with Saying(f"HTTP/1.1 {head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body) as url:
            client = Client(url, trust_env=False, retries=0)
            with pytest.raises(kind) as failed:
                client.forward(tokens=[1])
            assert type(failed.value) is kind, head
            client.close()


class Saying:
    """A server that reads a request and says these bytes."""

    def __init__(self, said: bytes) -> None:
        self._said = said
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> str:
        self._thread.start()
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def _serve(self) -> None:
        connection, _ = self._socket.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall(self._said)

    def __exit__(self, *_: object) -> None:
        self._thread.join(10)
        self._socket.close()


# --- what is asked again, and when


@pytest.mark.parametrize(
    "kind",
    [hw.InvalidRequest, hw.TooLarge, hw.Unauthorized, hw.NotFound, hw.DeadlineExceeded, hw.TimedOut, hw.ServerFault],
)
def test_what_would_fail_again_is_not_asked_again(kind: type[HeadwaterError]) -> None:
    error = kind("no")
    with pytest.raises(kind) as raised:
        Tries(Retries()).wait_after(error)
    assert raised.value is error


def test_an_appointment_is_kept_to_a_tenth_of_a_second_and_not_by_all_at_once() -> None:
    waits = {Tries(Retries()).wait_after(hw.Busy("full", retry_after=7.0)) for _ in range(50)}
    assert all(7.0 <= wait <= 7.1 for wait in waits)
    assert len(waits) > 25


def test_waits_without_an_appointment_double_up_to_the_longest() -> None:
    tries = Tries(Retries(attempts=None, seconds=1e6, first_wait=1.0, longest_wait=16.0))
    waits = [tries.wait_after(hw.Unreachable("gone")) for _ in range(8)]
    for wait, most in zip(waits, (1, 2, 4, 8, 16, 16, 16, 16), strict=True):
        assert most / 2 <= wait <= most


def test_tries_end_by_number_by_time_and_where_the_appointment_is_too_late() -> None:
    busy, late = hw.Busy("full", retry_after=1.0), hw.Busy("full", retry_after=99.0)
    tries = Tries(Retries(attempts=3))
    assert [tries.wait_after(busy) >= 1, tries.wait_after(busy) >= 1] == [True, True]
    with pytest.raises(hw.Busy):
        tries.wait_after(busy)
    with pytest.raises(hw.Busy):
        Tries(Retries(attempts=None, seconds=50.0)).wait_after(late)
    with pytest.raises(hw.Busy):
        Tries(Retries.of(0)).wait_after(busy)
    broken = Tries(Retries(attempts=None))
    for _ in range(2):
        broken.wait_after(hw.BrokenAnswer("short"))
    with pytest.raises(hw.BrokenAnswer):
        broken.wait_after(hw.BrokenAnswer("short"))


# --- secrets


def test_no_address_and_no_key_gets_into_a_log_a_repr_or_a_message(
    faulty: Faulty, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with client_of(faulty.server, api_key=KEY, retries=0) as client:
        client.forward(tokens=[1])
        client.map([[1]], concurrency=1).run()
        errors = [both(faulty.server, {"tokens": [999]}, api_key=KEY)]
        errors.append(both(faulty.server, {"tokens": [1]}, api_key="another-key"))
        texts = [repr(client), str(client), *(record.getMessage() for record in caplog.records)]
        texts += [text for error in errors for text in (repr(error), str(error))]
    assert any("422" in text and "request" in text for text in texts), "our own line is there"
    port = str(faulty.server.port)
    assert [text for text in texts if KEY in text or "another-key" in text or "127.0.0.1" in text or port in text] == []


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"url": "127.0.0.1:8000"}, "url: "),
        ({"url": "ftp://127.0.0.1"}, "url: "),
        ({"url": f"http://me:{KEY}@127.0.0.1"}, "url: "),
        ({"api_key": f"{KEY}\r\nX: y"}, "api_key: "),
        ({"timeout": 0.0}, "timeout: "),
        ({"url": None}, "url: must be a string, not NoneType"),
        ({"url": "http://127.0.0.1:99999"}, "url: a port is between 1 and 65535, not 99999"),
        ({"api_key": 5}, "api_key: must be a string, not int"),
        ({"timeout": "5"}, "timeout: must be a number of seconds, not str"),
        ({"timeout": float("nan")}, "timeout: "),
        ({"retries": -3}, "retries: must be at least 0, not -3"),
        ({"retries": Retries}, "retries: must be an integer, not type"),
    ],
)
def test_a_wrong_setting_is_named_and_no_secret_is_in_the_message(options: dict[str, Any], field: str) -> None:
    for kind in (Client, AsyncClient):
        with pytest.raises(ValueError, match=field) as failed:
            kind(**{"url": "http://127.0.0.1"} | options)
        assert KEY not in str(failed.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attempts": 0}, "attempts: must be at least 1, not 0"),
        ({"attempts": 1.5}, "attempts: must be an integer, not float"),
        ({"seconds": "60"}, "seconds: must be a number of seconds, not str"),
        ({"first_wait": -1}, "first_wait: must be a positive number of seconds, not -1"),
    ],
)
def test_wrong_rules_for_retries_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Retries(**options)


# --- the client's own life


def test_a_closed_client_says_so_at_every_call(tiny_server: Server) -> None:
    async def of_the_other() -> None:
        async with async_client_of(tiny_server) as other:
            later = other.map([[1]])
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: other.forward(tokens=[1]), lambda: other.stream(tokens=[1]), other.model, other.ready,
            other.wait_until_ready, later.run, lambda: other.map([[1]]).run(),
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(hw.ClientClosed):
                await call()

    with client_of(tiny_server) as client:
        begun, later = client.map([[1]] * 40, concurrency=1), client.map([[1]])
        next(begun)
    calls: list[Callable[[], object]] = [
        lambda: client.forward(tokens=[1]), lambda: client.stream(tokens=[1]), client.model, client.ready,
        client.wait_until_ready, later.run, lambda: client.map([[1]]).run(),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(hw.ClientClosed):
            call()
    assert begun.run().done == 40, "a run that has begun has connections of its own"
    asyncio.run(of_the_other())


def test_one_asynchronous_client_serves_several_event_loops(tiny_server: Server) -> None:
    other = async_client_of(tiny_server)
    for _ in range(3):
        answer = asyncio.run(other.forward(tokens=[1]))
        assert answer["layers.2.resid_post"].shape == (1, 30)
        assert not other._connections._of_loop, "nothing is kept of a loop that has ended"
    asyncio.run(other.close())

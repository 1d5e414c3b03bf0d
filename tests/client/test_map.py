"""A run over many sequences loses nothing, does nothing twice, and holds little, whatever happens to the service."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import safetensors.numpy

import headwater_client as hw
from headwater_client import Client, Output, Result, Retries
from tests.client.conftest import KEY, QUEUE, Faulty, async_client_of, client_of, until
from tests.client.relay import Relay
from tests.server import Server, serving
from tests.service.calls import assert_rows_close, ids, rows, same_bits

OUTPUTS: list[Any] = ["layers.2.resid_post", {"name": "layers.1.attn_probs", "heads": [1]}]
INPUTS: list[Any] = [ids(3 + n % 11, seed=n) for n in range(29)]


def expected(client: Client, inputs: list[Any], outputs: list[Any]) -> list[dict[str, Any]]:
    """The same sequences, each asked by itself."""
    return [dict(client.forward(inputs=[one], outputs=outputs).split()[0]) for one in inputs]


def assert_all_there(results: list[Result], wanted: list[dict[str, Any]]) -> None:
    assert [result.index for result in results] == list(range(len(wanted)))
    for result, arrays in zip(results, wanted, strict=True):
        assert set(result.answer) == set(arrays)
        for name, array in arrays.items():
            assert_rows_close(result.answer[name], array)


def calls_of(server: Server) -> float:
    """How many POST /forward the service has answered with 200."""
    with server.client() as http:
        lines = http.get("/metrics").text.splitlines()
    return sum(
        float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith("headwater_requests_total{") and 'route="/forward"' in line and 'status="200"' in line
    )


@pytest.mark.parametrize("ordered", [True, False])
def test_a_run_gives_what_single_calls_give_with_both_clients(tiny_server: Server, ordered: bool) -> None:
    async def of_the_other() -> list[Result]:
        async with async_client_of(tiny_server) as client:
            return [result async for result in client.map(INPUTS, outputs=OUTPUTS, ordered=ordered)]

    with client_of(tiny_server) as client:
        wanted = expected(client, INPUTS, OUTPUTS)
        run = client.map(INPUTS, outputs=OUTPUTS, ordered=ordered)
        for results in (list(run), asyncio.run(of_the_other())):
            if not ordered:
                results.sort(key=lambda result: result.index)
            assert_all_there(results, wanted)
        assert (run.report.asked, run.report.reused, run.report.failed, run.report.done) == (29, 0, [], 29)


def test_inputs_of_every_kind_may_come_from_a_generator_of_either_sort(tiny_server: Server) -> None:
    inputs = [ids(3), np.array(ids(4)), rows(5), {"x": rows(2), "start": 2}, {"tokens": ids(6), "positions": range(6)}]

    async def later() -> Any:
        for one in inputs:
            await asyncio.sleep(0)
            yield one

    async def of_the_other() -> list[Result]:
        async with async_client_of(tiny_server) as client:
            return [result async for result in client.map(later(), outputs="final_norm")]

    with client_of(tiny_server) as client:
        wanted = expected(client, inputs, ["final_norm"])
        assert_all_there(list(client.map((one for one in inputs), outputs="final_norm")), wanted)
        assert_all_there(asyncio.run(of_the_other()), wanted)


def test_no_more_is_taken_up_than_twice_the_concurrency_while_nobody_takes_results(tiny_server: Server) -> None:
    taken: list[int] = []

    def source() -> Iterator[list[int]]:
        for n in range(1000):
            taken.append(n)
            yield ids(5, seed=n)

    with client_of(tiny_server) as client, client.map(source(), concurrency=3) as run:
        before = calls_of(tiny_server)
        next(run)
        until(lambda: calls_of(tiny_server) - before >= 6)
        assert len(taken) <= 7  # six are held, and room for one came with the result that was taken
        for n, result in enumerate(run):
            if n == 20:
                break
            assert result.error is None
    assert len(taken) < 40


def test_one_wrong_sequence_fails_alone_and_all_that_is_wrong_with_it_is_kept(
    tiny_server: Server, tmp_path: Path
) -> None:
    inputs = [ids(3), [101], "a text", np.zeros((2, 3, 4)), ids(5)]
    with client_of(tiny_server) as client:
        run = client.map(inputs, into=tmp_path / "run")
        results = list(run)
        assert [type(one.error) for one in results] == [type(None), *[hw.InvalidRequest] * 3, type(None)]
        assert run.report.failed == results[1:4]
        with pytest.raises(hw.InvalidRequest, match="outside the vocabulary"):
            _ = results[1].answer
        assert results[2].error is not None
        assert results[2].error.__cause__ is None, "it would keep what was sent"
        kept = json.loads((tmp_path / "run" / "00000001.error.json").read_text())
        assert (kept["kind"], kept["status"], kept["code"]) == ("InvalidRequest", 422, "invalid_request")
        assert kept["errors"][0]["pointer"] == "/tokens/0"
        with pytest.raises(hw.InvalidRequest):
            client.map(inputs, on_error="raise").run()


@pytest.mark.parametrize("ordered", [True, False])
def test_inputs_that_fail_on_the_way_cost_no_answer_that_was_asked_before(tiny_server: Server, ordered: bool) -> None:
    class Lost(Exception):
        pass

    def source() -> Iterator[list[int]]:
        yield from INPUTS[:11]
        raise Lost

    async def later() -> Any:
        for one in source():
            yield one

    async def of_the_other() -> None:
        async with async_client_of(tiny_server) as client:
            run = client.map(later(), outputs=OUTPUTS, ordered=ordered)
            while True:
                others.append(await anext(run))

    found: list[Result] = []
    others: list[Result] = []
    with client_of(tiny_server) as client:
        wanted = expected(client, INPUTS[:11], OUTPUTS)
        with pytest.raises(Lost):
            found.extend(client.map(source(), outputs=OUTPUTS, ordered=ordered))
        with pytest.raises(Lost):
            asyncio.run(of_the_other())
    for results in (found, others):
        assert_all_there(sorted(results, key=lambda result: result.index), wanted)


def test_a_wrong_key_ends_the_run_at_once(faulty: Faulty) -> None:
    taken: list[int] = []

    def source() -> Iterator[list[int]]:
        for n in range(500):
            taken.append(n)
            yield [1, 2]

    with client_of(faulty.server, api_key="wrong-key") as client:
        with pytest.raises(hw.Unauthorized):
            client.map(source()).run()
        assert len(taken) <= 17
    with client_of(faulty.server, api_key=KEY) as client:
        assert client.map([[1, 2]] * 7, concurrency=1).run().asked == 7


def test_a_flooded_service_answers_all_in_the_end(small_server: Server) -> None:
    """A queue of four and twelve callers: many are sent away with a Retry-After, and come when told."""
    with client_of(small_server) as client:
        wanted = expected(client, INPUTS[:17], OUTPUTS)
        results = list(client.map(INPUTS[:17], outputs=OUTPUTS, concurrency=3 * QUEUE))
        assert_all_there(results, wanted)
    assert len(lines_of(small_server, 429)) >= QUEUE, "it was not flooded"


def lines_of(server: Server, status: int) -> list[dict[str, Any]]:
    """The log's lines of calls that ended with this status."""
    calls = [json.loads(line) for line in server.lines if '"/forward"' in line]
    return [call for call in calls if call.get("status") == status]


def test_a_restart_in_the_middle_loses_nothing_and_gives_nothing_twice(tmp_path: Path) -> None:
    """The process is killed with calls under way, and another one is started on its port."""
    inputs = [ids(151, 9669, seed=n) for n in range(13)]
    outputs: list[Any] = [Output("layers.7.attn_probs", rows=[-1]), Output("layers.*.resid_post", rows=[-1])]
    with serving("mgm", "--threads", "1", code=-signal.SIGKILL) as first:
        client = client_of(first)
        soon = Retries(attempts=None, seconds=60.0, longest_wait=0.5)
        run = client.map(inputs, outputs=outputs, into=tmp_path / "run", concurrency=3, retries=soon)
        results = [next(run) for _ in range(5)]
        first.process.kill()
        first.process.wait()
    done = len(lines_of(first, 200))
    assert 5 <= done < 13, "there was nothing left to ask for"
    with serving("mgm", "--threads", "1", "--port", str(first.port)) as second:
        results += run
        report = run.report
        assert (report.asked, report.reused, report.failed) == (13, 0, [])
        assert_all_there(results, expected(client, inputs, outputs))
        assert sorted(path.name for path in (tmp_path / "run").glob("*.safetensors")) == [
            f"{n:08d}.safetensors" for n in range(13)
        ]
        client.close()
        assert second.process.poll() is None


def test_another_model_at_the_same_address_ends_the_run(tiny_server: Server, mgm_server: Server) -> None:
    retries = Retries(attempts=None, seconds=60.0, first_wait=0.01)
    with Relay(tiny_server.port) as relay, Client(relay.url, trust_env=False) as client:
        run = client.map(INPUTS, concurrency=1, retries=retries)
        assert next(run).error is None
        relay.port = mgm_server.port
        relay.cut()
        with pytest.raises(hw.ModelChanged):
            run.run()


def test_connections_that_break_again_and_again_cost_no_sequence(tiny_server: Server) -> None:
    retries = Retries(attempts=None, seconds=60.0, first_wait=0.01)
    with Relay(tiny_server.port) as relay, Client(relay.url, trust_env=False) as client:
        wanted = expected(client, INPUTS, OUTPUTS)
        results = []
        for result in client.map(INPUTS, outputs=OUTPUTS, concurrency=3, retries=retries):
            relay.cut()
            results.append(result)
        assert_all_there(results, wanted)


# --- directories


def test_a_run_that_was_broken_off_goes_on_with_what_is_missing(tiny_server: Server, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    with client_of(tiny_server) as client:
        wanted = expected(client, INPUTS, OUTPUTS)
        before = calls_of(tiny_server)
        with client.map(INPUTS, outputs=OUTPUTS, into=directory, concurrency=2) as run:
            for _ in range(7):
                next(run)
        there = {path.name for path in directory.glob("*.safetensors")}
        assert 7 <= len(there) < 29
        assert not list(directory.glob(".*.part"))
        again = client.map(INPUTS, outputs=OUTPUTS, into=directory)
        assert_all_there(list(again), wanted)
        assert again.report.reused == len(there)
        assert again.report.asked == 29 - len(there)
        asked = calls_of(tiny_server) - before
        assert 29 <= asked <= 29 + 2, "no more than was under way when it was broken off"

        third = client.map(INPUTS, outputs=OUTPUTS, into=directory).run()
        assert (third.asked, third.reused) == (0, 29)
        assert calls_of(tiny_server) - before == asked


def test_an_interrupted_program_ends_at_once_and_leaves_whole_files_alone(mgm_server: Server, tmp_path: Path) -> None:
    """Ctrl-C while calls are under way; the next run asks for the rest."""
    code = (
        "import sys, headwater_client as hw\n"
        "run = hw.Client(sys.argv[1], trust_env=False).map([[1] * 300 for _ in range(300)], into=sys.argv[2])\n"
        "for result in run:\n"
        "    print(result.index, flush=True)\n"
    )
    command = [sys.executable, "-c", code, mgm_server.url, str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        for _ in range(3):
            program.stdout.readline()
        program.send_signal(signal.SIGINT)
        program.stdout.read()
        said = program.stderr.read()
        assert program.wait(20) == -signal.SIGINT
    assert said.rstrip().endswith("KeyboardInterrupt")
    assert "Error" not in said
    there = sorted((tmp_path / "run").glob("*.safetensors"))
    assert 3 <= len(there) < 300
    assert not list((tmp_path / "run").glob(".*.part"))
    last = int(there[-1].stem)
    with client_of(mgm_server) as client:
        report = client.map([[1] * 300] * (last + 3), into=tmp_path / "run").run()
        assert (report.asked, report.reused) == (last + 3 - len(there), len(there))


def test_what_was_cut_short_or_failed_is_asked_for_again(tiny_server: Server, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    with client_of(tiny_server) as client:
        client.map([ids(3), [101], ids(5), ids(7)], into=directory).run()
        whole = directory / "00000002.safetensors"
        kept = whole.read_bytes()
        whole.write_bytes(kept[:-1])
        (directory / "00000003.safetensors").write_bytes(b"12345")
        (directory / ".00000000.safetensors.part").write_bytes(b"left by a process that was ended")
        again = client.map([ids(3), [100], ids(5), ids(7)], into=directory)
        assert [one.reused for one in again] == [True, False, False, False]
        assert again.report.failed == []
        assert safetensors.numpy.load_file(whole).keys() == safetensors.numpy.load(kept).keys()
        assert len(whole.read_bytes()) == len(kept)
        assert not (directory / "00000001.error.json").exists(), "it has an answer now"
        assert not list(directory.glob(".*.part"))


def test_a_directory_of_other_outputs_of_another_model_or_of_other_inputs_is_refused(
    tiny_server: Server, mgm_server: Server, tmp_path: Path
) -> None:
    directory = tmp_path / "run"
    with client_of(tiny_server) as client, client_of(mgm_server) as other:
        client.map(INPUTS[:3], outputs="layers.2.resid_post", into=directory).run()
        kept = {path.name: path.read_bytes() for path in directory.iterdir()}
        with pytest.raises(hw.RunMismatch, match="outputs"):
            client.map(INPUTS[:3], outputs="layers.1.resid_post", into=directory).run()
        with pytest.raises(hw.RunMismatch, match="weights_sha256"):
            other.map(INPUTS[:3], outputs="layers.2.resid_post", into=directory).run()
        with pytest.raises(hw.RunMismatch, match="answer 1 to another input"):
            client.map([INPUTS[0], [1, 2], INPUTS[2]], outputs="layers.2.resid_post", into=directory).run()
        assert {path.name: path.read_bytes() for path in directory.iterdir()} == kept
        same = client.map([np.array(one) for one in INPUTS[:3]], outputs=[Output("layers.2.resid_post").name])
        assert same.run().asked == 3
        assert client.map(INPUTS[:3], outputs="layers.2.resid_post", into=directory).run().reused == 3


def test_two_runs_into_one_directory_at_once_are_refused(tiny_server: Server, tmp_path: Path) -> None:
    with client_of(tiny_server) as client, client.map(INPUTS, into=tmp_path / "run") as run:
        next(run)
        with pytest.raises(hw.RunInUse):
            client.map(INPUTS, into=tmp_path / "run").run()


def test_the_files_of_a_run_hold_what_the_service_said_bit_for_bit(tiny_server: Server, tmp_path: Path) -> None:
    with client_of(tiny_server) as client:
        outputs: list[Any] = [{"name": "layers.*.z", "dtype": "bfloat16"}, {"name": "logits", "top_k": 3}]
        (result,) = client.map([ids(7)], outputs=outputs, into=tmp_path / "run")
        direct, file = client.forward(tokens=ids(7), outputs=outputs), result.answer
        assert file.manifest == direct.manifest
        assert file.tokens == direct.tokens
        for name in direct:
            assert file.tensor(name).dtype == direct.tensor(name).dtype
            assert same_bits(np.array(file.bits(name)), direct.bits(name))


def test_progress_is_told_as_it_is_made(tiny_server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    told: list[tuple[int, int | None]] = []
    with client_of(tiny_server) as client:
        client.map(INPUTS, progress=lambda done, total: told.append((done, total))).run()
        assert told == [(n, 29) for n in range(1, 30)]
        client.map(INPUTS, progress=True).run()
    assert "29/29" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"concurrency": 0}, "concurrency: must be at least 1, not 0"),
        ({"concurrency": "4"}, "concurrency: must be an integer, not str"),
        ({"concurrency": True}, "concurrency: must be an integer, not bool"),
        ({"on_error": "ignore"}, "on_error: must be 'keep' or 'raise', not 'ignore'"),
        ({"ordered": "no"}, "ordered: must be True or False, not str"),
        ({"outputs": 5}, "outputs: must be a name, .* not int"),
        ({"into": 5}, "into: must name a directory, not be int"),
        ({"progress": 5}, "progress: must be True, False or a function"),
        ({"timeout_ms": 1.5}, "timeout_ms: must be an integer, not float"),
        ({"retries": "many"}, "retries: must be an integer, not str"),
        ({"retries": -1}, "retries: must be at least 0, not -1"),
    ],
)
def test_a_wrong_option_is_named(client: Client, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        client.map(INPUTS, **options)


# --- the package


def test_the_package_loads_httpx_and_numpy_and_nothing_else_of_ours_or_torchs() -> None:
    code = "import sys, headwater_client; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert {"httpx", "numpy", "headwater_client"} <= loaded
    assert not loaded & {"torch", "safetensors", "service", "model", "tqdm", "orjson", "pydantic", "ml_dtypes"}


def test_a_script_that_leaves_a_run_lying_ends_all_the_same(tiny_server: Server) -> None:
    code = (
        "import sys, headwater_client as hw\n"
        "run = hw.Client(sys.argv[1], trust_env=False).map([[1, 2]] * 500)\n"
        "print(next(run).answer['layers.2.resid_post'].shape)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, tiny_server.url], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "(2, 30)\n", "")


def test_httpx_of_others_logs_as_ever(tiny: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "httpx")
    tiny.get("/livez")
    assert any("/livez" in record.getMessage() for record in caplog.records)


def test_what_a_run_did_not_write_is_not_written_over(tiny_server: Server, tmp_path: Path) -> None:
    foreign = tmp_path / "00000000.safetensors"
    foreign.write_bytes(b"somebody's")
    with (
        client_of(tiny_server) as client,
        pytest.raises(hw.RunMismatch, match=r"00000000\.safetensors and no run\.json"),
    ):
        client.map(INPUTS, outputs=OUTPUTS, into=tmp_path).run()
    assert foreign.read_bytes() == b"somebody's"
    assert {path.name for path in tmp_path.iterdir()} <= {foreign.name, ".lock"}


def test_a_directory_must_be_one(tiny_server: Server, tmp_path: Path) -> None:
    file = tmp_path / "taken"
    file.touch()
    with client_of(tiny_server) as client:
        with pytest.raises(ValueError, match="into: must name a directory"):
            client.map(INPUTS, into="")
        with pytest.raises(ValueError, match="into: taken is a file"):
            client.map(INPUTS, into=file).run()


@pytest.mark.parametrize("one", ["hello", b"hello", {"text": "hello"}, None, 5])
def test_one_input_by_itself_is_no_collection(tiny_server: Server, one: Any) -> None:
    with client_of(tiny_server) as client, pytest.raises(ValueError, match="inputs: must be a collection"):
        client.map(one)


def test_a_point_that_the_model_has_not_ends_the_run_at_once(tiny_server: Server, tmp_path: Path) -> None:
    with client_of(tiny_server) as client, pytest.raises(hw.UnknownPoint):
        client.map(INPUTS, outputs="layers.99.resid_post", into=tmp_path).run()
    assert len(list(tmp_path.glob("*.error.json"))) < len(INPUTS)

"""One caller's failure, memory or leaving is its own: all others of its batch get the answer that they get alone."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.server import Server, serving
from tests.service.calls import SAFETENSORS, Array, assert_rows_close, ids, outputs, problem
from tests.service.faulty import AT_LAYER, FAILS, HOLDS, NO_MEMORY

SECONDS = 30.0
LAST = "layers.2.resid_post"
BINARY = {"Accept": SAFETENSORS}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="module", params=[False, True], ids=["at once", "later"])
def server(tiny_directory: Path, here: Path, request: pytest.FixtureRequest) -> Iterator[Server]:
    """Once with results that are there when they are made, once as from a device that runs by itself."""
    program = (sys.executable, str(Path(__file__).with_name("faulty.py")))
    options = ("--threads", "1", "--stream-above-bytes", "20000")
    later = {"LATER": "1"} if request.param else {}
    with serving(tiny_directory, *options, program=program, FAULTS=str(here), **later) as server:
        yield server


async def until(happens: Any, what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not happens():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.002)


@asynccontextmanager
async def held(client: httpx.AsyncClient, here: Path) -> AsyncIterator[None]:
    """While the model is held in the middle of a batch, calls gather; at the end they run together."""
    holding = asyncio.create_task(client.post("/forward", json={"tokens": [HOLDS, 1]}, headers=BINARY))
    await until((here / "held").exists, "the model is held")
    yield
    (here / "go").touch()
    assert (await holding).status_code == 200


async def waiting(client: httpx.AsyncClient, n: int) -> None:
    """Wait until so many calls wait behind the one that is held: a sequence each."""

    async def seen() -> float:
        text = (await client.get("/metrics")).text
        line = next(line for line in text.splitlines() if line.startswith("headwater_queue_requests "))
        return float(line.split()[1])

    deadline = time.monotonic() + SECONDS
    while await seen() < n:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.002)


def call(tokens: list[int], *names: str) -> dict[str, Any]:
    return {"json": {"tokens": tokens, "outputs": list(names or (LAST,))}, "headers": BINARY}


async def alone(client: httpx.AsyncClient, tokens: list[int], *names: str) -> dict[str, Array]:
    return outputs(await client.post("/forward", **call(tokens, *names)))


@pytest.mark.parametrize(("fault", "code"), [(FAILS, "internal_error"), (NO_MEMORY, "out_of_memory")])
def test_a_failure_planted_for_one_of_sixteen_gives_fifteen_right_answers_and_one_500(
    server: Server, here: Path, fault: int, code: str
) -> None:
    async def test() -> None:
        async with server.async_client() as client:
            sequences = [ids(3 + i, 80, seed=i) for i in range(16)]
            sequences[11] = [fault, 1, 2]
            expected = {i: await alone(client, one) for i, one in enumerate(sequences) if i != 11}
            async with held(client, here):
                calls = [asyncio.create_task(client.post("/forward", **call(one))) for one in sequences]
                await waiting(client, 16)
            for i, response in enumerate([await one for one in calls]):
                if i == 11:
                    problem(response, 500, code)
                    request_id = response.headers["x-request-id"]
                else:
                    assert_rows_close(outputs(response)[LAST], expected[i][LAST])
            server.wait_for_line(f'"{request_id}"', code)
            assert "16 sequences, layer 2" in (here / "layers").read_text()

    asyncio.run(test())


def test_a_streamed_answer_whose_batch_fails_half_way_comes_once_and_right(server: Server, here: Path) -> None:
    """Its first layers went out before the failure; after the rerun it goes on behind the last byte sent."""

    async def test() -> None:
        async with server.async_client() as client:
            names = ("layers.*.resid_post", "layers.*.attn_probs")
            streamed, failing = ids(59, 80), [FAILS, 5]
            expected = await alone(client, streamed, *names)
            async with held(client, here):
                calls = [
                    asyncio.create_task(client.post("/forward", **call(one, *names))) for one in (streamed, failing)
                ]
                await waiting(client, 2)
            response = await calls[0]
            assert response.headers["content-length"] == str(len(response.content))
            found = outputs(response)
            assert set(found) == set(expected)
            for name, tensor in expected.items():
                assert_rows_close(found[name], tensor)
            problem(await calls[1], 500)
            assert (here / "layers").read_text().count("2 sequences, layer 2") == 1

    (here / "layers").unlink(missing_ok=True)
    asyncio.run(test())


def test_one_caller_of_four_leaves_in_the_middle_of_their_batch_and_three_are_answered(
    server: Server, here: Path, request: pytest.FixtureRequest
) -> None:
    if request.node.callspec.params["server"]:
        pytest.skip("the four would be held while they are begun, before those that held them up are answered")

    async def test() -> None:
        async with server.async_client() as client:
            sequences = [ids(5 + i, 80, seed=i) for i in range(3)]
            expected = [await alone(client, one) for one in sequences]
            async with held(client, here):
                first = [asyncio.create_task(client.post("/forward", **call(one))) for one in sequences]
                leaves = asyncio.create_task(client.post("/forward", **call([HOLDS, 9])))
                await waiting(client, 4)
            await until((here / "held").exists, "the four run")
            leaves.cancel()
            await until(lambda: leaves.done(), "it has left")
            (here / "go").touch()
            for response, numbers in zip([await one for one in first], expected, strict=True):
                assert_rows_close(outputs(response)[LAST], numbers[LAST])

    asyncio.run(test())


def test_when_all_of_a_batch_have_left_no_further_layer_runs(server: Server, here: Path) -> None:
    async def test() -> None:
        async with server.async_client() as client:
            (here / "layers").write_text("")
            headers = BINARY | {"X-Request-Id": "the-only-one"}
            only = asyncio.create_task(client.post("/forward", json={"tokens": [HOLDS, 1, 2]}, headers=headers))
            await until((here / "held").exists, "it runs")
            only.cancel()
            line = await asyncio.to_thread(server.wait_for_line, '"the-only-one"')
            assert json.loads(line)["code"] == "caller_left"
            (here / "go").touch()
            await alone(client, ids(3, 80))
            ran = (here / "layers").read_text().splitlines()
            assert ran == [f"1 sequences, layer {i}" for i in [*range(AT_LAYER + 1), 0, 1, 2, 3]]

    asyncio.run(test())


def test_a_deadline_that_passes_between_layers_ends_the_run(server: Server, here: Path) -> None:
    async def test() -> None:
        async with server.async_client() as client:
            body = {"tokens": [HOLDS, 1], "timeout_ms": 200}
            response = await client.post("/forward", json=body, headers=BINARY)
            problem(response, 504, "deadline_passed")
            (here / "layers").write_text("")
            (here / "go").touch()
            await alone(client, ids(3, 80))
            assert "layer 3" in (here / "layers").read_text().splitlines()[-1]
            assert len((here / "layers").read_text().splitlines()) == 4

    asyncio.run(test())


def test_numbers_that_overflow_in_one_sequence_stay_in_it(server: Server, here: Path) -> None:
    async def test() -> None:
        async with server.async_client() as client:
            tokens = ids(7, 80)
            expected = await alone(client, tokens)
            x = (np.eye(5, 30, dtype=np.float32) * np.float32(1e6)).tolist()
            huge = {"x": x, "outputs": [{"name": LAST, "dtype": "float16"}]}
            async with held(client, here):
                one = asyncio.create_task(client.post("/forward", json=huge, headers=BINARY))
                other = asyncio.create_task(client.post("/forward", **call(tokens)))
                await waiting(client, 2)
            problem(await one, 422, "non_finite_result")
            assert_rows_close(outputs(await other)[LAST], expected[LAST])

    asyncio.run(test())

"""Who shares a batch must not matter: answers in company equal answers alone, and no caller can hurt another."""

import asyncio
import json
import socket
import statistics
import time
from typing import Any

import httpx
import numpy as np

from tests.server import Server
from tests.service.calls import (
    JSON,
    SAFETENSORS,
    Array,
    ask,
    assert_rows_close,
    body_of,
    ids,
    outputs,
    post,
    problem,
    rows,
)

V, D = 9669, 256  # of mgm
CALLERS = 32
SECONDS = 120.0

OUTPUTS: list[list[Any]] = [
    ["layers.7.resid_post"],
    [{"name": "layers.*.resid_post", "rows": [-1, 0]}, {"name": "final_norm", "pool": "mean", "as": "mean"}],
    [{"name": "layers.5.attn_probs", "heads": [3, 0], "rows": {"start": 0, "stop": 1}}, "layers.6.z"],
    [{"name": "logits", "rows": [-1]}, {"name": "logits", "top_k": 5, "rows": [0], "as": "top"}],
    [{"name": "layers.7.attn_scores", "heads": [7], "rows": [-1]}, "hidden_states.8", "layers.5.k"],
    ["layers.5.mlp_out", {"name": "layers.7.attn_probs", "top_k": 3, "heads": [1]}],
    ["layers.4.resid_pre"],
]


def caller(i: int) -> dict[str, Any]:
    """A request unlike the others: its length, kind of input, start and outputs are its own."""
    length = [1, 2, 3, 5, 13, 37, 101, 211, 307, 499][i % 10] if i % 3 else 1 + (i * 97) % 500
    asked = OUTPUTS[i % len(OUTPUTS)]
    match i % 5:
        case 0 | 1:
            one: dict[str, Any] = {"tokens": ids(length, V, i)}
        case 2:
            one = {"x": (rows(length, D, i) * 3).tolist(), "start": i % 5}
        case 3:
            one = {"inputs_embeds": (rows(length, D, i) * 0.1).tolist()}
        case _:
            one = {"inputs": [{"tokens": ids(n, V, i)} for n in (length, 1, 7)]}
    return one | {"outputs": asked}


async def send(client: httpx.AsyncClient, sent: dict[str, Any]) -> httpx.Response:
    request = body_of(sent, {}, "json")
    request["headers"]["Accept"] = SAFETENSORS
    return await client.post("/forward", **request)


def together(server: Server, requests: list[dict[str, Any]]) -> list[httpx.Response]:
    """The responses to requests that are sent at the same time."""

    async def run() -> list[httpx.Response]:
        async with asyncio.timeout(SECONDS), server.async_client() as client:
            return list(await asyncio.gather(*(send(client, one) for one in requests)))

    return asyncio.run(run())


def batch_sizes(response: httpx.Response) -> list[int]:
    header = json.loads(response.content[8 : 8 + int.from_bytes(response.content[:8], "little")])
    usage = json.loads(header["__metadata__"]["usage"])
    return [one["batch"]["sequences"] for one in (usage if isinstance(usage, list) else [usage])]


def same_answers(found: dict[str, Array], alone: dict[str, Array]) -> None:
    assert found.keys() == alone.keys()
    for name, array in alone.items():
        if name.endswith(".indices"):
            continue
        assert_rows_close(found[name], array)


def test_a_request_gets_the_same_answer_alone_and_in_company(mgm_server: Server, mgm_client: httpx.Client) -> None:
    requests = [caller(i) for i in range(CALLERS)]
    alone = [ask(mgm_client, one) for one in requests]
    responses = together(mgm_server, requests)
    for response, expected in zip(responses, alone, strict=True):
        same_answers(outputs(response), expected)
    assert max(size for i, one in enumerate(responses) if "inputs" not in requests[i] for size in batch_sizes(one)) > 1


def test_short_inputs_get_the_same_answer_beside_long_ones_in_a_deep_model(smollm2_client: httpx.Client) -> None:
    # products of few rows take other kernels than products of many: the rows must come out alike all the same
    asked = {"outputs": ["layers.*.resid_post", "layers.*.mlp_out", "layers.*.z", "final_norm"]}
    short: list[dict[str, Any]] = [{"tokens": ids(n, 49152, seed=2)} for n in (1, 3, 7)]
    short.append({"inputs_embeds": rows(3, 576).tolist()})
    together = ask(smollm2_client, asked | {"inputs": [{"tokens": ids(31, 49152)}, *short]})
    for i, one in enumerate(short, start=1):
        own = {name.removeprefix(f"{i}."): array for name, array in together.items() if name.startswith(f"{i}.")}
        same_answers(own, ask(smollm2_client, asked | one))


def test_rows_are_never_mixed_up(tiny_server: Server) -> None:
    """Each caller sends rows that nobody else has, and must get those back."""
    sent = [np.full((1 + i % 7, 30), i + 0.5, np.float32) for i in range(64)]
    requests = [{"x": x.tolist(), "outputs": ["layers.0.resid_pre"]} for x in sent]
    for x, response in zip(sent, together(tiny_server, requests), strict=True):
        np.testing.assert_array_equal(outputs(response)["layers.0.resid_pre"], x)


def test_a_bad_request_among_many_fails_alone(mgm_server: Server, mgm_client: httpx.Client) -> None:
    good = [{"tokens": ids(n, V), "outputs": ["layers.7.resid_post"]} for n in (3, 101, 7, 211, 13, 1, 37, 5)]
    narrow = [{"name": "layers.0.resid_pre", "dtype": "float16"}]
    bad = {
        3: ({"x": (rows(5, D) * 1e6).tolist(), "outputs": narrow}, 422),  # found out in the model
        5: ({"tokens": [V]}, 422),
        8: ({"tokens": ids(11, V), "timeout_ms": 0}, 422),
        9: ({"tokens": ids(499, V), "outputs": ["logits"], "timeout_ms": 1}, 504),
    }
    requests = list(good)
    for place, (one, _) in bad.items():
        requests.insert(place, one)
    alone = [ask(mgm_client, one) for one in good]
    responses = together(mgm_server, requests)
    for place, (_, status) in bad.items():
        problem(responses[place], status)
    rest = [response for i, response in enumerate(responses) if i not in bad]
    for response, expected in zip(rest, alone, strict=True):
        same_answers(outputs(response), expected)


def test_numbers_that_are_not_finite_in_a_neighbour_change_nothing(tiny_server: Server, tiny: httpx.Client) -> None:
    """Rows of 3e38 overflow to Inf and NaN inside the layers of whoever sent them."""
    good = [{"tokens": ids(n), "outputs": ["layers.*.attn_probs", "logits"]} for n in (7, 11, 13, 17)]
    huge = (np.sign(rows(5)) * np.float32(3e38)).tolist()
    bad = {"x": huge, "outputs": ["layers.2.mlp_out"]}
    alone = [ask(tiny, one) for one in good]
    requests = [one for pair in zip(good, [bad] * 4, strict=True) for one in pair]
    for response, expected in zip(together(tiny_server, requests)[::2], alone, strict=True):
        same_answers(outputs(response), expected)


def test_a_caller_who_leaves_in_mid_flight_hurts_nobody(mgm_server: Server, mgm_client: httpx.Client) -> None:
    body = json.dumps({"tokens": ids(499, V), "outputs": ["layers.*.resid_post", "logits"]}).encode()
    head = f"POST /forward HTTP/1.1\r\nHost: h\r\nContent-Type: {JSON}\r\nAccept: {SAFETENSORS}\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    good = [{"tokens": ids(n, V), "outputs": ["layers.7.resid_post"]} for n in (3, 101, 7)]
    alone = [ask(mgm_client, one) for one in good]
    leaving = [socket.create_connection(("127.0.0.1", mgm_server.port), timeout=30) for _ in range(5)]
    for connection in leaving:
        connection.sendall(request)
    for connection in leaving:
        connection.close()
    for response, expected in zip(together(mgm_server, good), alone, strict=True):
        same_answers(outputs(response), expected)
    same_answers(ask(mgm_client, good[0]), alone[0])
    assert mgm_client.get("/readyz").status_code == 200


def test_a_caller_who_stops_reading_holds_up_nobody(tiny_server: Server, tiny: httpx.Client) -> None:
    body = json.dumps({"x": rows(997).tolist(), "outputs": ["layers.*.attn_probs"]}).encode()
    head = f"POST /forward HTTP/1.1\r\nHost: h\r\nContent-Type: {JSON}\r\nAccept: {SAFETENSORS}\r\n"
    with socket.create_connection(("127.0.0.1", tiny_server.port), timeout=30) as connection:
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert connection.recv(13).startswith(b"HTTP/1.1 200")  # 24 MB follow, and nobody reads them
        for _ in range(3):
            ask(tiny, {"tokens": ids(7)})


def test_probes_answer_while_the_model_is_busy(smollm2_server: Server, smollm2_client: httpx.Client) -> None:
    """In the best of up to three rounds, with the model busy throughout, half of the probes take under 100 ms."""
    heavy = {"tokens": ids(503, 49152), "outputs": [{"name": "layers.29.resid_post", "rows": [-1]}]}
    post(smollm2_client, {"tokens": [1]})

    async def run() -> list[float]:
        medians: list[float] = []
        async with asyncio.timeout(SECONDS), smollm2_server.async_client() as client:
            await client.get("/livez")  # a connection is there
            for _ in range(3):
                busy = asyncio.ensure_future(send(client, heavy))
                times: list[float] = []
                while len(times) < 101 and not busy.done():
                    began = time.monotonic()
                    probe = await client.get("/readyz" if len(times) % 2 else "/livez")
                    took = time.monotonic() - began
                    assert probe.status_code == 200
                    if not busy.done():
                        times.append(took)
                assert (await busy).status_code == 200
                medians.append(statistics.median(times))
                if medians[-1] < 0.1:
                    break
        return medians

    medians = asyncio.run(run())
    assert min(medians) < 0.1, medians

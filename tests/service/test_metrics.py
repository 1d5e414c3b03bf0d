"""What /metrics says is what happened, in series that no caller can make."""

import ast
import asyncio
import json
import random
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import prometheus_client
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families as plain_families

import service.assembly
import service.batcher
from model.checkpoint.load import LoadedModel, load_model
from service.app import create_app
from service.errors import CODES
from service.metrics import CALL_ROUTES, CALL_STATUSES, METHODS, WATCHED, Metrics
from service.settings import Settings
from tests.server import Server
from tests.service.in_process import fail_on_tokens, ready

ROOT = Path(__file__).parents[2]
UNITS = ("seconds", "bytes", "tokens", "tasks", "sequences", "requests", "parameters", "info", "total", "ready")
SECONDS = 20.0  # until a condition must hold

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def series_of(text: str) -> Series:
    """The value of each series."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in plain_families(text)
        for sample in family.samples
    }


def scrape(client: httpx.Client) -> Series:
    response = client.get("/metrics")
    assert response.status_code == 200
    return series_of(response.text)


def value(series: Series, name: str, **labels: str) -> float:
    return series.get((f"headwater_{name}", frozenset(labels.items())), 0.0)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.005)


@pytest.fixture(scope="module")
def tiny_model(tiny_directory: Path) -> LoadedModel:
    return load_model(tiny_directory, name="tiny")


@pytest.fixture
def app(tiny_model: LoadedModel) -> FastAPI:
    return create_app(Settings(max_tokens=41), lambda _: tiny_model)


@pytest.fixture
def client(app: FastAPI) -> Iterator[TestClient]:
    """A service of its own in this process, so that its counts are those of one test."""
    with ready(app, raise_server_exceptions=False) as client:
        yield client


# --- what is counted


def test_requests_are_counted_by_template_method_and_status(client: TestClient) -> None:
    for _ in range(3):
        client.post("/forward", json={"tokens": [1, 2]})
    client.get("/v2/models/tiny")
    client.get("/v2/models/thames")
    client.get("/nowhere")
    client.get("/forward")
    found = scrape(client)
    expected = [
        ("/forward", "POST", "200", 3),
        ("/v2/models/{name:path}", "GET", "200", 1),
        ("/v2/models/{name:path}", "GET", "404", 1),
        ("none", "GET", "404", 1),
        ("/forward", "GET", "405", 1),
    ]
    for route, method, status, count in expected:
        assert value(found, "requests_total", route=route, method=method, status=status) == count
    whole = sum(
        v
        for (name, labels), v in found.items()
        if name == "headwater_requests_total" and ("route", "/readyz") not in labels
    )
    assert whole == 7
    assert value(found, "request_seconds_count", route="/forward") == 4


def test_refusals_are_counted_by_code(client: TestClient) -> None:
    client.post("/forward", json={"tokens": [1], "outputs": ["nowhere"]})
    client.post("/forward", json={"tokens": [1] * 42})
    client.post("/forward", content=b"{", headers={"Content-Type": "application/json"})
    client.post("/forward", content=b"{", headers={"Content-Type": "application/json"})
    client.post("/v2/models/tiny/infer", content=b"{")
    client.get("/nowhere")
    found = scrape(client)
    counts = {"unknown_point": 1, "too_large": 1, "malformed_body": 3, "not_found": 1}
    for code in {*CODES, "other"} - {"not_ready"}:  # said to this test while the model was loaded
        assert value(found, "refusals_total", code=code) == counts.get(code, 0), code


def test_an_error_of_ours_is_counted_and_the_service_goes_on(client: TestClient, app: FastAPI) -> None:
    @app.get("/broken")
    def broken() -> None:
        raise RuntimeError

    assert client.get("/broken").status_code == 500
    found = scrape(client)
    assert value(found, "refusals_total", code="internal_error") == 1
    assert value(found, "requests_total", route="/broken", method="GET", status="500") == 1


def test_bytes_are_counted_as_they_came_and_went(client: TestClient) -> None:
    before = scrape(client)  # itself counted when it has been made
    after_first = scrape(client)
    scraped = value(after_first, "sent_bytes_total") - value(before, "sent_bytes_total")
    assert scraped > 1000
    body = json.dumps({"tokens": [3, 5, 7]}).encode()
    sent = len(client.post("/forward", content=body, headers={"Content-Type": "application/json"}).content)
    refused = client.post("/forward", content=b"[" * 1009, headers={"Content-Type": "application/json"})
    found = scrape(client)
    assert value(found, "received_bytes_total") == len(body) + 1009
    went = value(found, "sent_bytes_total") - value(after_first, "sent_bytes_total") - sent - len(refused.content)
    assert went == pytest.approx(scraped, rel=0.2)  # the scrape between


def test_times_are_counted_once_a_request_that_ran(client: TestClient) -> None:
    client.post("/forward", json={"inputs": [{"tokens": [1]}, {"tokens": [2, 3]}]})
    client.post("/forward", json={"tokens": [1]}, headers={"Accept": "application/x-safetensors"})
    infer = {"inputs": [{"name": "tokens", "shape": [2], "datatype": "INT64", "data": [1, 2]}]}
    assert client.post("/v2/models/tiny/infer", json=infer).status_code == 200
    client.post("/forward", json={"tokens": []})
    found = scrape(client)
    for name in ("wait", "compute", "encode"):
        assert value(found, f"{name}_seconds_count") == 3, name
        assert value(found, f"{name}_seconds_sum") > 0


def test_batches_are_counted_with_their_rows_sequences_and_layers(client: TestClient) -> None:
    before = scrape(client)
    assert value(before, "batches_total", outcome="ok") == 0, "the passes that warm up are not calls"
    client.post("/forward", json={"tokens": [1] * 5, "outputs": ["layers.0.resid_post"]})
    client.post("/forward", json={"x": [[0.5] * 30] * 7, "start": 2})
    found = scrape(client)

    def grown(name: str, **labels: str) -> float:
        return value(found, name, **labels) - value(before, name, **labels)

    assert grown("batches_total", outcome="ok") == 2
    assert grown("layer_runs_total") == 2
    assert grown("batch_tokens_sum") == 12
    assert grown("batch_tokens_bucket", le="8.0") == 2
    assert grown("batch_tokens_bucket", le="4.0") == 0
    assert grown("batch_sequences_sum") == 2
    assert grown("batch_seconds_count") == 2
    assert value(found, "batches_total", outcome="failed") == 0


def test_a_batch_that_fails_is_counted_as_failed(tiny_model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_on_tokens(monkeypatch)
    with ready(create_app(Settings(), lambda _: tiny_model)) as client:
        assert client.post("/forward", json={"tokens": [1]}).status_code == 500
        found = scrape(client)
    assert value(found, "batches_total", outcome="failed") == 1
    assert value(found, "batches_total", outcome="ok") == 0
    assert value(found, "layer_runs_total") == 0, "nobody knows how far it came"
    assert value(found, "refusals_total", code="internal_error") == 1


def held_on_tokens(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Let the model wait on every batch that begins with tokens: it has entered one, and it may go on."""
    begin, entered, gate = service.assembly.begin, threading.Event(), threading.Event()

    def held(stack: Any, sequences: Any, *rest: Any) -> Any:
        if sequences[0].kind == "tokens":
            entered.set()
            assert gate.wait(SECONDS)
        return begin(stack, sequences, *rest)

    monkeypatch.setattr(service.assembly, "begin", held)
    return entered, gate


def test_the_queue_gauges_are_read_from_the_queue_itself(
    tiny_model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, gate = held_on_tokens(monkeypatch)
    with ready(create_app(Settings(), lambda _: tiny_model)) as client, ThreadPoolExecutor(3) as callers:

        def queue() -> tuple[float, float]:
            found = scrape(client)
            return value(found, "queue_requests"), value(found, "queue_tokens")

        try:
            answers = [callers.submit(client.post, "/forward", json={"tokens": [1] * 2})]
            assert entered.wait(SECONDS)
            assert queue() == (0, 0), "what runs does not wait"
            two = {"inputs": [{"tokens": [1] * 3}, {"tokens": [1] * 5}]}
            answers.append(callers.submit(client.post, "/forward", json=two))
            wait_until(lambda: queue() == (1, 8))
            answers.append(callers.submit(client.post, "/forward", json={"tokens": [1] * 7}))
            wait_until(lambda: queue() == (2, 15))
        finally:
            gate.set()
        assert [answer.result(SECONDS).status_code for answer in answers] == [200] * 3
        assert queue() == (0, 0)


def test_the_silence_of_the_model_thread_grows_while_it_is_held_and_ends_when_it_goes_on(
    tiny_model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, gate = held_on_tokens(monkeypatch)
    monkeypatch.setattr(service.batcher, "IDLE_BEAT_SECONDS", 0.01)
    with ready(create_app(Settings(), lambda _: tiny_model)) as client, ThreadPoolExecutor(1) as caller:

        def silence() -> float:
            return scrape(client)["headwater_model_silence_seconds", frozenset()]

        wait_until(lambda: 0 <= silence() < 0.1)
        try:
            answer = caller.submit(client.post, "/forward", json={"tokens": [1]})
            assert entered.wait(SECONDS)
            wait_until(lambda: silence() > 0.5)
            assert value(scrape(client), "admitted_requests") == 1
        finally:
            gate.set()
        assert answer.result(SECONDS).status_code == 200
        wait_until(lambda: silence() < 0.1)


def test_ready_says_what_the_probe_says_from_loading_to_draining(tiny_model: LoadedModel) -> None:
    gate = threading.Event()

    def load(_: Any) -> LoadedModel:
        assert gate.wait(SECONDS)
        return tiny_model

    app = create_app(Settings(), load)
    with TestClient(app) as client:

        def told() -> tuple[int, float, bool]:
            found = scrape(client)
            silence = ("headwater_model_silence_seconds", frozenset[tuple[str, str]]()) in found
            return client.get("/readyz").status_code, found["headwater_ready", frozenset()], silence

        try:
            assert told() == (503, 0.0, False), "there is no model thread yet"
        finally:
            gate.set()
        wait_until(lambda: told() == (200, 1.0, True))
        app.state.life.drain()
        assert told() == (503, 0.0, True)


def test_what_alerts_count_is_there_before_the_first_event(tiny: httpx.Client) -> None:
    found = series_of(Metrics().exposition("")[0].decode())
    counted = {
        (labels["route"], labels["method"], labels["status"])
        for name, labels in ((name, dict(labels)) for name, labels in found)
        if name == "headwater_requests_total"
    }
    assert counted == {(route, "POST", status) for route in CALL_ROUTES for status in CALL_STATUSES}
    paths = {path.replace("{name:path}", "{name}") for path in CALL_ROUTES}
    documented = tiny.get("/openapi.json").json()["paths"]
    assert paths == {path for path in documented if path.endswith(("/forward", "/infer"))}


def test_two_apps_in_one_process_count_for_themselves(tiny_model: LoadedModel) -> None:
    first, second = (create_app(Settings(), lambda _: tiny_model) for _ in range(2))
    with ready(first) as one, ready(second) as two:
        one.post("/forward", json={"tokens": [1]})
        counts = [
            value(scrape(client), "requests_total", route="/forward", method="POST", status="200")
            for client in (one, two)
        ]
    assert counts == [1, 0]
    assert not [family.name for family in prometheus_client.REGISTRY.collect() if "headwater" in family.name]


def test_the_model_and_the_process_are_described(client: TestClient) -> None:
    found = scrape(client)
    about = client.get("/model").json()
    (labels,) = [dict(labels) for (name, labels) in found if name == "headwater_model_info"]
    assert labels.pop("version")
    assert labels == {key: about[key] for key in ("name", "family", "dtype", "device", "weights_sha256")}
    assert value(found, "model_parameters") == about["parameters"]
    assert 0 <= time.time() - value(found, "start_time_seconds") < 600
    for name in ("process_resident_memory_bytes", "process_open_fds", "process_cpu_seconds_total"):
        assert found[name, frozenset()] > 0


# --- what no caller can do


def test_paths_methods_and_names_that_nobody_knows_make_no_new_series(tiny: httpx.Client) -> None:
    chance = random.Random(1013)

    def word() -> str:
        return "".join(chance.choices("abcdefghijklmnopqrstuvwxyz%20.", k=11))

    def hammer() -> None:
        for method in ("GET", "POST", "PROPFIND"):
            tiny.request(method, f"/{word()}")
            tiny.request(method, f"/{word()}/{word()}?{word()}={word()}")
            tiny.request(method, f"/v2/models/{word()}")
            tiny.request(method, f"/v2/models/{word()}/versions/{word()}/infer")
            tiny.request(method, f"/static-offline-docs/{word()}")
            tiny.request(method, "/forward", content=word(), headers={"Content-Type": word(), "Host": word()})
            tiny.request(method, "/livez", headers={"X-Request-Id": word(), "Accept": f"{word()};version={word()}"})
        call = {"tokens": [1], "outputs": [{"name": word()}], word(): word()}
        tiny.post("/forward", json=call)
        tiny.post("/forward", json={"tokens": [1], "outputs": [{"name": "embeddings", "as": word()}]})

    hammer()
    scrape(tiny)  # counted itself from the second on
    before = scrape(tiny)
    for _ in range(12):
        hammer()
    after = scrape(tiny)
    assert set(after) == set(before)
    assert value(after, "requests_total", route="none", method="other", status="404") >= 13 * 2


def test_every_label_is_from_a_closed_set(tiny: httpx.Client) -> None:
    tiny.request("PROPFIND", "/somewhere")
    templates = set(tiny.get("/openapi.json").json()["paths"])
    # FastAPI's document leaves out what its templates say of a parameter's kind
    templates = {one.replace("{name}", "{name:path}") for one in templates}
    closed = {
        "route": templates | {"none", "/", "/viewer/{path:path}", "/docs", "/docs/oauth2-redirect"},
        "method": METHODS | {"other"},
        "code": CODES | {"other"},
        "outcome": {"ok", "failed", "left"},
    }
    for name, labels in scrape(tiny):
        if not name.startswith("headwater_") or name == "headwater_model_info":
            continue
        for label, text in labels:
            if label == "status":
                assert re.fullmatch(r"[1-5]\d\d|0", text)
            elif label != "le":
                assert text in closed[label], (name, label, text)


def test_what_is_in_no_list_is_counted_as_other() -> None:
    metrics = Metrics()
    line = {"method": "BREW", "route": None, "status": 418, "ms": 1.0, "bytes_in": 0, "bytes_out": 0, "code": "teapot"}
    metrics.request_ended(line)
    found = series_of(metrics.exposition("")[0].decode())
    assert value(found, "requests_total", route="none", method="other", status="418") == 1
    assert value(found, "refusals_total", code="other") == 1


def test_a_gauge_that_is_not_on_the_list_cannot_be_watched() -> None:
    metrics = Metrics()
    with pytest.raises(ValueError, match="queue_depth"):
        metrics.watch("queue_depth", lambda: 0.0)
    for name in WATCHED:
        metrics.watch(name, lambda: 7.0)
    found = series_of(metrics.exposition("")[0].decode())
    assert all(value(found, name) == 7.0 for name in WATCHED)


def test_every_code_that_the_service_gives_is_on_the_list_and_in_the_docs() -> None:
    given = set()
    for path in (ROOT / "service").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                given |= {
                    keyword.value.value
                    for keyword in node.keywords
                    if keyword.arg == "code" and isinstance(keyword.value, ast.Constant)
                }
    assert {"json_too_large", "out_of_memory"} <= given
    assert given - {None} <= CODES
    refusals = (ROOT / "docs" / "api.md").read_text(encoding="utf-8").partition("## Refusals")[2]
    assert set(re.findall(r"`(\w+)`", refusals)) >= CODES


# --- how it is told


def check_rules(families: list[Any]) -> None:
    """What `promtool check metrics` looks at."""
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    for family in families:
        assert family.documentation, family.name
        assert family.type in ("counter", "gauge", "histogram", "info"), family.name
        if family.type == "counter":
            assert all(sample.name == f"{family.name}_total" for sample in family.samples)
        if family.name.startswith("headwater_"):
            assert re.fullmatch(r"[a-z][a-z0-9_]*[a-z0-9]", family.name)
            last = "total" if family.type == "counter" else family.name.rpartition("_")[2]
            assert last in UNITS or family.type == "info", family.name
            assert not re.search(r"_(ms|milliseconds|kb|mb|count|sum|bucket)$", family.name)
        seen = [(sample.name, *sorted(sample.labels.items())) for sample in family.samples]
        assert len(seen) == len(set(seen))


def test_the_text_format_keeps_its_rules(tiny: httpx.Client) -> None:
    tiny.post("/forward", json={"tokens": [1]})
    response = tiny.get("/metrics")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    check_rules(list(plain_families(response.text)))
    assert "_created" not in response.text
    if promtool := shutil.which("promtool"):
        done = subprocess.run([promtool, "check", "metrics"], input=response.text, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_openmetrics_keeps_its_rules_and_comes_where_it_is_asked_for(tiny: httpx.Client) -> None:
    accept = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,*/*;q=0.1"
    response = tiny.get("/metrics", headers={"Accept": accept})
    assert response.headers["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    families = list(openmetrics_families(response.text))
    check_rules(families)
    assert {family.unit for family in families} >= {"seconds", "bytes"}
    plain = {family.name: family.type for family in plain_families(tiny.get("/metrics").text)}
    info = {"headwater_model": "headwater_model_info"}
    assert {info.get(family.name, family.name) for family in families} == set(plain)


@pytest.mark.parametrize(
    ("accept", "media"),
    [
        ("*/*", "text/plain"),
        ("text/plain;version=1.0.0;q=0.6,application/openmetrics-text;q=0.5", "text/plain"),
        ("application/openmetrics-text;version=99;escaping=x;q=0.7,text/plain;q=0.6", "application/openmetrics-text"),
        ("application/openmetrics-text;q=0", "text/plain"),
        ("text/html", "text/plain"),
        (";;;=,q=;version=\xb2", "text/plain"),
    ],
)
def test_any_accept_gets_one_of_the_two_formats(tiny: httpx.Client, accept: str, media: str) -> None:
    response = tiny.get("/metrics", headers={"Accept": accept.encode("latin-1")})  # type: ignore[dict-item]
    assert response.status_code == 200
    assert response.headers["content-type"].partition(";")[0] == media
    assert response.headers["content-type"].isascii()
    assert "99" not in response.headers["content-type"]


def test_the_document_of_the_api_tells_of_both_formats(tiny: httpx.Client) -> None:
    operation = tiny.get("/openapi.json").json()["paths"]["/metrics"]["get"]
    content = operation["responses"]["200"]["content"]
    assert {media: one["schema"]["type"] for media, one in content.items()} == {
        "text/plain": "string",
        "application/openmetrics-text": "string",
    }


def test_a_slow_gauge_keeps_nobody_waiting(client: TestClient, app: FastAPI) -> None:
    entered, gate = threading.Event(), threading.Event()

    def slow() -> float:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()  # no event loop runs in this thread
        entered.set()
        assert gate.wait(SECONDS)
        return 11.0

    app.state.metrics.watch("running_tokens", slow)
    with ThreadPoolExecutor(1) as caller:
        try:
            scraping = caller.submit(scrape, client)
            assert entered.wait(SECONDS)
            assert client.get("/livez").status_code == 200
            assert client.post("/forward", json={"tokens": [1]}).status_code == 200
            assert not scraping.done()
        finally:
            gate.set()
        assert value(scraping.result(SECONDS), "running_tokens") == 11.0


def test_a_scrape_takes_milliseconds(tiny: httpx.Client) -> None:
    times = []
    for _ in range(15):
        began = time.perf_counter()
        scrape(tiny)
        times.append(time.perf_counter() - began)
    assert sorted(times)[len(times) // 2] < 0.05  # about 0.005 on a quiet machine, reading it here included


def table(page: str, marker: str) -> list[list[str]]:
    """The rows of a table in docs/, cells without backticks."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    found = re.search(rf"<!-- {marker} -->\n(.*?)<!-- /{marker} -->", text, re.DOTALL)
    assert found is not None
    return [[cell.strip() for cell in line.strip("|").split(" |")] for line in found[1].strip().split("\n")[2:]]


def test_the_docs_list_every_metric_with_its_type_and_labels(tiny: httpx.Client, tiny_server: Server) -> None:
    tiny.post("/forward", json={"tokens": [1]})
    live = {}
    for family in plain_families(tiny.get("/metrics").text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        live[name] = (family.type, labels)
    documented = {
        name.strip("`"): (kind, set(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels, _ in table("observability.md", "metrics")
    }
    assert documented == live

"""A real Prometheus scrapes a real server, with the rules and the dashboard as they are deployed.

`make observability-test` and `make deploy-test` run it; `make test` does not, for it needs Prometheus' program. Where
that is not to be had it is skipped, unless HEADWATER_NEED_PROMTOOL is set.
"""

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from model.checkpoint.initialise import initialise
from tests.deploy.observability import HERE, RULES, alerts, dashboard_queries, recorded
from tests.deploy.test_observability import SMALLEST
from tests.server import Server, serving

SECONDS = 60.0  # until what must come has come
CALLS = 5


@pytest.fixture(scope="module")
def tools() -> Path:
    """Where Prometheus' programs are."""
    done = subprocess.run([HERE / "prometheus.sh"], capture_output=True, text=True)
    if done.returncode == 3 and not os.environ.get("HEADWATER_NEED_PROMTOOL"):
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


@pytest.fixture(scope="module")
def server(tools: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("scraped") / "tiny"
    initialise(directory, seed=11, **SMALLEST)
    with serving(directory, "--threads", "1") as server:
        yield server


@pytest.fixture(scope="module")
def prometheus(tools: Path, server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of a Prometheus that scrapes the server every second, and evaluates the rules as often."""
    folder = tmp_path_factory.mktemp("prometheus")
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES / "*.yml")],
        "scrape_configs": [
            {"job_name": "headwater", "static_configs": [{"targets": [f"127.0.0.1:{server.port}"]}]},
        ],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [
        tools / "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
    ]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stderr=log, stdout=log)
        try:
            with httpx.Client(base_url=f"http://{address}", timeout=10, trust_env=False) as client:

                def is_ready() -> bool:
                    assert process.poll() is None, (folder / "log").read_text()
                    try:
                        return client.get("/-/ready").status_code == 200
                    except httpx.TransportError:
                        return False

                wait_until(is_ready)
                yield client
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    shutil.rmtree(folder / "data", ignore_errors=True)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.1)


def ask(prometheus: httpx.Client, query: str) -> list[dict[str, Any]]:
    """The series that a query gives now."""
    answer = prometheus.get("/api/v1/query", params={"query": query}).json()
    assert answer["status"] == "success", (query, answer)
    found: list[dict[str, Any]] = answer["data"]["result"]
    return found


def values(prometheus: httpx.Client, query: str) -> list[float]:
    return [float(one["value"][1]) for one in ask(prometheus, query)]


def test_the_target_is_up(prometheus: httpx.Client) -> None:
    def targets() -> list[tuple[str, str]]:
        found = prometheus.get("/api/v1/targets").json()["data"]["activeTargets"]
        return [(one["health"], one["lastError"]) for one in found]

    wait_until(lambda: targets() == [("up", "")])


def test_the_gauges_come_back(prometheus: httpx.Client, server: Server) -> None:
    wait_until(lambda: values(prometheus, "headwater_ready") == [1.0])
    wait_until(lambda: len(values(prometheus, "headwater_model_silence_seconds")) == 1)
    (series,) = ask(prometheus, "headwater_model_silence_seconds")
    assert series["metric"]["instance"] == f"127.0.0.1:{server.port}"
    assert series["metric"]["job"] == "headwater"
    assert 0 <= float(series["value"][1]) < SECONDS
    assert values(prometheus, "headwater_max_admitted_tokens")[0] > 0


def test_calls_are_counted_and_their_rates_recorded(prometheus: httpx.Client, server: Server) -> None:
    wait_until(lambda: values(prometheus, "headwater_ready") == [1.0])
    with server.client() as client:
        for _ in range(CALLS):
            assert client.post("/forward", json={"tokens": [1, 2, 3]}).status_code == 200
    wait_until(lambda: values(prometheus, 'headwater_requests_total{route="/forward", status="200"}') == [float(CALLS)])
    wait_until(lambda: max(values(prometheus, "job:headwater_batch_tokens:rate5m"), default=0.0) > 0)
    # that the first failure will be seen: its series is there, and has a rate
    wait_until(lambda: values(prometheus, "job:headwater_calls_failed:ratio_rate5m") == [0.0])


def test_every_rule_is_loaded_and_evaluated_without_a_fault(prometheus: httpx.Client) -> None:
    def loaded() -> list[dict[str, Any]]:
        groups = prometheus.get("/api/v1/rules").json()["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    wait_until(lambda: bool(loaded()) and all(rule["health"] != "unknown" for rule in loaded()))
    assert {rule["name"] for rule in loaded()} == set(alerts()) | set(recorded())
    assert [rule for rule in loaded() if rule["health"] != "ok"] == []


def test_nothing_fires_while_all_is_well(prometheus: httpx.Client) -> None:
    wait_until(lambda: values(prometheus, "job:headwater_ready:sum") == [1.0])
    wait_until(lambda: prometheus.get("/api/v1/alerts").json()["data"]["alerts"] == [])


def test_every_query_of_the_dashboard_runs_and_finds_something(prometheus: httpx.Client, server: Server) -> None:
    with server.client() as client:
        assert client.post("/forward", json={"tokens": [1]}).status_code == 200
        assert client.post("/forward", content=b"{").status_code >= 400
    # nothing to show without a device, or while no replica has just started
    empty = ("'Memory of the device'", "annotation 'starts'")
    for where, query in dashboard_queries():
        if where.endswith(empty):
            ask(prometheus, query)
        else:
            wait_until(lambda query=query: bool(ask(prometheus, query)))  # type: ignore[misc]

"""Start, rolling update and end: the numbers of the probes and of the pod fit those of the settings."""

import asyncio
import inspect

import httpx
import pytest
import uvicorn

from deploy.tests.manifests import Manifests, probes
from deploy.tests.test_settings import settings_of
from service.app import create_app
from service.entrance import is_open_to_all
from service.life import Life
from service.loading import OPEN_WHILE_LOADING
from service.settings import Settings

PATHS = {"startupProbe": "/startedz", "readinessProbe": "/readyz", "livenessProbe": "/livez"}
EXIT_SECONDS = 10.0  # from the last answer to the end of the process, at most
LIMIT_OF_PROBES = 0.1  # s in which probes are answered under any load: docs/reliability.md


def seconds_until(probe: dict[str, int]) -> int:
    """At most so long after something went wrong a probe has failed as often as counts."""
    return probe["periodSeconds"] * probe["failureThreshold"] + probe["timeoutSeconds"]


def test_probes_ask_paths_that_the_service_has_for_everyone_and_while_it_loads(built: Manifests) -> None:
    found = {kind: probe["httpGet"]["path"] for kind, probe in probes(built.container).items()}
    assert found == PATHS
    paths = [*found.values(), *(monitor["spec"]["endpoints"][0]["path"] for monitor in built.of("ServiceMonitor"))]
    assert asyncio.run(statuses(*paths, "/healthz")) == [200] * len(paths) + [404]
    assert all(is_open_to_all(path) for path in found.values()), "the kubelet has no key"
    assert all(path in OPEN_WHILE_LOADING for path in paths)


async def statuses(*paths: str) -> list[int]:
    """What an app that is ready, and has no model, says to a GET of each."""
    life = Life()
    life.ready()
    app = create_app(Settings(), lambda _: pytest.fail("nothing is loaded"), life=life)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://here") as client:
        return [(await client.get(path)).status_code for path in paths]


def test_probes_wait_longer_than_an_answer_may_take(built: Manifests) -> None:
    assert all(probe["timeoutSeconds"] >= 10 * LIMIT_OF_PROBES for probe in probes(built.container).values())


def test_the_grace_period_is_longer_than_everything_that_happens_in_it(
    built: Manifests, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(built, monkeypatch)
    hook = built.container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    needed = hook + settings.drain_delay_seconds + settings.drain_seconds + EXIT_SECONDS
    assert built.pod["terminationGracePeriodSeconds"] >= needed


def test_no_admitted_request_outlives_the_drain(built: Manifests, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(built, monkeypatch)
    assert settings.drain_seconds >= settings.deadline_seconds


def test_requests_are_taken_until_nobody_sends_any_here(built: Manifests, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(built, monkeypatch)
    ready = probes(built.container)["readinessProbe"]
    assert settings.drain_delay_seconds > seconds_until(ready), "load balancers that follow the probe know it by then"
    idle = inspect.signature(uvicorn.Config).parameters["timeout_keep_alive"].default
    assert settings.drain_delay_seconds > idle, "connections that were idle at the signal are closed by then"


def test_a_rolling_update_keeps_all_replicas_and_waits_for_each_new_one(built: Manifests) -> None:
    spec = built.the("Deployment")["spec"]
    assert spec["strategy"]["type"] == "RollingUpdate"
    assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    assert spec["minReadySeconds"] >= 5
    startup = probes(built.container)["startupProbe"]
    assert spec["progressDeadlineSeconds"] > seconds_until(startup) + spec["minReadySeconds"]


def test_a_slow_start_is_no_failure(built: Manifests) -> None:
    assert seconds_until(probes(built.container)["startupProbe"]) >= 600
    assert all("initialDelaySeconds" not in probe for probe in probes(built.container).values())


def test_only_who_is_really_stuck_is_killed_and_then_soon(built: Manifests, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(built, monkeypatch)
    live = probes(built.container)["livenessProbe"]
    assert settings.stuck_after_seconds >= settings.deadline_seconds, "a layer that somebody waits for is not stuck"
    assert live["failureThreshold"] >= 3
    assert live["terminationGracePeriodSeconds"] < built.pod["terminationGracePeriodSeconds"]

"""The Deployment of the cpu overlay runs: the manifests, the image and the service fit together."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from deploy.image.checks.answers import check_answer
from deploy.image.checks.container import Container
from deploy.image.checks.play import fill_claim, playable, playing
from deploy.image.checks.store import MOST_SECONDS, Store
from deploy.tests.choices import TOOLS, Choice, build
from deploy.tests.manifests import Manifests, probes, quantity

pytestmark = pytest.mark.timeout(MOST_SECONDS)

CHOICE = Choice("cpu", ("model-pvc",))
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
POLL_SECONDS = 0.05


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Manifests:
    assert (TOOLS / "kubectl").exists(), f"there is no kubectl in {TOOLS}: `make image-test` installs it"
    return Manifests(build(CHOICE, tmp_path_factory.mktemp("kustomization")))


@pytest.fixture(scope="module")
def claimed(store: Store, image: str, model: Path, built: Manifests, tmp_path_factory: pytest.TempPathFactory) -> None:
    """What must be there before the pod: the model in its volume, and the image under the name that the overlay has."""
    store.podman("tag", image, f"localhost/{built.container['image']}")
    fill_claim(store, built, model, tmp_path_factory.mktemp("claim"))


@pytest.fixture
def pod(store: Store, claimed: None, built: Manifests, tmp_path: Path) -> Iterator[Container]:
    """The pod, started."""
    with playing(store, built, tmp_path) as container:
        yield container


def test_little_is_changed_for_podman(built: Manifests) -> None:
    config, deployment = playable(built, 18000)
    assert config == built.the("ConfigMap")
    changed = Manifests([config, deployment])
    (port,) = built.container["ports"]
    container = built.container | {"ports": [port | {"hostIP": "127.0.0.1", "hostPort": 18000}]}
    del container["livenessProbe"]
    assert changed.container == container
    del changed.pod["containers"]
    assert changed.pod == {key: value for key, value in built.pod.items() if key != "containers"} | {
        "restartPolicy": "Never"
    }


def test_it_starts_becomes_ready_and_answers(pod: Container, built: Manifests, expected: dict[str, Any]) -> None:
    """Asked as the kubelet asks: first whether it has started, then the other two."""
    for kind in PROBES:
        pod.wait_until_ready(probes(built.container)[kind]["httpGet"]["path"])
    with pod.client() as client:
        check_answer(client, expected)
        assert client.get("/model").json()["name"] == "model"


def test_it_has_what_the_manifest_grants_and_no_more(pod: Container, built: Manifests) -> None:
    status, context = pod.status(), built.pod["securityContext"]
    assert set(status["Uid"].split()) == {str(context["runAsUser"])}
    assert set(status["Gid"].split()) == {str(context["runAsGroup"])}
    assert [int(status[name], 16) for name in ("CapEff", "CapPrm", "CapBnd")] == [0, 0, 0]
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2", "RuntimeDefault filters calls to the kernel"
    tried = pod.run("sh", "-c", "touch /x /model/x; touch /tmp/x && rm /tmp/x && echo yes")
    assert tried.stderr.count("Read-only file system") == 2, tried.stderr
    assert tried.stdout.split() == ["yes"]
    memory = pod.store.podman("inspect", "--format", "{{.HostConfig.Memory}}", pod.name)
    assert int(memory) == quantity(built.container["resources"]["limits"]["memory"])
    threads = pod.run("printenv", "HEADWATER_THREADS").stdout.strip()
    assert threads == built.container["resources"]["requests"]["cpu"]
    look = "import socket; socket.create_connection(('192.0.2.1', 80), 5)"
    assert "Network is unreachable" in pod.run("python", "-I", "-c", look).stderr


def test_it_goes_as_the_settings_say_and_loses_nobody(
    pod: Container, built: Manifests, expected: dict[str, Any]
) -> None:
    pod.wait_until_ready()
    grace = built.pod["terminationGracePeriodSeconds"]
    delay = float(built.settings["HEADWATER_DRAIN_DELAY_SECONDS"])
    with ThreadPoolExecutor(1) as thread, pod.client() as client:
        began = time.monotonic()
        stopped = thread.submit(pod.store.podman, "stop", "--time", str(grace), pod.name, seconds=grace + 30)
        while client.get("/readyz").status_code == 200:
            assert time.monotonic() < began + delay, pod.logs()[-2000:]
            time.sleep(POLL_SECONDS)
        check_answer(client, expected)  # still taken, while load balancers learn of it
        stopped.result()
        assert delay <= time.monotonic() - began < grace
    state = pod.store.podman("inspect", "--format", "{{.State.Status}} {{.State.ExitCode}}", pod.name)
    assert state.split() == ["exited", "0"], pod.logs()[-2000:]

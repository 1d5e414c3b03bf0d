"""docs/kubernetes.md: its example builds to what it says, its files are there, its numbers are the manifests'."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from deploy.tests.choices import KUBERNETES, ROOT, Choice, kustomize
from deploy.tests.manifests import Manifests, quantity, values
from deploy.tests.test_schemas import VERSIONS
from deploy.tests.test_settings import settings_of
from service.api_keys import ApiKeys

PAGE = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Manifests:
    """What the kustomization that the page shows builds to."""
    found = re.search(r"<!-- example: kustomization -->\n```\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    folder = tmp_path_factory.mktemp("my-headwater").resolve()
    deploy = os.path.relpath(ROOT / "deploy", folder)
    (folder / "kustomization.yaml").write_text(found[1].replace("../deploy", deploy))
    return Manifests(kustomize(folder))


def test_the_example_changes_what_it_says_everywhere(example: Manifests) -> None:
    assert {one["metadata"]["namespace"] for one in example.all} == {"team-a"}
    assert example.container["image"] == "images.example/team-a/headwater:0.1.0"
    assert example.settings["HEADWATER_NAME"] == "minilm"
    assert example.settings["HEADWATER_LOG_LEVEL"] == "warning"
    queries = [one["metadata"]["query"] for one in example.the("ScaledObject")["spec"]["triggers"]]
    assert len(queries) == 2
    assert all('{namespace="team-a"}' in query for query in queries)
    assert "authorization" in example.the("ServiceMonitor")["spec"]["endpoints"][0]
    assert len(example.of("PersistentVolumeClaim")) == 1


def test_every_alert_of_the_example_links_to_the_runbook_that_it_names(example: Manifests) -> None:
    links = set(values(example.the("PrometheusRule"), "runbook_url"))
    alerts = set(values(example.the("PrometheusRule"), "alert"))
    assert len(alerts) > 10
    assert links == {f"https://wiki.example/headwater/runbook#{alert.lower()}" for alert in alerts}
    assert [one["metadata"]["name"] for one in example.of("ConfigMap")] != ["runbook"]
    assert len(example.of("ConfigMap")) == 1


def test_settings_of_its_own_are_another_config_map_and_so_a_rollout(
    example: Manifests, everything: dict[Choice, Manifests]
) -> None:
    names = {built.the("ConfigMap")["metadata"]["name"] for built in (example, *everything.values())}
    contents = {str(sorted(built.settings.items())) for built in (example, *everything.values())}
    assert len(names) == len(contents)
    assert len(contents) > 4


def test_every_file_and_component_that_the_page_names_is_there() -> None:
    for path in re.findall(r"`(?:\.\./)?((?:deploy|docs)/[\w./-]+)`", PAGE):
        assert (ROOT / path).exists(), path
    for name in [*(KUBERNETES / "components").iterdir(), *(KUBERNETES / "overlays").iterdir()]:
        assert f"| `{name.name}` |" in PAGE


def test_the_page_has_the_numbers_of_the_manifests(
    everything: dict[Choice, Manifests], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert " and ".join([", ".join(VERSIONS[:-1]), VERSIONS[-1]]) in PAGE.replace("\n", " ")
    for overlay in ("cpu", "gpu"):
        built = everything[Choice(overlay)]
        autoscaler, asked = built.the("HorizontalPodAutoscaler")["spec"], built.container["resources"]["requests"]
        (row,) = re.findall(rf"^\| `{overlay}` \| (.*) \|$", PAGE, re.MULTILINE)
        assert f"`{built.container['image']}`" in row
        assert f"{asked['cpu']} cores and {quantity(asked['memory']) / 2**30:g} GiB a pod" in row
        assert f"{autoscaler['minReplicas']} to {autoscaler['maxReplicas']} replicas" in row
        assert f"{autoscaler['metrics'][0]['pods']['target']['averageValue']}" in PAGE
    settings = settings_of(built, monkeypatch)
    delay, drain = settings.drain_delay_seconds, settings.drain_seconds
    assert f"| {delay:g} (`HEADWATER_DRAIN_DELAY_SECONDS`) |" in PAGE
    assert f"| {delay + drain:g} (+ `HEADWATER_DRAIN_SECONDS`) |" in PAGE
    assert f"| {built.pod['terminationGracePeriodSeconds']} (`terminationGracePeriodSeconds`) |" in PAGE


def test_the_secret_of_the_page_has_what_the_component_takes(everything: dict[Choice, Manifests]) -> None:
    built = everything[Choice("cpu", ("prometheus-operator", "api-keys"))]
    (command,) = re.findall(r"create secret generic (.*)", PAGE)
    name, file, literal = command.split()[:3]
    (volume,) = [one["secret"] for one in built.pod["volumes"] if "secret" in one]
    assert name == volume["secretName"]
    assert file == f"--from-file={volume['items'][0]['key']}"
    credentials = built.the("ServiceMonitor")["spec"]["endpoints"][0]["authorization"]["credentials"]
    assert literal.startswith(f"--from-literal={credentials['key']}=")


def test_the_keys_file_of_the_page_is_read(tmp_path: Path) -> None:
    (command,) = re.findall(r"^(printf .*) > keys$", PAGE, re.MULTILINE)
    variables = os.environ | {"KEY_B": "b-secret-key", "KEY_P": "p-secret-key"}
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=variables, timeout=10)
    (tmp_path / "keys").write_text(done.stdout)
    keys = ApiKeys.read(tmp_path / "keys")
    assert keys.name_of("Bearer p-secret-key") == "prometheus"
    assert keys.name_of("Bearer b-secret-key") == "team-b"

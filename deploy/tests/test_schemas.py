"""The API of three versions of Kubernetes takes every manifest, with no field that it does not know."""

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from deploy.tests.choices import KUBERNETES, NAMESPACE, TOOLS, Choice, Manifest
from deploy.tests.manifests import Manifests
from deploy.tests.test_custom_resources import SHAPES

VERSIONS = ("1.33", "1.35", "1.37")


def distinct(everything: dict[Choice, Manifests]) -> list[Manifest]:
    """Every manifest of all choices once, and those that are applied by themselves."""
    found = {json.dumps(one, sort_keys=True): one for built in everything.values() for one in built.all}
    return [*found.values(), *model_loader()]


def model_loader() -> list[Manifest]:
    """The pod that loads models and its policy, in the namespace that `kubectl -n` gives them."""
    manifests = list(yaml.safe_load_all((KUBERNETES / "model-loader.yaml").read_text()))
    return [one | {"metadata": one["metadata"] | {"namespace": NAMESPACE}} for one in manifests]


def validate(manifests: list[Manifest], version: str, path: Path) -> subprocess.CompletedProcess[str]:
    """Hold manifests against one version's schemas, strictly."""
    path.write_text(yaml.safe_dump_all(manifests))
    command = [str(TOOLS / "kubernetes-validate"), "--kubernetes-version", version, "--strict", str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_api_takes_every_manifest(version: str, everything: dict[Choice, Manifests], tmp_path: Path) -> None:
    manifests = [one for one in distinct(everything) if one["kind"] not in SHAPES]
    assert len(manifests) > 20
    done = validate(manifests, version, tmp_path / "all.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("version", VERSIONS)
def test_a_field_that_the_api_does_not_know_would_be_noticed(
    version: str, everything: dict[Choice, Manifests], tmp_path: Path
) -> None:
    autoscaler = everything[Choice("cpu")].the("HorizontalPodAutoscaler")
    wrong = autoscaler | {"spec": autoscaler["spec"] | {"minimumReplicas": 2}}
    assert validate([autoscaler], version, tmp_path / "right.yaml").returncode == 0
    done = validate([wrong], version, tmp_path / "wrong.yaml")
    assert done.returncode != 0
    assert "minimumReplicas" in done.stdout + done.stderr

"""Pods keep to the Pod Security Standard `restricted`, and to more: nothing to write on, bounded in everything."""

import pytest
import yaml

from deploy.tests.choices import KUBERNETES, Manifest
from deploy.tests.manifests import Manifests, containers, quantity, selects, values
from deploy.tests.test_schemas import model_loader

VOLUMES = {"emptyDir", "secret", "persistentVolumeClaim", "configMap"}


def check_restricted(pod: Manifest) -> None:
    """What `restricted` asks of a pod's spec, and a read-only root. Raises AssertionError."""
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] >= 10000, "no user of the node"
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    for namespace in ("hostNetwork", "hostPID", "hostIPC"):
        assert namespace not in pod
    for volume in pod["volumes"]:
        assert (set(volume) - {"name"}) <= VOLUMES, volume
    for container in containers(pod):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }, container["name"]
        assert all("hostPort" not in port for port in container.get("ports", []))


def check_bounded(pod: Manifest) -> None:
    """Memory, CPU and disk of each container have limits. Raises AssertionError."""
    for container in containers(pod):
        resources = container["resources"]
        for name in ("cpu", "memory"):
            assert quantity(resources["requests"][name]) <= quantity(resources["limits"][name])
    for volume in values(pod, "emptyDir"):
        assert volume["sizeLimit"]
        assert "medium" not in volume, "it would count as memory"


def test_pods_are_restricted_and_bounded(built: Manifests) -> None:
    check_restricted(built.pod)
    check_bounded(built.pod)
    resources = built.container["resources"]
    assert resources["requests"]["memory"] == resources["limits"]["memory"], "no memory that others may take back"


def test_volumes_fit_the_disk_that_a_pod_may_take(built: Manifests) -> None:
    volumes = sum(quantity(volume["sizeLimit"]) for volume in values(built.pod, "emptyDir"))
    for container in containers(built.pod):
        limit = quantity(container["resources"]["limits"]["ephemeral-storage"])
        assert limit > volumes, "what is written to an emptyDir counts against this limit too"


def test_the_pod_that_loads_models_is_restricted_and_bounded_too() -> None:
    pod, policy = model_loader()
    check_restricted(pod["spec"])
    check_bounded(pod["spec"])
    assert selects(policy["spec"]["podSelector"], pod["metadata"]["labels"])
    claim = yaml.safe_load((KUBERNETES / "components" / "model-pvc" / "claim.yaml").read_text())
    assert list(values(pod, "claimName")) == [claim["metadata"]["name"]]


def test_the_service_account_has_no_token(built: Manifests) -> None:
    assert built.the("ServiceAccount")["automountServiceAccountToken"] is False


def test_no_key_stands_in_any_manifest(built: Manifests) -> None:
    assert not built.of("Secret")


@pytest.mark.parametrize(
    "fault",
    [
        {"securityContext": {"runAsNonRoot": True, "runAsUser": 0, "seccompProfile": {"type": "RuntimeDefault"}}},
        {"hostNetwork": True},
        {"volumes": [{"name": "models", "hostPath": {"path": "/models"}}]},
        {"initContainers": [{"name": "models", "image": "headwater", "securityContext": {"privileged": True}}]},
    ],
)
def test_a_pod_that_is_not_restricted_would_be_noticed(fault: Manifest) -> None:
    pod = model_loader()[0]["spec"]
    check_restricted(pod)
    with pytest.raises(AssertionError):
        check_restricted(pod | fault)

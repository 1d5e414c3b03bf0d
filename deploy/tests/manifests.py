"""Looking things up in built manifests."""

from collections.abc import Iterator
from typing import Any

from deploy.tests.choices import Manifest


class Manifests:
    """The manifests of one choice."""

    def __init__(self, manifests: list[Manifest]) -> None:
        self.all = manifests

    def of(self, kind: str) -> list[Manifest]:
        """All of a kind."""
        return [one for one in self.all if one["kind"] == kind]

    def the(self, kind: str) -> Manifest:
        """The only one of a kind."""
        found = self.of(kind)
        assert len(found) == 1, f"{len(found)} of kind {kind}"
        return found[0]

    @property
    def pod(self) -> Manifest:
        """The spec of the Deployment's pods."""
        spec: Manifest = self.the("Deployment")["spec"]["template"]["spec"]
        return spec

    @property
    def labels(self) -> dict[str, str]:
        """The labels of the Deployment's pods."""
        labels: dict[str, str] = self.the("Deployment")["spec"]["template"]["metadata"]["labels"]
        return labels

    @property
    def container(self) -> Manifest:
        """The container of the service."""
        (found,) = self.pod["containers"]
        container: Manifest = found
        return container

    @property
    def settings(self) -> dict[str, str]:
        """The data of the ConfigMap that the container takes its variables from."""
        (source,) = self.container["envFrom"]
        config = self.the("ConfigMap")
        assert source["configMapRef"]["name"] == config["metadata"]["name"]
        data: dict[str, str] = config["data"]
        return data


def containers(pod: Manifest) -> list[Manifest]:
    """All containers of a pod's spec."""
    return [*pod.get("initContainers", []), *pod["containers"]]


def probes(container: Manifest) -> dict[str, Manifest]:
    """The probes that a container has, by kind."""
    kinds = ("startupProbe", "readinessProbe", "livenessProbe")
    return {kind: container[kind] for kind in kinds if kind in container}


def values(tree: Any, key: str) -> Iterator[Any]:
    """Every value that stands behind a key, at any depth."""
    if isinstance(tree, dict):
        for name, value in tree.items():
            if name == key:
                yield value
            yield from values(value, key)
    elif isinstance(tree, list):
        for value in tree:
            yield from values(value, key)


def selects(selector: Manifest, labels: dict[str, str]) -> bool:
    """Whether a label selector made of labels alone, and of at least one, fits."""
    wanted = selector.get("matchLabels", {})
    assert wanted, f"{selector} selects everything"
    assert set(selector) == {"matchLabels"}, selector
    return wanted.items() <= labels.items()


UNITS = {"": 1, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def quantity(text: str) -> float:
    """A quantity of Kubernetes as a number: 500m is 0.5, 1Gi is 2^30."""
    digits = text.rstrip("mkMGTi")
    return float(digits) * UNITS[text[len(digits) :]]

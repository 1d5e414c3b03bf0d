"""Every overlay with every sensible choice of components, and kustomize's output for each."""

import itertools
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
TOOLS = Path(os.environ.get("DEPLOY_TOOLS", ROOT / ".venv-deploy")) / "bin"
NAMESPACE = "headwater"
OVERLAYS = ("cpu", "gpu")
MODELS = ("model-pvc", "model-init")

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Choice:
    """An overlay and components, in the order in which they are named."""

    overlay: str
    components: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "+".join((self.overlay, *self.components))


def every_choice() -> list[Choice]:
    """With and without each component; the two that bring a model exclude each other."""
    found = []
    for overlay, watched, scaled, model, keys in itertools.product(
        OVERLAYS, ("", "prometheus-operator"), ("", "keda"), ("", *MODELS), ("", "api-keys")
    ):
        found.append(Choice(overlay, tuple(name for name in (watched, scaled, model, keys) if name)))
    return found


def kustomize(directory: Path) -> list[Manifest]:
    """What `kubectl kustomize` makes of a directory; a warning of it is an error."""
    command = [str(TOOLS / "kubectl"), "kustomize", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{directory}: {done.stderr}"
    assert not done.stderr, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def build(choice: Choice, folder: Path) -> list[Manifest]:
    """The manifests of an overlay with its components, from a kustomization written into `folder`."""
    here = folder / str(choice)
    here.mkdir()
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": NAMESPACE,
        "resources": [os.path.relpath(KUBERNETES / "overlays" / choice.overlay, here.resolve())],
        "components": [os.path.relpath(KUBERNETES / "components" / name, here.resolve()) for name in choice.components],
    }
    (here / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return kustomize(here)


def build_all(choices: list[Choice], folder: Path) -> dict[Choice, list[Manifest]]:
    """All of them, two at a time."""
    with ThreadPoolExecutor(2) as threads:
        return dict(zip(choices, threads.map(lambda choice: build(choice, folder), choices), strict=True))

"""How large an image is, layer by layer, unpacked."""

import json
from dataclasses import dataclass

from deploy.image.checks.store import Store

NAMES = ("base", "torch and what it needs", "libraries", "Headwater", "health check", "/model")


@dataclass(frozen=True)
class Layer:
    """What one step of the Dockerfile added."""

    name: str
    nbytes: int


def layers_of(store: Store, image: str) -> list[Layer]:
    """The layers that hold files, the base's first. Raises ValueError where they are not those of the Dockerfile."""
    steps = json.loads(store.podman("history", "--no-trunc", "--format", "json", image))
    sizes = [int(step["size"]) for step in reversed(steps) if step["size"]]
    # a base may have several layers
    of_base = len(sizes) - len(NAMES) + 1
    return [Layer(name, nbytes) for name, nbytes in zip(NAMES, [sum(sizes[:of_base]), *sizes[of_base:]], strict=True)]


def table(layers: list[Layer]) -> str:
    """Markdown: megabytes of each, and of all."""
    lines = ["| layer | MB |", "|---|---|", *(f"| {one.name} | {one.nbytes / 1e6:.1f} |" for one in layers)]
    return "\n".join([*lines, f"| together | {sum(one.nbytes for one in layers) / 1e6:.1f} |"])

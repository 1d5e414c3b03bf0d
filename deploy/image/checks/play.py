"""The Deployment as podman runs it: `podman play kube` takes Kubernetes' own YAML."""

import copy
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from deploy.image.checks.container import Container, free_port
from deploy.image.checks.store import Store
from deploy.tests.manifests import Manifests

NETWORK = "198.18"  # of addresses that are nobody's: RFC 2544


def playable(built: Manifests, host_port: int) -> list[dict[str, Any]]:
    """The ConfigMap and the Deployment, in the order in which podman wants them, changed where podman 4.3 must have it.

    - A liveness probe becomes a health check that calls curl inside the container, which the image does not have.
      Without it podman asks nothing; the tests ask all three probes as the kubelet would.
    - A pod of a Deployment is always started again. The kubelet knows a pod that was deleted from one that ended;
      podman may start it anew while it stops it.
    - podman takes the container's port of this machine too, whatever the network; it gets a free one of the loopback.

    What it does not know is passed over: the other two probes, topology spread, the grace period. Without `replicas`
    there is one.
    """
    config, deployment = copy.deepcopy([built.the("ConfigMap"), built.the("Deployment")])
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    del container["livenessProbe"]
    pod["restartPolicy"] = "Never"
    (port,) = container["ports"]
    port |= {"hostIP": "127.0.0.1", "hostPort": host_port}
    return [config, deployment]


def fill_claim(store: Store, built: Manifests, model: Path, folder: Path) -> None:
    """Make the volume that the pod claims, and put the model into it, as whoever deploys does before all else."""
    claim, archive = built.the("PersistentVolumeClaim"), folder / "model.tar"
    store.podman("play", "kube", _written([claim], folder / "claim.yaml"))
    subprocess.run(["tar", "-C", model, "-cf", archive, "."], check=True, timeout=60)
    store.podman("volume", "import", claim["metadata"]["name"], str(archive))


@contextmanager
def playing(store: Store, built: Manifests, folder: Path) -> Iterator[Container]:
    """The pod of the Deployment, of which this machine knows the address; removed at the end.

    Its network has no way out, as the NetworkPolicy has it, so that no rule of this machine's firewall is touched.
    """
    network, subnet = f"headwater-{secrets.token_hex(4)}", f"{NETWORK}.{secrets.randbelow(256)}"
    pod = built.the("Deployment")["metadata"]["name"] + "-pod-0"
    name = f"{pod}-{built.container['name']}"
    (port,) = built.container["ports"]
    file = _written(playable(built, free_port()), folder / "play.yaml")
    store.podman(
        "network", "create", "--internal", "--disable-dns", "--subnet", f"{subnet}.0/24", "--gateway", f"{subnet}.1",
        network,
    )  # fmt: skip
    try:
        store.podman("play", "kube", "--network", network, file)
        address = store.podman(
            "inspect", "--format", f'{{{{(index .NetworkSettings.Networks "{network}").IPAddress}}}}', name
        )
        user = built.pod["securityContext"]["runAsUser"]
        yield Container(store, name, port["containerPort"], user, address.strip())
    finally:
        store.remove_pod(pod)
        store.tried("podman", "network", "rm", "--force", "--time", "1", network)


def _written(manifests: list[dict[str, Any]], path: Path) -> str:
    path.write_text(yaml.safe_dump_all(manifests))
    return str(path)

"""buildah and podman with a storage and settings of their own, of which nothing is left at the end."""

import contextlib
import json
import os
import resource
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from deploy.image.checks import firewall

COMMAND_SECONDS = 120
MOST_SECONDS = 480  # of a test, with the builds that it waits for


class Store:
    """Images and containers in a folder of their own; closed by `close`."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="headwater-image-"))
        self._firewall_was_clear = firewall.MARK not in firewall.rules()
        (self.folder / "tmp").mkdir()
        containers, storage = self.folder / "containers.conf", self.folder / "storage.conf"
        # without a daemon and without CAP_SYS_RESOURCE no limit can be raised, so those of this process are asked for
        files, processes = (resource.getrlimit(of)[1] for of in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC))
        containers.write_text(
            "[containers]\n"
            f'default_ulimits = ["nofile={_limit(files, 20_000)}", "nproc={_limit(processes, 4096)}"]\n'
            "[engine]\n"
            'runtime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
            f'tmp_dir = "{self.folder}/libpod"\n'
            f'[network]\nnetwork_config_dir = "{self.folder}/networks"\n'
        )
        storage.write_text(
            f'[storage]\ndriver = "overlay"\ngraphroot = "{self.folder}/graph"\nrunroot = "{self.folder}/run"\n'
        )
        self._environment = os.environ | {
            "CONTAINERS_CONF": str(containers),
            "CONTAINERS_STORAGE_CONF": str(storage),
            "TMPDIR": str(self.folder / "tmp"),
        }

    def buildah(self, *arguments: str, seconds: float = COMMAND_SECONDS) -> str:
        """What buildah prints; AssertionError with its last lines where it fails."""
        return self._run("buildah", *arguments, seconds=seconds)

    def podman(self, *arguments: str, seconds: float = COMMAND_SECONDS) -> str:
        """What podman prints; AssertionError with its last lines where it fails."""
        return self._run("podman", *arguments, seconds=seconds)

    def tried(
        self, *command: str, seconds: float = COMMAND_SECONDS, cwd: Path | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on this storage, whatever its exit code; after so many seconds it and all that it began end."""
        with subprocess.Popen(
            command, env=self._environment | variables, cwd=cwd, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as process:  # fmt: skip
            try:
                said = process.communicate(timeout=seconds)
            except BaseException:
                # with its whole group: a build's own pip would go on by itself
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                raise
        return subprocess.CompletedProcess(command, process.returncode, *said)

    def config_of(self, image: str) -> dict[str, Any]:
        """The image's own settings: Entrypoint, Cmd, Env, Labels, User, Healthcheck, ..."""
        (found,) = json.loads(self.podman("image", "inspect", image))
        return dict(found["Config"]) | {"Healthcheck": found.get("HealthCheck") or found.get("Healthcheck")}

    def remove_pod(self, name: str) -> None:
        """End a pod, if it is there, and remove it; of its control groups podman forgets some."""
        found = self.tried("podman", "pod", "inspect", "--format", "{{.Id}}", name)
        self.tried("podman", "pod", "rm", "--force", "--time", "1", name)
        if found.returncode == 0:
            _remove_groups(f"libpod_parent/{found.stdout.strip()}")

    def close(self) -> None:
        """End what runs, and remove all of it."""
        for pod in self.tried("podman", "pod", "ps", "--format", "{{.Name}}").stdout.split():
            self.remove_pod(pod)
        self.tried("podman", "rm", "--all", "--force", "--time", "5")
        self.tried("podman", "image", "unmount", "--all", "--force")
        if self._firewall_was_clear:
            firewall.clear()
        for mount in reversed(self._mounts()):
            subprocess.run(["umount", mount], capture_output=True, timeout=COMMAND_SECONDS)
        _remove_groups("libpod_parent/conmon")
        for group in _groups("libpod_parent"):
            with contextlib.suppress(OSError):  # another podman's containers are in it
                group.rmdir()
        # gigabytes: in a session of its own, so that it goes on where somebody interrupts; and never through a mount
        removing = subprocess.Popen(["rm", "-rf", "--one-file-system", self.folder], start_new_session=True)
        assert removing.wait(COMMAND_SECONDS) == 0, f"{self.folder} could not be removed"

    def _mounts(self) -> list[str]:
        """Where something is mounted in the folder, the outermost first."""
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        return [place for line in lines if (place := line.split()[4]).startswith(f"{self.folder}/")]

    def _run(self, *command: str, seconds: float) -> str:
        done = self.tried(*command, seconds=seconds)
        said = "\n".join((done.stdout + done.stderr).splitlines()[-40:])
        assert done.returncode == 0, f"{' '.join(command[:3])} ... ended with {done.returncode}:\n{said}"
        return done.stdout


def _groups(name: str) -> list[Path]:
    """The control group of that name: in the one tree of version 2, or in each of version 1's."""
    top = Path("/sys/fs/cgroup")
    return [*top.glob(f"*/{name}"), *top.glob(name)]


def _remove_groups(name: str) -> None:
    """With those inside of it, as far as no process is in them."""
    for group in _groups(name):
        for inside in (*sorted(group.rglob("*/"), reverse=True), group):
            with contextlib.suppress(OSError):
                inside.rmdir()


def _limit(hard: int, most: int) -> str:
    """A soft and hard limit that needs no privilege."""
    value = most if hard == resource.RLIM_INFINITY else min(hard, most)
    return f"{value}:{value}"

"""A container of the image, run as strictly as a cluster would: read-only, any user, no capability, little memory."""

import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from deploy.image.checks.store import Store

START_SECONDS = 120.0
ANSWER_SECONDS = 120.0
POLL_SECONDS = 0.1
MEMORY = "2g"
STRICT = ("--read-only", "--read-only-tmpfs=false", "--tmpfs", "/tmp", "--cap-drop=ALL", "--memory", MEMORY)


def any_user() -> int:
    """A user id that nobody on this machine has, as clusters draw them."""
    return 1_000_000_000 + secrets.randbelow(1_000_000_000)


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


class Container:
    """A running container; it can stand for the `tests.server.Server` of bench/load's scenarios."""

    def __init__(self, store: Store, name: str, port: int, user: int, host: str = "127.0.0.1") -> None:
        self.store, self.name, self.port, self.user = store, name, port, user
        self.url = f"http://{host}:{port}"
        self.pid = int(store.podman("inspect", "--format", "{{.State.Pid}}", name))
        self.process = self

    def client(self) -> httpx.Client:
        """A client of this server, and of no proxy."""
        return httpx.Client(base_url=self.url, timeout=ANSWER_SECONDS, trust_env=False)

    def wait_until_ready(self, path: str = "/readyz") -> None:
        """Ask /readyz, or another probe, until it says yes."""
        deadline = time.monotonic() + START_SECONDS
        with self.client() as client:
            while time.monotonic() < deadline and self.poll() is None:
                try:
                    if client.get(path).status_code == 200:
                        return
                except httpx.TransportError:
                    pass
                time.sleep(POLL_SECONDS)
        raise AssertionError(f"it has not become ready, exit code {self.poll()}:\n{self.logs()[-3000:]}")

    def wait_until_it_ended(self) -> int:
        """Its exit code, as soon as it has one by itself."""
        deadline = time.monotonic() + START_SECONDS
        while (code := self.poll()) is None:
            assert time.monotonic() < deadline, f"it still runs:\n{self.logs()[-3000:]}"
            time.sleep(POLL_SECONDS)
        return code

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command beside the service, in the same container as the same user."""
        return self.store.tried("podman", "exec", self.name, *command)

    def logs(self) -> str:
        """What it wrote on stdout and stderr."""
        done = self.store.tried("podman", "logs", self.name)
        return done.stdout + done.stderr

    def status(self) -> dict[str, str]:
        """What the kernel says of its first process."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to its first process, at once: podman would take a tenth of a second to send the same one."""
        os.kill(self.pid, number)

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        if Path(f"/proc/{self.pid}").exists():
            return None
        return int(self.store.podman("wait", self.name).split()[-1])


@contextmanager
def running(
    store: Store, image: str, *options: str, user: int | None = None, network: str = "host", **variables: str
) -> Iterator[Container]:
    """A container of an image on a free port of 127.0.0.1; removed at the end."""
    user = any_user() if user is None else user
    port, name = free_port(), f"headwater-{secrets.token_hex(4)}"
    given: dict[str, Any] = {"HEADWATER_HOST": "127.0.0.1", "HEADWATER_PORT": port, "HEADWATER_THREADS": 1} | variables
    environment = [word for key, value in given.items() for word in ("--env", f"{key}={value}")]
    store.podman(
        "run", "--detach", "--name", name, "--network", network, "--passwd=false", "--user", f"{user}:{user}",
        "--security-opt=no-new-privileges", *environment, *options, image,
    )  # fmt: skip
    try:
        yield Container(store, name, port, user)
    finally:
        store.tried("podman", "rm", "--force", "--time", "1", name)

"""The other servers: what each needs, how it is started, and how it ends."""

import http.client
import os
import secrets
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.load.requests import Request
from bench.peers.environments import environment_python, pinned
from bench.peers.models import folder
from bench.peers.processes import end
from bench.peers.prompts import Want

SERVERS = Path(__file__).with_name("servers")
START_SECONDS = 180.0
LOOK_SECONDS = 0.2


@dataclass(frozen=True)
class Peer:
    """A server of `servers/` in an environment of its own."""

    name: str
    script: str
    requirements: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    wants: tuple[Want, ...] = ("final", "layers", "maps")
    runs_torch: bool = True
    polls: bool = False  # takes a part of a core while it is idle


WEB = tuple(map(pinned, ("fastapi", "uvicorn", "httptools", "uvloop")))
TORCH = (pinned("torch"), pinned("transformers"))
LITSERVE = (*TORCH, "litserve==0.2.19")

UNBATCHED = Peer("FastAPI + transformers, unbatched", "unbatched", (*TORCH, *WEB))
LITSERVE_4 = Peer("LitServe, batches of 4", "litserve_batched", LITSERVE, ("4",), polls=True)
LITSERVE_16 = Peer("LitServe, batches of 16", "litserve_batched", LITSERVE, ("16",), ("final",), polls=True)
RAY = Peer("Ray Serve, batches of 8", "ray_batched", (*TORCH, "ray[serve]==2.60.0"), ("8",))
ONNX = Peer(
    "FastAPI + ONNX Runtime, unbatched",
    "onnx_unbatched",
    ("onnxruntime==1.31.1", "onnx==1.23.2", pinned("safetensors"), *WEB),
    (),
    ("final",),
    runs_torch=False,
)
PEERS = (UNBATCHED, LITSERVE_4, LITSERVE_16, RAY, ONNX)


@contextmanager
def running(peer: Peer, model: Path, first: Request) -> Iterator[tuple[int, int]]:
    """The port and the process id of a peer that serves this model, once it has answered a first request."""
    python = environment_python(peer.script, peer.requirements)
    port, log = _free_port(), folder() / f"{peer.script}.log"
    command = [str(python), str(SERVERS / f"{peer.script}.py"), str(model), str(port), *peer.arguments]
    with log.open("w") as out:
        process = subprocess.Popen(command, env=_environment(), stdout=out, stderr=subprocess.STDOUT)
    try:
        _wait(process, port, first, log)
        yield port, process.pid
    finally:
        end(process)


def _environment() -> dict[str, str]:
    own = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "HEADWATER_", "RAY_"))}
    ray = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}
    ray["RAY_worker_niceness"] = "0"  # as all others; its own would be 15
    return own | {"HF_HUB_OFFLINE": "1"} | ray


def _wait(process: subprocess.Popen[bytes], port: int, first: Request, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not _answers(port, first):
        if process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"{process.args!r} does not serve; its log ends with\n{log.read_text()[-3000:]}")
        time.sleep(LOOK_SECONDS)


def _answers(port: int, request: Request) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=START_SECONDS)
    try:
        connection.request("POST", "/predict", request.body, {"Content-Type": "application/json"})
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

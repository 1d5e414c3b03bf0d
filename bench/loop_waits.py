"""How long the event loop waits while large JSON bodies are written and read: the last table of `make bench-wire`.

From outside it is the longest of the calls of /livez that are made without a pause meanwhile; from inside the most by
which a sleep of 1 ms in the loop came too late.
"""

import argparse
import http.client
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import orjson
import safetensors.numpy

from bench.plain_http import Reader, Timed
from model.checkpoint.initialise import initialise
from tests.server import Server, serving

ROWS, D = 4096, 1024
SAFETENSORS, JSON = "application/x-safetensors", "application/json"
IDLE_SECONDS = 1.0

Waits = tuple[float, float, float, float]
"""Of one piece of work its seconds, the longest /livez, the longest wait of a tick, and the longest that was ours."""


def while_working(server: Server, work: Callable[[], object]) -> Waits:
    """Do work in a thread and poll until it is done."""
    probes = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)

    def get(path: str) -> bytes:
        probes.request("GET", path)
        return probes.getresponse().read()

    get("/longest_wait")
    thread = threading.Thread(target=work)
    began, longest = time.perf_counter(), 0.0
    thread.start()
    while thread.is_alive():
        asked = time.perf_counter()
        get("/livez")
        longest = max(longest, time.perf_counter() - asked)
    seconds = time.perf_counter() - began
    waited = json.loads(get("/longest_wait"))
    probes.close()
    return seconds, longest, waited["longest"], waited["ours"]


def works(server: Server, reader: Reader) -> dict[str, Callable[[], object]]:
    """What is measured, by its title."""
    x = np.random.default_rng(0).standard_normal((ROWS, D)).astype(np.float32)
    all_rows = safetensors.numpy.save({"x": x}, {"request": '{"outputs": ["layers.0.resid_post"]}'})
    numbers = orjson.dumps(x, option=orjson.OPT_SERIALIZE_NUMPY)
    one_row = b'{"outputs": [{"name": "layers.0.resid_post", "rows": [-1]}], "x": ' + numbers + b"}"

    def call(body: bytes, content_type: str, accept: str) -> Callable[[], Timed]:
        headers = {"Content-Type": content_type, "Accept": accept}
        return lambda: reader.call(server.port, "/forward", body, headers)

    written = len(call(all_rows, SAFETENSORS, JSON)().body)
    return {
        "nothing": lambda: time.sleep(IDLE_SECONDS),
        "the same call in safetensors both ways": call(all_rows, SAFETENSORS, SAFETENSORS),
        f"an answer of {written / 1e6:.0f} MB is written as JSON": call(all_rows, SAFETENSORS, JSON),
        f"a body of {len(one_row) / 1e6:.0f} MB is read as JSON": call(one_row, JSON, SAFETENSORS),
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        initialise(model, seed=0, n_layers=1, d_model=D, n_heads=1, d_k=2, d_v=2, d_ff=2)
        program = (sys.executable, "-m", "bench.ticking")
        with serving(model, "--threads", "1", "--max-json-bytes", str(1 << 30), program=program) as server:
            found = works(server, Reader())
            waits: dict[str, list[Waits]] = {title: [] for title in found}
            for _ in range(repeats):
                for title, work in found.items():
                    waits[title].append(while_working(server, work))
    print("| while | ms | longest /livez, ms | longest wait in the loop, ms | of it ours, ms |")
    print("|---|---|---|---|---|")
    for title, several in waits.items():
        cells = (
            f"{1000 * median(one):.0f} ({1000 * min(one):.0f} to {1000 * max(one):.0f})"
            for one in zip(*several, strict=True)
        )
        print(f"| {title} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()

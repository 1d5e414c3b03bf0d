"""When the tensors of an answer come, and how fast each format goes out: `make bench-wire`, tables of docs/wire.md.

Two servers of SmolLM2, of which one streams, tell when tensors come. How fast they go out is measured with a model of
as many layers of the same width that has next to nothing to compute, beside a plain socket that sends as many bytes.
The calls take turns, so that what else the machine does falls on all of them.
"""

import argparse
import json
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import orjson
import safetensors.numpy

from bench.plain_http import Reader, Timed, ready_made
from model.checkpoint.initialise import initialise
from tests.server import Server, serving

MODEL = "smollm2-135m-instruct"
TOKENS = 512
TEXT = " water" * TOKENS
LAYERS, D = 30, 576
NBYTES = LAYERS * TOKENS * D * 4
MAP_TOKENS = 2975  # a map of them has as many bytes
THIN = {"n_layers": LAYERS, "d_model": D, "n_heads": 1, "d_k": 2, "d_v": 2, "d_ff": 2} | {
    "vocab_size": 11,
    "max_positions": 4096,
}
PAUSE_SECONDS = 2.0
LOOPBACK = "plain loopback copy"
RESID, MAPS = ["layers.*.resid_post"], ["layers.*.resid_post", "layers.*.attn_probs"]


class Caller:
    """Calls of one server."""

    def __init__(self, server: Server, reader: Reader) -> None:
        self._server, self._reader = server, reader

    def ask(self, fields: dict[str, object], answer: str, pause: float = 0.0) -> tuple[Timed, float]:
        """An answer, and the seconds that it waited and was computed, as the log has them."""
        name = uuid.uuid4().hex
        headers = {"Content-Type": "application/json", "Accept": f"application/{answer}", "X-Request-Id": name}
        found = self._reader.call(self._server.port, "/forward", json.dumps(fields).encode(), headers, pause)
        line = json.loads(self._server.wait_for_line(f'"{name}"'))
        return found, (line["queue_ms"] + line["compute_ms"]) / 1000


@contextmanager
def callers(model: Path | str, reader: Reader, *options: str) -> Iterator[tuple[Caller, Caller]]:
    """Of two servers of a model: one that streams every large safetensors answer, one that streams none."""
    with (
        serving(model, "--stream-above-bytes", "16777216", *options) as first,
        serving(model, "--stream-above-bytes", str(1 << 40), *options) as second,
    ):
        yield Caller(first, reader), Caller(second, reader)


def streaming(streamed: Caller, whole: Caller, repeats: int) -> None:
    """Print when the header, the first tensor and the last one were there."""
    print(f"| answer | MB | streamed | header, ms | first of {LAYERS} layers, ms | last, ms | first / last |")
    print("|---|---|---|---|---|---|---|")
    for title, outputs in (("`layers.*.resid_post`", RESID), ("and `layers.*.attn_probs`", MAPS)):
        times: dict[str, list[list[float]]] = {"yes": [], "no": []}
        for _ in range(repeats):
            for name, caller in (("yes", streamed), ("no", whole)):
                found, _ = caller.ask({"text": TEXT, "outputs": outputs}, "x-safetensors")
                assert len(found.body) > NBYTES * len(outputs)
                header, *ends = found.tensor_ends()
                per_layer = len(ends) // LAYERS
                marks = (header, ends[per_layer - 1], ends[-1])
                times[name].append([found.seconds_to(mark) for mark in marks])
        for name, rows in times.items():
            header, first, last = (1000 * median(column) for column in zip(*rows, strict=True))
            size = len(found.body) / 1e6
            print(f"| {title} | {size:.0f} | {name} | {header:.0f} | {first:.0f} | {last:.0f} | {first / last:.2f} |")
    print(flush=True)


Measured = Callable[[], tuple[int, float]]
"""Does something; the bytes that came of it, and the seconds that count."""


def throughput(streamed: Caller, whole: Caller, plain: int, reader: Reader, repeats: int) -> None:
    """Print how fast answers go out when what they wait for and what the model computes is taken off."""
    fields: dict[str, object] = {"tokens": [7] * TOKENS, "outputs": RESID}
    one_map = {"tokens": [7] * MAP_TOKENS, "outputs": ["layers.0.attn_probs"]}
    one_row = fields | {"outputs": [{"name": RESID[0], "rows": [-1]}]}
    found, _ = whole.ask(fields, "x-safetensors")
    arrays = safetensors.numpy.load(bytes(found.body)).values()

    def beyond_computing(fields: dict[str, object], answer: str) -> Measured:
        def call() -> tuple[int, float]:
            found, busy = whole.ask(fields, answer)
            return len(found.body), found.seconds - busy

        return call

    def read_late() -> tuple[int, float]:
        found, busy = streamed.ask(fields, "x-safetensors", PAUSE_SECONDS)
        assert busy < PAUSE_SECONDS, busy
        return len(found.body), found.seconds

    def loopback() -> tuple[int, float]:
        found = reader.call(plain, "/")
        return len(found.body), found.seconds

    def encoder() -> tuple[int, float]:
        began = time.perf_counter()
        texts = [orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY) for array in arrays]
        return sum(map(len, texts)), time.perf_counter() - began

    rows: dict[str, tuple[int, Measured]] = {
        LOOPBACK: (NBYTES, loopback),
        "safetensors, whole": (NBYTES, beyond_computing(fields, "x-safetensors")),
        "safetensors, streamed, read when all is computed": (NBYTES, read_late),
        "npy, one tensor": (4 * MAP_TOKENS**2, beyond_computing(one_map, "x-npy")),
        "JSON": (NBYTES, beyond_computing(fields, "json")),
        "JSON's encoder alone, nothing sent": (NBYTES, encoder),
        "safetensors, one row of each layer": (LAYERS * D * 4, beyond_computing(one_row, "x-safetensors")),
    }
    taken: dict[str, list[tuple[int, float]]] = {name: [] for name in rows}
    for _ in range(repeats):
        for name, (_, measured) in rows.items():
            taken[name].append(measured())
    print("| | tensors, MB | body, MB | median, ms | best, ms | MB/s, median | of loopback: median | best |")
    print("|---|---|---|---|---|---|---|---|")
    speeds: dict[str, tuple[float, float]] = {}
    for name, (size, _) in rows.items():
        seconds = [one for _, one in taken[name]]
        typical, best = median(seconds), min(seconds)
        speeds[name] = size / typical, size / best
        shares = (mine / plain for mine, plain in zip(speeds[name], speeds[LOOPBACK], strict=True))
        print(
            f"| {name} | {size / 1e6:.1f} | {taken[name][0][0] / 1e6:.1f} | {1000 * typical:.1f} | {1000 * best:.1f} "
            f"| {size / typical / 1e6:,.0f} | " + " | ".join(f"{share:.2f}" for share in shares) + " |"
        )
    print(flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    reader = Reader()
    with callers(MODEL, reader) as (streamed, whole):
        for caller in (streamed, whole):
            caller.ask({"text": TEXT, "outputs": MAPS}, "x-safetensors")
        streaming(streamed, whole, repeats)
    with tempfile.TemporaryDirectory() as folder, ready_made(NBYTES) as plain:
        model = Path(folder) / "model"
        initialise(model, seed=0, **THIN)
        with callers(model, reader, "--threads", "1", "--max-json-bytes", str(1 << 30)) as (streamed, whole):
            throughput(streamed, whole, plain, reader, 3 * repeats)


if __name__ == "__main__":
    main()

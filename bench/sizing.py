"""What a replica needs: tokens a second per core and memory, measured beside what docs/deploy.md says by formula.

`make bench-sizing` prints the tables of docs/deploy.md; MODEL=DIRECTORY measures a model of one's own. For each model a
server is started with each number of threads; memory is looked at when it is warm, and while 32 clients ask for the
states of the last layer, and then of all layers.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.load.loop import run
from bench.load.process import MEBIBYTE, anonymous_bytes
from bench.load.requests import Request, ask
from bench.peers.measure import Measured, measure
from bench.peers.memory import Peak
from bench.peers.models import GPT2, SMOLLM2, model_directory
from bench.peers.prompts import prompts
from model.checkpoint.load import read_config
from model.checkpoint.packages import packaged_model
from model.config import DTYPES, StackConfig
from model.cost import products_of_row
from service.limits import bytes_of_row
from service.warm_up import SIZES
from tests.server import serving

RUNTIME_BYTES = 256 * MEBIBYTE  # Python, torch and the libraries, before any model
CLIENTS, SECONDS = 32, 6.0
DTYPE = DTYPES["float32"]
MINILM = "minilm"
MODELS = (SMOLLM2, MINILM, GPT2)


@dataclass(frozen=True)
class Need:
    """Anonymous memory of a replica on a CPU in bytes, by its model's shape; files that are mapped are not in it."""

    runtime: int
    layers: int  # their matrices, in the order in which oneDNN reads them
    batch: int  # what one layer of the largest batch holds at a time

    @property
    def total(self) -> int:
        """All of it; bodies and answers, which `max_held_bytes` bounds, come on top."""
        return self.runtime + self.layers + self.batch


def numbers_in_layers(config: StackConfig) -> int:
    """Of their matrices, without biases and norms: each is a product and a sum for each row."""
    return config.n_layers * products_of_row(config) // 2


def need_of(config: StackConfig, max_batch_tokens: int) -> Need:
    """By formula, in float32. The warm-up is a batch too, of up to 1,024 rows, so no fewer count."""
    rows = max(max_batch_tokens, SIZES[-1])
    return Need(RUNTIME_BYTES, numbers_in_layers(config) * DTYPE.itemsize, rows * bytes_of_row(config, "float32"))


@dataclass(frozen=True)
class Replica:
    """What was measured of a server with so many threads."""

    model: str
    threads: int
    config: StackConfig
    file_bytes: int
    max_batch_tokens: int
    loaded: int
    peak: int
    final: Measured
    layers_peak: int

    @property
    def gflops(self) -> float:
        """Billions of operations a second in the products of the layers."""
        return self.final.tokens_per_second * 2 * numbers_in_layers(self.config) / 1e9


def requests(config: StackConfig, outputs: list[str]) -> list[Request]:
    """Ids of the lengths that docs/performance.md describes, as far as the model has ids and positions for them.

    Raises ValueError for a model without a vocabulary.
    """
    if not config.vocab_size:
        raise ValueError("vocab_size is 0, and must be at least 1: the load is made of ids")
    fitting = [[one % config.vocab_size for one in tokens[: config.max_positions or None]] for tokens in prompts()]
    return [ask(f"{i}", {"tokens": tokens, "outputs": outputs}, len(tokens)) for i, tokens in enumerate(fitting)]


def directory_of(model: str) -> Path:
    """Of a packaged model, of one of the benchmark's, or the directory that was named."""
    if model == MINILM:
        return packaged_model(model, lambda _: None)
    return model_directory(model) if model in MODELS else Path(model)


def measure_replica(model: str, threads: int, seconds: float) -> Replica:
    """Start a server, look at its memory, and load it twice."""
    directory = directory_of(model)
    _, config = read_config(directory)
    final = requests(config, [f"layers.{config.n_layers - 1}.resid_post"])
    every = requests(config, ["layers.*.resid_post"])
    with serving(directory, "--threads", str(threads), "--log-level", "warning") as server:
        with server.client() as client:
            limits = client.get("/model").json()["limits"]
        pid = server.process.pid
        loaded = anonymous_bytes(pid)
        with Peak(pid) as peak:
            of_final = run(measure(server.port, final, CLIENTS, seconds))
        with Peak(pid) as layers_peak:
            run(measure(server.port, every, CLIENTS, seconds))
    file_bytes = sum(path.stat().st_size for path in directory.glob("*.safetensors"))
    return Replica(
        model,
        threads,
        config,
        file_bytes,
        limits["max_batch_tokens"],
        loaded,
        peak.nbytes,
        of_final,
        layers_peak.nbytes,
    )


def speeds(replicas: Sequence[Replica]) -> str:
    """Markdown: tokens a second, of all threads and of each, and operations."""
    lines = [
        "| model | numbers in the layers, millions | threads | tokens/s | tokens/s a core | GFLOP/s a core |",
        "|---|---|---|---|---|---|",
    ]
    for one in replicas:
        speed = one.final.tokens_per_second
        lines.append(
            f"| {one.model} | {numbers_in_layers(one.config) / 1e6:.0f} | {one.threads} | {speed:,.0f} "
            f"| {speed / one.threads:,.0f} | {one.gflops / one.threads:.0f} |"
        )
    return "\n".join(lines)


def memory(replicas: Sequence[Replica]) -> str:
    """Markdown: MiB by formula and as measured."""
    lines = [
        "| model, threads | runtime | layers | batch (rows) | formula | warm | peak | peak, all layers | file |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for one in replicas:
        need = need_of(one.config, one.max_batch_tokens)
        rows = max(one.max_batch_tokens, SIZES[-1])
        numbers = [_mib(need.runtime), _mib(need.layers), f"{_mib(need.batch)} ({rows:,})", _mib(need.total)]
        numbers += [_mib(size) for size in (one.loaded, one.peak, one.layers_peak, one.file_bytes)]
        lines.append(f"| {one.model}, {one.threads} | {' | '.join(numbers)} |")
    return "\n".join(lines)


def _mib(nbytes: int) -> str:
    return f"{nbytes / MEBIBYTE:,.0f}"


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=MODELS, help="directories of models [those of docs/deploy.md]")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each of the two loads")
    options = parser.parse_args()
    replicas = [
        measure_replica(model, threads, options.seconds) for model in options.models for threads in options.threads
    ]
    print(f"{speeds(replicas)}\n\n{memory(replicas)}")


if __name__ == "__main__":
    main()

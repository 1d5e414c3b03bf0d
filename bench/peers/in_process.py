"""What can be had without a server: the stack and transformers called directly, and the best rate of a product.

All of it runs in one process of its own, so that the threads of torch are nobody else's.
"""

import functools
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from bench.peers.limit import Rate, best_rate
from bench.peers.prompts import prompts, sequence
from model.checkpoint.load import LoadedModel, load_model, read_config
from model.errors import NonFiniteResult
from model.keep import Sink
from model.run import run
from model.selection import Wanted


class Kept:
    """A sink that holds what it gets."""

    takes_parts = False

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []

    def put_part(self, wanted: Wanted, at: int, part: Tensor) -> None:
        """Never called."""

    def put(self, wanted: Wanted, tensors: tuple[Tensor, ...]) -> None:
        """Hold the tensors."""
        self.tensors += tensors

    def fail(self, error: NonFiniteResult) -> None:
        """No request of the benchmark fails."""
        raise error


def stack_one_by_one(directory: Path, part: slice) -> list[float]:
    """Seconds of our stack for each of these requests, one at a time."""
    loaded = _loaded(directory)

    def forward(tokens: list[int]) -> None:
        run(loaded.stack, [sequence(tokens, "final", loaded.config)], [Kept()])

    return _timed(forward, part)


def stack_packed(directory: Path) -> float:
    """Tokens a second of our stack with all requests in one packed matrix."""
    loaded = _loaded(directory)
    sequences = [sequence(tokens, "final", loaded.config) for tokens in prompts()]
    sinks: list[Sink] = [Kept() for _ in sequences]
    began = time.perf_counter()
    run(loaded.stack, sequences, sinks)
    return sum(one.length for one in sequences) / (time.perf_counter() - began)


def transformers_one_by_one(directory: Path, part: slice) -> list[float]:
    """The same of transformers, with the attention that is fastest there."""
    model = _in_transformers(directory)

    @torch.inference_mode()
    def forward(tokens: list[int]) -> None:
        model(torch.tensor([tokens]), use_cache=False)

    return _timed(forward, part)


def rate(directory: Path) -> Rate:
    """The best rate of a product of this model."""
    _, config = read_config(directory)
    return best_rate(config)


def _timed(forward: Callable[[list[int]], None], part: slice) -> list[float]:
    """The first is called once before, which does not count: others have just had the machine."""
    requests, seconds = prompts()[part], []
    for tokens in (requests[0], *requests):
        began = time.perf_counter()
        forward(tokens)
        seconds.append(time.perf_counter() - began)
    return seconds[1:]


@functools.cache
def _loaded(directory: Path) -> LoadedModel:
    return load_model(directory, name="bench")


@functools.cache
def _in_transformers(directory: Path) -> torch.nn.Module:
    from transformers import AutoModel

    return AutoModel.from_pretrained(directory, dtype=torch.float32, attn_implementation="sdpa").eval()

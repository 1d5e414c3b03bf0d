"""How many tokens a second this machine could do if the stack were nothing but its matrix products, and each of them
reached the best rate that any does.

The rate is the best one over the products of the model, many numbers of rows, and two kernels: torch's own, and
oneDNN's with a weight that was put into its order before. Operations are counted exactly, from the requests.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from model.config import StackConfig
from model.cost import operations
from model.sequence import Sequence

ROWS = (16, 64, 256, 700, 1400, 2800)
SECONDS, REPEATS = 0.05, 3  # the least of each product

Product = Callable[[Tensor], Tensor]


@dataclass(frozen=True, order=True)
class Rate:
    """Operations a second of one product [rows, inputs] x [inputs, outputs]."""

    per_second: float
    kernel: str
    rows: int
    inputs: int
    outputs: int

    def told(self) -> str:
        """For the report."""
        shape = f"[{self.rows}, {self.inputs}] x [{self.inputs}, {self.outputs}]"
        return f"{self.per_second / 1e9:.0f} GFLOP/s, {shape}, {self.kernel}"


def product_shapes(config: StackConfig) -> list[tuple[int, int]]:
    """Inputs and outputs of the projections and the feed-forward network of a layer, q, k and v together too."""
    d, q, out = config.d_model, config.n_heads * config.d_k, config.n_heads * config.d_v
    kv = config.n_kv_heads * (config.d_k + config.d_v)
    return sorted({(d, q), (d, q + kv), (out, d), (d, config.d_ff), (config.d_ff, d)})


@torch.inference_mode()
def best_rate(config: StackConfig, rows: tuple[int, ...] = ROWS) -> Rate:
    """The best rate of all products of this model, on as many threads as torch takes."""
    return max(
        Rate(_rate(product, torch.randn(count, inputs), outputs), kernel, count, inputs, outputs)
        for inputs, outputs in product_shapes(config)
        for count in rows
        for kernel, product in _kernels(torch.randn(outputs, inputs), count)
    )


def tokens_per_second(rate: Rate, config: StackConfig, sequences: list[Sequence]) -> float:
    """The limit: that rate over the operations that these sequences need for a token."""
    return rate.per_second / operations_of_token(config, sequences)


def operations_of_token(config: StackConfig, sequences: list[Sequence]) -> float:
    """The mean over all their tokens."""
    return sum(operations(config, one) for one in sequences) / sum(one.length for one in sequences)


def _kernels(weight_OI: Tensor, rows: int) -> Iterator[tuple[str, Product]]:
    bias_O = torch.zeros(len(weight_OI))
    yield "F.linear", lambda x_TI: F.linear(x_TI, weight_OI, bias_O)
    try:  # not in the public interface: some builds of torch do not have it
        ordered = torch.ops.mkldnn._reorder_linear_weight(weight_OI.to_mkldnn(), rows)
        pointwise = torch.ops.mkldnn._linear_pointwise
        pointwise(torch.randn(rows, weight_OI.shape[1]), ordered, bias_O, "none", [], "")
    except (AttributeError, RuntimeError):
        return
    yield "oneDNN, reordered", lambda x_TI: pointwise(x_TI, ordered, bias_O, "none", [], "")


def _rate(product: Product, x_TI: Tensor, outputs: int) -> float:
    product(x_TI)
    began, count = time.perf_counter(), 0
    while (seconds := time.perf_counter() - began) < SECONDS or count < REPEATS:
        product(x_TI)
        count += 1
    return 2 * x_TI.numel() * outputs * count / seconds

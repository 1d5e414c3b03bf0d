"""The stack on a GPU: right against float64, and how fast beside the card's own limit, in one run of a few minutes.

    python -m bench.gpu                      # on the card, from the checkout; torch and numpy are all that it needs
    python -m bench.gpu --device cpu --tiny  # what of it a CPU can show, in seconds

Checked are all points of a small stack in float32, bfloat16 and float16 against numpy in float64, with sequences of
many lengths in one matrix and a NaN in a neighbour. Timed are full batches of GPT-2-medium's shape beside the best rate
of one product, chosen rows of a long map beside their own operations, results that are copied out while the next batch
computes, and small batches with and without recordings. Exit code 1 if a check failed; a missed target is no failure.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

import numpy as np
import torch
from torch import Tensor

from model.config import DTYPES, StackConfig
from model.cost import operations
from model.points import Point
from model.replay import record
from model.run import begin, run
from model.selection import Wanted
from model.sequence import Sequence
from model.stack import Stack
from tests.reference import Matrix, textbook

SEED = 7
SECONDS = 1.0  # of each timing, at least
MOST_WRONG = {"float32": 2e-3, "bfloat16": 2e-1, "float16": 3e-2}  # of a row's largest; float32 may be computed in TF32
KINDS = ("resid_pre", "ln1", "q", "k", "v", "attn_scores", "attn_probs", "z", "attn_out", "resid_mid", "ln2", "mlp_out",
         "resid_post")  # fmt: skip


@dataclass(frozen=True)
class Sizes:
    """How large everything is."""

    checked: StackConfig
    lengths: tuple[int, ...]
    timed: StackConfig
    rows: int
    long: int
    products: tuple[int, ...]


def shape(layers: int, d: int, heads: int, d_ff: int) -> StackConfig:
    """A stack of the textbook's layers."""
    return StackConfig(
        family="textbook", n_layers=layers, d_model=d, n_heads=heads, n_kv_heads=heads, d_k=d // heads, d_v=d // heads,
        d_ff=d_ff, vocab_size=0, max_positions=0, norm="layer_norm", norm_eps=1e-5, activation="gelu_tanh",
        attention_scales=((d // heads) ** -0.5,) * layers, feed_forward_bias=True, unembedding=False,
    )  # fmt: skip


FULL = Sizes(shape(4, 256, 4, 1024), (1, 2, 3, 17, 64, 129, 300), shape(24, 1024, 16, 4096), 16_384, 65_536,
             (4096, 8192, 16_384))  # fmt: skip
TINY = Sizes(shape(2, 32, 4, 64), (1, 3, 17), shape(2, 64, 4, 256), 256, 512, (256,))


# --- weights


def random_weights(config: StackConfig, seed: int = SEED) -> dict[str, Matrix]:
    """By the textbook's names, in float64."""
    random = np.random.default_rng(seed)
    a, d, k, f = config.n_heads, config.d_model, config.d_k, config.d_ff

    def normal(*size: int) -> Matrix:
        return random.standard_normal(size) * size[-2] ** -0.5

    weights: dict[str, Matrix] = {}
    for i in range(config.n_layers):
        of_layer = {
            "W_Q": normal(a, d, k), "W_K": normal(a, d, k), "W_V": normal(a, d, k), "W_O": normal(a * k, d),
            "W_1": normal(d, f), "b_1": 0.1 * random.standard_normal(f),
            "W_2": normal(f, d), "b_2": 0.1 * random.standard_normal(d),
        }  # fmt: skip
        for norm in ("ln1", "ln2"):
            of_layer[f"{norm}.gamma"] = 1 + 0.1 * random.standard_normal(d)
            of_layer[f"{norm}.beta"] = 0.1 * random.standard_normal(d)
        weights |= {f"layers.{i}.{name}": x for name, x in of_layer.items()}
    weights["final_norm.gamma"] = 1 + 0.1 * random.standard_normal(d)
    weights["final_norm.beta"] = 0.1 * random.standard_normal(d)
    return weights


def stack_of(config: StackConfig, weights: Mapping[str, Matrix], device: str, dtype: torch.dtype) -> Stack:
    """A stack with these weights."""

    def named() -> Iterator[tuple[str, Matrix]]:
        for i in range(config.n_layers):
            for norm in ("ln1", "ln2"):
                yield f"layers.{i}.{norm}.weight", weights[f"layers.{i}.{norm}.gamma"]
                yield f"layers.{i}.{norm}.bias", weights[f"layers.{i}.{norm}.beta"]
            for name in "QKV":
                side_by_side = np.concatenate(list(weights[f"layers.{i}.W_{name}"]), axis=1)
                yield f"layers.{i}.attention.{name.lower()}.weight", side_by_side.T
            yield f"layers.{i}.attention.o.weight", weights[f"layers.{i}.W_O"].T
            for name, number in (("up", 1), ("down", 2)):
                yield f"layers.{i}.feed_forward.{name}.weight", weights[f"layers.{i}.W_{number}"].T
                yield f"layers.{i}.feed_forward.{name}.bias", weights[f"layers.{i}.b_{number}"]
        yield "final_norm.weight", weights["final_norm.gamma"]
        yield "final_norm.bias", weights["final_norm.beta"]

    with torch.device("meta"):
        stack = Stack(config)
    stack.load_state_dict(
        {name: torch.from_numpy(np.ascontiguousarray(x)).to(device, dtype) for name, x in named()}, assign=True
    )
    return stack.requires_grad_(False).eval()


def random_stack(config: StackConfig, device: str, dtype: torch.dtype) -> Stack:
    """A stack of that shape, made on the device: for what is only timed."""
    with torch.device(device):
        torch.manual_seed(SEED)
        return Stack(config).to(dtype).requires_grad_(False).eval()


# --- what is run


class Found:
    """A sink that keeps everything."""

    takes_parts = False

    def __init__(self) -> None:
        self.found: dict[str, Tensor] = {}
        self.failed: list[str] = []

    def put(self, wanted: Wanted, tensors: tuple[Tensor, ...]) -> None:
        self.found[wanted.name] = tensors[0].cpu()

    def put_part(self, wanted: Wanted, at: int, part: Tensor) -> None:
        raise NotImplementedError

    def fail(self, error: Exception) -> None:
        self.failed.append(str(error))


def x_of(config: StackConfig, rows: int, *wanted: Wanted, seed: int = 0) -> Sequence:
    """A matrix of random rows that goes through all layers."""
    x = np.random.default_rng(seed + rows).standard_normal((rows, config.d_model)).astype(np.float32)
    return Sequence("x", x, 0, config.n_layers, wanted)


def final(config: StackConfig, dtype: str) -> Wanted:
    """The last layer's output, in the dtype that it was computed in."""
    return Wanted("final", Point(config.n_layers - 1, "resid_post"), dtype=dtype)


def lengths_of(rows: int) -> list[int]:
    """Lognormal lengths, median 64, sigma 0.8, from 4 to 512, that fill a batch of so many rows."""
    random = np.random.default_rng(SEED)
    lengths: list[int] = []
    while sum(lengths) < rows:
        one = int(np.clip(np.exp(random.normal(np.log(64), 0.8)), 4, 512))
        lengths.append(min(one, rows - sum(lengths)))
    return lengths


# --- checks


def check(sizes: Sizes, device: str, dtype: str) -> list[str]:
    """All points of all layers, then what leaves each layer, which comes from recordings; what is wrong."""
    stack = stack_of(sizes.checked, random_weights(sizes.checked), device, DTYPES[dtype])
    record(stack)
    if device.startswith("cuda") and stack.replays is None:
        print(f"- {dtype}: small batches cannot be recorded here")
    return [one for kinds in (KINDS, ("resid_post",)) for one in check_points(stack, sizes, dtype, kinds)]


def check_points(stack: Stack, sizes: Sizes, dtype: str, kinds: tuple[str, ...]) -> list[str]:
    """Such points of all layers of sequences in one matrix, one of them NaN, against float64; what is wrong."""
    config, weights = sizes.checked, random_weights(sizes.checked)
    wanted = [Wanted(f"layers.{i}.{kind}", Point(i, kind)) for i in range(config.n_layers) for kind in kinds]
    wanted.append(Wanted("final_norm", Point(None, "final_norm")))
    good = [x_of(config, n, *wanted) for n in sizes.lengths]
    bad = x_of(config, 33, wanted[-1])
    bad.rows[5] = np.nan
    batch = [*good[:2], bad, *good[2:]]
    sinks = [Found() for _ in batch]
    run(stack, batch, list(sinks))
    wrong = [] if sinks.pop(2).failed else [f"{dtype}: NaN in a sequence was not noticed"]
    worst: dict[str, float] = {}
    for sequence, sink in zip(good, sinks, strict=True):
        # what the stack sees: the rows in its own precision
        x = torch.from_numpy(sequence.rows).to(DTYPES[dtype]).double().numpy()
        exact = textbook(x, weights, n_layers=config.n_layers, causal=True, act="gelu_tanh")
        if sink.failed or len(sink.found) != len(wanted):
            wrong.append(f"{dtype}, {sequence.length} rows: {sink.failed[:1]}")
            continue
        for name, tensor in sink.found.items():
            kind = name.rpartition(".")[2]
            worst[kind] = max(worst.get(kind, 0.0), deviation(tensor.double().numpy(), exact[name]))
    told = ", ".join(f"{kind} {of_kind:.0e}" for kind, of_kind in worst.items())
    print(f"- {dtype}, worst of a row's largest: {told}", flush=True)
    return wrong + [f"{dtype}: {kind} is wrong by {x:.1e}" for kind, x in worst.items() if not x < MOST_WRONG[dtype]]


def deviation(found: Matrix, exact: Matrix) -> float:
    """The largest difference in any row, of the row's largest magnitude; of scores, of the map's."""
    if not np.array_equal(np.isinf(found), np.isinf(exact)):
        return np.inf
    found, exact = np.where(np.isinf(exact), 0, found), np.where(np.isinf(exact), 0, exact)
    size = np.abs(exact).max(-1, keepdims=True)
    if exact.ndim == 3:  # scores of a row that sees one key may cancel to nothing
        size = np.maximum(size, 0.1 * np.abs(exact).max())
    return float((np.abs(found - exact) / size).max())


# --- times


def seconds_of(work: Callable[[], object], device: str) -> float:
    """The median time of a call, the device's part included."""
    times: list[float] = []
    for _ in range(2):
        work()
    while sum(times) < SECONDS or len(times) < 3:
        settle(device)
        began = time.perf_counter()
        work()
        settle(device)
        times.append(time.perf_counter() - began)
    return median(times)


def settle(device: str) -> None:
    """Wait until the device has nothing to do."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


@torch.inference_mode()
def best_rate(sizes: Sizes, device: str, dtype: torch.dtype) -> float:
    """Operations a second of the best product of the timed shape."""
    d, f = sizes.timed.d_model, sizes.timed.d_ff
    rates = []
    for rows in sizes.products:
        for inputs, outputs in ((d, d), (d, f), (f, d)):
            x, w = (torch.randn(*size, device=device, dtype=dtype) for size in ((rows, inputs), (outputs, inputs)))

            def ten(x: Tensor = x, w: Tensor = w) -> None:
                for _ in range(10):
                    torch.nn.functional.linear(x, w)

            rates.append(20 * rows * inputs * outputs / seconds_of(ten, device))
    return max(rates)


def full_batch(sizes: Sizes, device: str, dtype: str, limit: float) -> None:
    """A full batch, the last layer's output of each sequence copied out, beside the best product's rate."""
    config = sizes.timed
    stack = random_stack(config, device, DTYPES[dtype])
    batch = [x_of(config, n, final(config, dtype), seed=i) for i, n in enumerate(lengths_of(sizes.rows))]
    seconds = seconds_of(lambda: run(stack, batch, [Found() for _ in batch]), device)
    rate = sum(operations(config, one) for one in batch) / seconds
    line("full batch", dtype, f"{sizes.rows / seconds:,.0f} tokens/s, {rate / 1e12:.1f} TFLOP/s", rate / limit, "0.6")
    several = [batch[i::4] for i in range(4)]

    def one_by_one() -> None:
        for part in several:
            run(stack, part, [Found() for _ in part])

    def overlapping() -> None:
        last = None
        for part in several:
            finish = begin(stack, part, [Found() for _ in part], later=True)
            if last is not None:
                last()
            last = finish
        assert last is not None
        last()

    speedup = seconds_of(one_by_one, device) / seconds_of(overlapping, device)
    line("four batches, copied out while the next computes", dtype, "time one by one / overlapping", speedup, "")
    layers = [Wanted(f"{i}", Point(i, "resid_post"), dtype=dtype) for i in range(config.n_layers)]
    all_layers = [replace(one, wanted=tuple(layers)) for one in batch[: max(1, len(batch) // 8)]]
    few = [replace(one, wanted=batch[0].wanted) for one in all_layers]
    slower = seconds_of(lambda: run(stack, few, [Found() for _ in few]), device) / seconds_of(
        lambda: run(stack, all_layers, [Found() for _ in all_layers]), device
    )
    line("all layers returned / final states", dtype, "", slower, "0.85")
    small_batches(stack, device, dtype)


def small_batches(stack: Stack, device: str, dtype: str) -> None:
    """Short sequences, kernel by kernel and by recordings of the layers."""
    config = stack.config
    batches = [[x_of(config, 64, final(config, dtype), seed=i) for i in range(count)] for count in (1, 4, 16)]
    batches.insert(0, [x_of(config, 16, final(config, dtype))])

    def times() -> list[float]:
        return [seconds_of(partial(run_anew, stack, batch), device) for batch in batches]

    by_kernel = times()
    record(stack)
    by_recording = times() if stack.replays is not None else [None] * len(batches)
    for batch, before, after in zip(batches, by_kernel, by_recording, strict=True):
        told, ratio = f"{1000 * before:.2f} ms", None
        if after is not None:
            told, ratio = f"{told}, recorded {1000 * after:.2f} ms", before / after
        line(f"{len(batch)} x {batch[0].length} rows, kernel by kernel / recorded", dtype, told, ratio, "")


def map_rows(sizes: Sizes, device: str, dtype: str, limit: float) -> None:
    """Chosen rows of a long map in one layer, all heads, beside the operations that they need by themselves."""
    config = replace(sizes.timed, n_layers=1, attention_scales=sizes.timed.attention_scales[:1])
    stack = random_stack(config, device, DTYPES[dtype])
    n, rows = sizes.long, 256 if sizes.long > 1024 else 8
    chosen = Wanted("map", Point(0, "attn_probs"), rows=slice(n - rows, n), top_k=16)
    without, with_map = (x_of(config, n, *wanted) for wanted in ((), (chosen,)))
    beside = [run_seconds(stack, one, device) for one in (without, with_map)]
    seconds = max(beside[1] - beside[0], 1e-9)
    needed = 2 * config.n_heads * rows * n * config.d_k / limit
    told = f"{rows} rows of {n} columns, {config.n_heads} heads: {1000 * seconds:.2f} ms"
    line("rows of a map, products alone at the float32 rate", dtype, told, needed / seconds, "0.5")


def run_anew(stack: Stack, batch: list[Sequence]) -> None:
    """One run whose results nobody keeps."""
    run(stack, batch, [Found() for _ in batch])


def run_seconds(stack: Stack, sequence: Sequence, device: str) -> float:
    """The time of one sequence alone."""
    return seconds_of(lambda: run(stack, [sequence], [Found()]), device)


def line(what: str, dtype: str, told: str, ratio: float | None, target: str) -> None:
    """One line of the table."""
    shown = "" if ratio is None else f"{ratio:.2f}"
    print(f"| {what} | {dtype} | {told} | {shown} | {target} |", flush=True)


def main() -> int:
    """Check, then time."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small shapes, seconds in all")
    options = parser.parse_args()
    device, sizes, began = options.device, TINY if options.tiny else FULL, time.monotonic()
    name = torch.cuda.get_device_name() if device.startswith("cuda") else "CPU"
    print(f"{name}, torch {torch.__version__}, {device}\n", flush=True)
    wrong = [one for dtype in DTYPES for one in check(sizes, device, dtype)]
    for one in wrong:
        print(f"- **WRONG**: {one}")
    print("\n| what | dtype | | ratio | target |\n|---|---|---|---|---|", flush=True)
    limits = {dtype: best_rate(sizes, device, DTYPES[dtype]) for dtype in ("float32", "bfloat16")}
    for dtype, limit in limits.items():
        line("best product", dtype, f"{limit / 1e12:.2f} TFLOP/s", None, "")
    for dtype in limits:
        full_batch(sizes, device, dtype, limits[dtype])
        map_rows(sizes, device, dtype, limits["float32"])
    print(f"\n{time.monotonic() - began:.0f} s; {len(wrong)} checks failed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

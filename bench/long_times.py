"""Time of one long x against its length, beside what it must do: `make bench-long`, tables of docs/long-inputs.md.

In process, a textbook layer with two heads of width 32. The stack's time stands beside its operations; its attention
beside torch's fused kernel alone, on the same queries, keys and values; and chosen rows of its map beside what they are
by themselves: one product of those rows with all keys, and one softmax, with no mask, no blocks and nothing else.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median

import numpy as np
import torch
import torch.nn.functional as F

from bench.gpu import Found, random_weights, shape, stack_of
from model.attention import attend
from model.cost import operations
from model.maps import attention_map
from model.mask import Mask
from model.packing import Packing
from model.points import Point
from model.run import run
from model.selection import Wanted
from model.sequence import Sequence

CONFIG = shape(1, 64, 2, 256)
LENGTHS = (1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072)
ROWS = 64  # of the map
SECONDS = 0.5  # of each figure, at least, unless a single time takes longer


def seconds_of(*works: Callable[[], object]) -> list[float]:
    """The median time of each, taken in turns, so that what else the machine does falls on all of them."""
    times: list[list[float]] = [[] for _ in works]
    while sum(times[0]) < SECONDS or len(times[0]) < 3:
        for work, of_one in zip(works, times, strict=True):
            began = time.perf_counter()
            work()
            of_one.append(time.perf_counter() - began)
        if sum(times[0]) > 20 * SECONDS:
            break
    return [median(of_one) for of_one in times]


@torch.inference_mode()
def line(n: int) -> str:
    """One line of the table."""
    stack = stack_of(CONFIG, random_weights(CONFIG), "cpu", torch.float32)
    stack.pack()
    x = np.random.default_rng(n).standard_normal((n, CONFIG.d_model)).astype(np.float32)
    last = Wanted("last", Point(0, "resid_post"), pool=True)
    sequence = Sequence("x", x, 0, 1, (last,))
    (whole,) = seconds_of(lambda: run(stack, [sequence], [Found()]))

    heads, width, scale = CONFIG.n_heads, CONFIG.d_k, CONFIG.attention_scales[0]
    q, k, v = (torch.randn(n, heads, width) for _ in range(3))
    q_1ANK, k_1ANK, v_1ANK = (one.transpose(0, 1)[None] for one in (q, k, v))
    mask, packing = Mask(causal=True), Packing((0,), (n,))
    attention, kernel = seconds_of(
        lambda: attend(q, k, v, packing, scale, mask),
        lambda: F.scaled_dot_product_attention(q_1ANK, k_1ANK, v_1ANK, is_causal=True, scale=scale),
    )

    chosen = Wanted("map", Point(0, "attn_probs"), rows=slice(n - ROWS, n))
    q_ARK, k_AKN = q[n - ROWS :].transpose(0, 1).contiguous(), k.permute(1, 2, 0).contiguous()
    of_rows, plain = seconds_of(
        lambda: attention_map(q, k, scale, mask, chosen), lambda: torch.softmax((q_ARK @ k_AKN) * scale, -1)
    )
    count = operations(CONFIG, sequence)
    return (
        f"| {n:,} | {whole:.3g} | {count / 1e9:,.1f} | {count / whole / 1e9:.0f} | {attention:.3g} | "
        f"{attention / kernel:.2f} | {1000 * of_rows:.3g} | {of_rows / plain:.2f} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lengths", type=int, nargs="*", default=LENGTHS)
    print(
        f"| N | seconds | GFLOP | GFLOP/s | attention, s | / kernel alone | {ROWS} rows of the map, ms | / plain |\n"
        "|---|---|---|---|---|---|---|---|"
    )
    for n in parser.parse_args().lengths:
        print(line(n), flush=True)


if __name__ == "__main__":
    main()

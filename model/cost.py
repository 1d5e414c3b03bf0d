"""What a sequence costs to run, from its shape alone: floating-point operations, counted as products and sums.

A product of [n, k] and [k, m] counts 2 n k m. Norms, activations and softmax, which are linear in what they read, are
left out.
"""

from model.config import StackConfig
from model.points import Point
from model.selection import Wanted, length_of
from model.sequence import Sequence


def operations(config: StackConfig, sequence: Sequence) -> int:
    """Operations of the layers that run, the maps that are asked for beside them, and the chosen logits."""
    layers = range(sequence.start, sequence.stop)
    of_layers = sum(_products(config, sequence.length) + _attention(config, i, sequence.length) for i in layers)
    return of_layers + sum(_wanted(config, sequence.length, want) for want in sequence.wanted)


def _products(config: StackConfig, n: int) -> int:
    """The projections and the feed-forward network of one layer."""
    heads = config.n_heads * (config.d_k + config.d_v) + config.n_kv_heads * (config.d_k + config.d_v)
    return 2 * n * config.d_model * (heads + (3 if config.gated else 2) * config.d_ff)


def _attention(config: StackConfig, layer: int, n: int) -> int:
    """QK^T and PV of one layer, of the pairs of rows that its mask leaves."""
    mask = config.mask(layer)
    width = n if mask.window is None else min(n, mask.window)
    # row i sees min(i + 1, width) keys
    pairs = width * (width + 1) // 2 + (n - width) * width if mask.causal else n * n
    return 2 * config.n_heads * (config.d_k + config.d_v) * pairs


def _wanted(config: StackConfig, n: int, want: Wanted) -> int:
    rows = length_of(want.rows, n)
    if want.point == Point(None, "logits"):
        transform = config.d_model if config.head_transform else 0
        return 2 * rows * config.d_model * (config.vocab_size + transform)
    if want.point.axes != "map":
        return 0
    heads = config.n_heads if want.heads is None else len(want.heads)
    columns = length_of(want.keys, n) if want.point.kind == "attn_scores" else n
    return 2 * heads * rows * columns * config.d_k

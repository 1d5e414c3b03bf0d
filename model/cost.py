"""What a sequence costs to run, from its shape alone: floating-point operations, counted as products and sums.

A product of [n, k] and [k, m] counts 2 n k m. Norms, activations and softmax, which are linear in what they read, are
left out.
"""

from dataclasses import dataclass

from model.config import StackConfig
from model.points import Point
from model.selection import Wanted, length_of, result_specs
from model.sequence import Sequence


@dataclass(frozen=True)
class Cost:
    """What a sequence takes of the batch that it runs in.

    `rows` of the packed matrix, `pairs` of a query and a key row that attention works on in a layer, bytes of the
    results that are kept until they are sent, and `work`: operations of the layers that run.
    """

    rows: int = 0
    pairs: int = 0
    nbytes: int = 0
    work: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.rows + other.rows,
            self.pairs + other.pairs,
            self.nbytes + other.nbytes,
            self.work + other.work,
        )


def cost_of(config: StackConfig, sequence: Sequence) -> Cost:
    """The cost of a sequence, from its shape alone. Layers count as the widest of them, so that it is cheap to know."""
    n, layers = sequence.length, sequence.stop - sequence.start
    wide = next((i for i in range(config.n_layers) if config.mask(i).window is None), 0)
    window = config.mask(wide).window
    work = layers * (_products(config, n) + _attention(config, wide, n))
    nbytes = sum(spec.nbytes for want in sequence.wanted for spec in result_specs(want, config, n))
    return Cost(n, n * min(n, window or n), nbytes, float(work))


def products_of_row(config: StackConfig) -> int:
    """Operations of the projections and the feed-forward network of one layer, for one row."""
    return _products(config, 1)


def operations_of_pair(config: StackConfig) -> int:
    """Operations of attention in one layer, for one query row and one key row, in all heads."""
    return 2 * config.n_heads * (config.d_k + config.d_v)


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

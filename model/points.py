"""The names of what a stack can return, and what each stands for.

Layers count from 0, as checkpoints name them. A name is `embeddings`, `final_norm`, `logits`, or
`layers.I.KIND`; a pattern has `*` or a range `I-J` (both ends included) for the layer.
"""

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from model.config import Arrangement, StackConfig

Axes = Literal["rows", "heads", "map", "vocabulary"]

# In the order in which a pre-norm layer makes them.
LAYER_KINDS: dict[str, Axes] = {
    "resid_pre": "rows",
    "ln1": "rows",
    "q": "heads",
    "k": "heads",
    "v": "heads",
    "attn_scores": "map",
    "attn_probs": "map",
    "z": "heads",
    "attn_out": "rows",
    "resid_mid": "rows",
    "ln2": "rows",
    "mlp_out": "rows",
    "resid_post": "rows",
}
HEAD_KINDS: dict[str, Axes] = {"final_norm": "rows", "logits": "vocabulary"}
_ORDER: dict[Arrangement, tuple[str, ...]] = {
    "pre_norm": tuple(LAYER_KINDS),
    "post_norm": (
        *("resid_pre", "q", "k", "v", "attn_scores", "attn_probs", "z", "attn_out"),
        *("resid_mid", "ln1", "mlp_out", "ln2", "resid_post"),
    ),
    "parallel": tuple(kind for kind in LAYER_KINDS if kind != "resid_mid"),
}
TEXTBOOK: dict[str, str] = {
    "resid_pre": "X",
    "ln1": "T1 = LN(X)",
    "q": "Q",
    "k": "K",
    "v": "V",
    "attn_scores": "mask(QK^T / sqrt(d_k))",
    "attn_probs": "softmax(mask(QK^T / sqrt(d_k)))",
    "z": "head = PV",
    "attn_out": "T2 = concat(heads) W_O",
    "resid_mid": "O = T3 = X + T2",
    "ln2": "T4 = LN(T3)",
    "mlp_out": "T5 = FFN(T4)",
    "resid_post": "H = T3 + T5",
    "final_norm": "LN(H of the last layer)",
    "logits": "unembedding",
}
# What other layers than the textbook's compute under the same names.
_OTHERWISE: dict[Arrangement, dict[str, str]] = {
    "pre_norm": {},
    "post_norm": {
        "resid_mid": "T3 = X + T2",
        "ln1": "O = LN(T3)",
        "mlp_out": "T5 = FFN(O)",
        "ln2": "H = LN(O + T5)",
        "resid_post": "H = LN(O + T5)",
    },
    "parallel": {"ln2": "T4 = LN(X)", "resid_post": "H = X + T2 + T5"},
}

_NUMBER = "(?:0|[1-9][0-9]*)"  # each layer has one name
_LAYER = re.compile(rf"layers\.(\*|{_NUMBER}|{_NUMBER}-{_NUMBER})\.(\w+)")
_HIDDEN_STATE = re.compile(rf"hidden_states\.({_NUMBER})")
# Longer digit strings are no layer of any model, and Python refuses to convert the longest.
_MAX_DIGITS = 9


class UnknownPoint(Exception):
    """A name that is no point of this model, or not of this call; the message says why."""


@dataclass(frozen=True)
class Point:
    """One place in the stack: a kind, and the layer it is of (None after the last layer)."""

    layer: int | None
    kind: str

    @property
    def name(self) -> str:
        """The point's own name, without alias."""
        return self.kind if self.layer is None else f"layers.{self.layer}.{self.kind}"

    @property
    def axes(self) -> Axes:
        """What its axes are: [N, d], [A, N, width], [A, N, N] or [N, V]."""
        return HEAD_KINDS[self.kind] if self.layer is None else LAYER_KINDS[self.kind]

    def depth(self, n_layers: int) -> int:
        """How many layers, counted from layer 0, must have run for it to exist."""
        if self.layer is None:
            return n_layers
        return self.layer if self.kind == "resid_pre" else self.layer + 1


def layer_kinds(config: StackConfig) -> tuple[str, ...]:
    """The kinds of point that a layer of such a stack has, in the order in which it makes them."""
    return _ORDER[config.arrangement]


def textbook(kind: str, config: StackConfig) -> str:
    """What a kind of point is in such a stack, in the textbook's symbols."""
    return _OTHERWISE[config.arrangement].get(kind, TEXTBOOK[kind])


def is_normed(point: Point, config: StackConfig) -> bool:
    """Whether the rows of a point come out of a norm; after a post-norm layer all of the residual stream does."""
    if point.kind in ("ln1", "ln2", "final_norm"):
        return True
    if point.kind == "resid_pre":
        return config.embedding_norm if point.layer == 0 else config.arrangement == "post_norm"
    return point.kind == "resid_post" and config.arrangement == "post_norm"


def named_points(config: StackConfig) -> dict[str, Point]:
    """Every point under its name, `embeddings` first, which is the first layer's `resid_pre` once more."""
    return {"embeddings": Point(0, "resid_pre")} | {point.name: point for point in points_of(config)}


def points_of(config: StackConfig) -> Iterator[Point]:
    """Every point of such a stack, in the order in which they are made."""
    for layer in range(config.n_layers):
        for kind in layer_kinds(config):
            yield Point(layer, kind)
    if config.final_norm:
        yield Point(None, "final_norm")
    if config.unembedding:
        yield Point(None, "logits")


def expand(name: str, config: StackConfig, start: int) -> list[tuple[str, Point]]:
    """The points that a name or pattern stands for, each under the name that it was asked by.

    A pattern covers layers `start` to L-1. Raises UnknownPoint where the model has no such point, or where the
    point lies before layer `start`.
    """
    last = config.n_layers - 1
    if name == "embeddings":
        return [(name, _at_or_after(Point(0, "resid_pre"), name, start))]
    if alias := _HIDDEN_STATE.fullmatch(name):
        return [(name, _at_or_after(_hidden_state(alias[1], config), name, start))]
    if match := _LAYER.fullmatch(name):
        layers, kind = match[1], match[2]
        if kind in layer_kinds(config):
            if layers.isdecimal():
                point = Point(_layer(layers, name, last), kind)
                return [(name, _at_or_after(point, name, start))]
            low, high = (0, last) if layers == "*" else _range(layers, name, last)
            found = [Point(i, kind) for i in range(max(low, start), high + 1)]
            if not found:
                raise UnknownPoint(f"{name!r} has no layer at or after start {start}")
            return [(point.name, point) for point in found]
    if name in HEAD_KINDS and getattr(config, "unembedding" if name == "logits" else name):
        return [(name, Point(None, name))]
    raise UnknownPoint(f"{name!r} is not a point of this model; the nearest is {_nearest(name, config)!r}")


def is_pattern(name: str) -> bool:
    """Whether a name may stand for several points."""
    match = _LAYER.fullmatch(name)
    return match is not None and not match[1].isdecimal()


def _layer(digits: str, name: str, last: int) -> int:
    if len(digits) > _MAX_DIGITS or int(digits) > last:
        raise UnknownPoint(
            f"{name!r}: there is no layer {digits[:20]}{'...' * (len(digits) > 20)}, the model has layers 0 to {last}"
        )
    return int(digits)


def _range(layers: str, name: str, last: int) -> tuple[int, int]:
    low, high = (_layer(part, name, last) for part in layers.split("-"))
    if low > high:
        raise UnknownPoint(f"{name!r}: the range {layers} is empty")
    return low, high


def _hidden_state(digits: str, config: StackConfig) -> Point:
    """Hugging Face numbering: the last one is after the final norm, where there is one."""
    count = config.n_layers
    if len(digits) > _MAX_DIGITS or int(digits) > count:
        raise UnknownPoint(f"'hidden_states.{digits[:20]}': the model has hidden_states.0 to hidden_states.{count}")
    k = int(digits)
    if k < count:
        return Point(k, "resid_pre")
    return Point(None, "final_norm") if config.final_norm else Point(count - 1, "resid_post")


def _at_or_after(point: Point, name: str, start: int) -> Point:
    if point.layer is not None and point.layer < start:
        raise UnknownPoint(f"{name!r} lies before layer {start}, where this input starts")
    return point


def _nearest(name: str, config: StackConfig) -> str:
    """The point whose name is most like this one; where a layer is named, among that layer's."""
    names = ["embeddings", *(point.name for point in points_of(config))]
    close = difflib.get_close_matches(name[:100], names, n=1, cutoff=0.0)
    return close[0]

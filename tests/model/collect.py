"""Runs sequences, and remembers what comes back."""

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as ListOf
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from model.config import StackConfig
from model.errors import NonFiniteResult
from model.points import expand
from model.run import run
from model.selection import Wanted, result_specs
from model.sequence import InputKind, Sequence
from model.stack import Stack


class Remembers:
    """A sink that keeps what it is given, and holds it to the shapes and dtypes that were announced."""

    def __init__(self, config: StackConfig, length: int) -> None:
        self.config, self.length = config, length
        self.found: dict[str, Tensor] = {}
        self.failed: list[str] = []

    takes_parts = False

    def put(self, wanted: Wanted, tensors: tuple[Tensor, ...]) -> None:
        for spec, tensor in zip(result_specs(wanted, self.config, self.length), tensors, strict=True):
            assert (tuple(tensor.shape), str(tensor.dtype)) == (spec.shape, f"torch.{spec.dtype}"), spec
            assert tensor.nbytes == spec.nbytes
            assert spec.name not in self.found, f"{spec.name} came twice"
            self.found[spec.name] = tensor

    def fail(self, error: NonFiniteResult) -> None:
        self.failed.append(error.point)


def wants(config: StackConfig, *outputs: str | Wanted, start: int = 0) -> tuple[Wanted, ...]:
    """Names and patterns as what is wanted; a Wanted stays as it is."""
    found: list[Wanted] = []
    for output in outputs:
        if isinstance(output, Wanted):
            found.append(output)
        else:
            found += [Wanted(name, point) for name, point in expand(output, config, start)]
    return tuple(found)


def select(config: StackConfig, name: str, **selection: Any) -> Wanted:
    """A part of one point."""
    (wanted,) = wants(config, name)
    return replace(wanted, **selection)


def sequence(
    stack: Stack,
    kind: InputKind,
    rows: Any,
    outputs: Iterable[str | Wanted],
    *,
    start: int = 0,
    positions: ListOf[int] | None = None,
) -> Sequence:
    """A sequence that runs as deep as its outputs need."""
    wanted = wants(stack.config, *outputs, start=start)
    deepest = max(want.point.depth(stack.config.n_layers) for want in wanted)
    return Sequence(
        kind=kind,
        rows=np.asarray(rows, dtype=np.int64 if kind == "tokens" else np.float32),
        start=start,
        stop=max(start, deepest),
        wanted=wanted,
        positions=None if positions is None else np.asarray(positions, dtype=np.int64),
    )


def together(stack: Stack, sequences: ListOf[Sequence]) -> list[Remembers]:
    """One run of all of them."""
    sinks = [Remembers(stack.config, one.length) for one in sequences]
    run(stack, sequences, list(sinks))
    return sinks


def alone(stack: Stack, one: Sequence) -> dict[str, Tensor]:
    """What a sequence gets by itself, all of which must be proper and complete."""
    (sink,) = together(stack, [one])
    assert not sink.failed
    announced = [s.name for w in one.wanted for s in result_specs(w, stack.config, one.length)]
    assert sorted(sink.found) == sorted(announced)
    return sink.found


def ask(stack: Stack, kind: InputKind, rows: Any, *outputs: str | Wanted, **where: Any) -> dict[str, Tensor]:
    """`sequence` and `alone` in one."""
    return alone(stack, sequence(stack, kind, rows, outputs, **where))


def row_error(found: Any, reference: Any) -> float:
    """The worst row's max|difference| / max|reference|, a row being the last axis; -inf must match exactly.

    Two rows of zeros agree; a row that should be zeros and is not is infinitely wrong.
    """
    found, reference = (np.asarray(x.float() if isinstance(x, Tensor) else x) for x in (found, reference))
    assert found.shape == reference.shape
    masked = np.isneginf(reference)
    assert np.array_equal(np.isneginf(found), masked)
    found, reference = np.where(masked, 0, found), np.where(masked, 0, reference)
    assert np.isfinite(found).all()
    difference, size = np.abs(found - reference).max(axis=-1), np.abs(reference).max(axis=-1)
    with np.errstate(divide="ignore"):
        return float(np.where(difference == 0, 0, difference / np.where(size == 0, np.nan, size)).max())


def point_error(name: str, found: Any, reference: Any) -> float:
    """`row_error`, but of scores against the layer's largest one.

    An early row of a causal map holds one score or two, whose d_k products may cancel to almost nothing: such a
    row has no size of its own to compare an error of float32 with.
    """
    if name.partition(".values")[0].endswith("attn_scores"):
        found, reference = (
            np.asarray(x if not isinstance(x, Tensor) else x.float()).reshape(1, -1) for x in (found, reference)
        )
    return row_error(found, reference)


def errors_above(limit: float, found: Mapping[str, Any], reference: Mapping[str, Any]) -> dict[str, float]:
    """The points that are further from the reference than that, with their error: {} where all is well."""
    errors = {name: point_error(name, found[name], reference[name]) for name in reference}
    return {name: error for name, error in errors.items() if not error <= limit}


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal in every bit, and in shape and dtype."""
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.contiguous(), b.contiguous())

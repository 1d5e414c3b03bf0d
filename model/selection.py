"""What is wanted of a point, the shape of it, and the taking of it.

Names end in their dimensions: N rows of one sequence, D model width, A heads, K head width, R chosen rows,
H chosen heads, V columns.
"""

from collections.abc import Sequence as Indices
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from model.config import DTYPES, StackConfig
from model.points import Point

Index = slice | tuple[int, ...]
"""Chosen positions along an axis: a run of them, or a list in any order with repeats; never negative."""


@dataclass(frozen=True)
class Wanted:
    """One point, the part of it that is wanted, and the name under which it is returned.

    None means all of an axis. `keys` are columns of a map, `top_k` the number of largest columns of each row,
    `pool` asks for the mean over the chosen rows, `dtype` is one of DTYPES.
    """

    name: str
    point: Point
    heads: tuple[int, ...] | None = None
    rows: Index | None = None
    keys: Index | None = None
    top_k: int | None = None
    pool: bool = False
    dtype: str = "float32"


@dataclass(frozen=True)
class ResultSpec:
    """Name, shape and dtype of one tensor of an answer; known before anything runs."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return prod(self.shape) * (2 if self.dtype in ("float16", "bfloat16") else 4)


def length_of(index: Index | None, full: int) -> int:
    """How many positions an index chooses on an axis of `full` positions."""
    if index is None:
        return full
    return index.stop - index.start if isinstance(index, slice) else len(index)


def result_specs(wanted: Wanted, config: StackConfig, n: int) -> tuple[ResultSpec, ...]:
    """The tensors that a wanted point gives for a sequence of n rows, in order."""
    shape = _shape(wanted, config, n)
    if wanted.top_k is None:
        return (ResultSpec(wanted.name, shape, wanted.dtype),)
    shape = (*shape[:-1], min(wanted.top_k, shape[-1]))
    values, indices = result_names(wanted)
    return ResultSpec(values, shape, wanted.dtype), ResultSpec(indices, shape, "int32")


def result_names(wanted: Wanted) -> tuple[str, ...]:
    """The names of those tensors, in the same order."""
    return (wanted.name,) if wanted.top_k is None else (f"{wanted.name}.values", f"{wanted.name}.indices")


def heads_of(point: Point, config: StackConfig) -> int:
    """How many heads a point has."""
    return config.n_kv_heads if point.kind in ("k", "v") else config.n_heads


def _shape(wanted: Wanted, config: StackConfig, n: int) -> tuple[int, ...]:
    rows = length_of(wanted.rows, n)
    match wanted.point.axes:
        case "rows":
            return (config.d_model,) if wanted.pool else (rows, config.d_model)
        case "vocabulary":
            return rows, config.vocab_size
        case axes:
            all_heads = heads_of(wanted.point, config)
            heads = all_heads if wanted.heads is None else len(wanted.heads)
            if axes == "map":
                return heads, rows, length_of(wanted.keys, n)
            width = config.d_k if wanted.point.kind in ("q", "k") else config.d_v
            return heads, rows, width


def take(x: Tensor, index: Index | Indices[int] | None, dim: int) -> Tensor:
    """The chosen positions of one axis: a view for a run of them, a copy for a list."""
    if index is None:
        return x
    if isinstance(index, slice):
        return x.narrow(dim, index.start, index.stop - index.start)
    return x.index_select(dim, torch.tensor(index, device=x.device))


def select_rows(x_ND: Tensor, wanted: Wanted) -> Tensor:
    """[R, d] of a point with rows, or their mean [d]."""
    x_RD = take(x_ND, wanted.rows, 0)
    # float64, so that the mean of very many rows is as good as its rows
    return x_RD.mean(dim=0, dtype=torch.float64) if wanted.pool else x_RD


def select_heads(x_NAK: Tensor, wanted: Wanted) -> Tensor:
    """[H, R, K] of a point with heads."""
    return take(take(x_NAK, wanted.rows, 0), wanted.heads, 1).transpose(0, 1)


def largest(x_RV: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row of [..., V], largest first, ties by lowest index: values, and indices (int32)."""
    k = min(k, x_RV.shape[-1])
    values, indices = x_RV.topk(k, dim=-1)
    # topk promises no order among equals: put them in order of index, then stably by value
    indices = indices.sort(dim=-1).values
    values, order = x_RV.gather(-1, indices).sort(dim=-1, descending=True, stable=True)
    indices = indices.gather(-1, order)
    # where more than k are as large as the last one taken, it may have taken any of them
    tied = (x_RV >= values[..., -1:]).sum(dim=-1) > k
    if tied.any():
        sorted_values, sorted_indices = x_RV[tied].sort(dim=-1, descending=True, stable=True)
        values[tied], indices[tied] = sorted_values[..., :k], sorted_indices[..., :k]
    return values, indices.to(torch.int32)


def as_dtype(x: Tensor, dtype: str) -> Tensor:
    """The tensor in the dtype asked for; beyond its range becomes Inf, which the caller must look for."""
    return x.to(DTYPES[dtype])

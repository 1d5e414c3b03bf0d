"""What is asked for: names, patterns, and parts of points."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headwater_client.tensors import Array

Rows = Sequence[int] | range | slice | Array


@dataclass(frozen=True)
class Output:
    """A point, or a part of it that the service cuts out before anything is sent.

    name: a point or a pattern: `layers.4.attn_probs`, `layers.*.resid_post`, `layers.4-8.z` (both ends included).
    as_: the name in the answer; of a pattern, what stands before each name.
    heads: head indices, of q k v attn_scores attn_probs z.
    rows: token positions, of maps those of the queries: a list (negative ones count from the end; order and repeats
        are kept), a range, or a slice without a step.
    keys: the columns of maps, likewise.
    top_k: the k largest of each row, of maps and logits, as NAME.values and NAME.indices.
    pool: "mean" over the rows: shape [d] of a point of shape [N, d].
    dtype: "float32" (as the service does if nothing is said), "float16" or "bfloat16".
    """

    name: str
    as_: str | None = None
    heads: Sequence[int] | range | Array | None = None
    rows: Rows | None = None
    keys: Rows | None = None
    top_k: int | None = None
    pool: str | None = None
    dtype: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The object of the wire; what was not given is left out."""
        heads = None if self.heads is None else _integers("heads", self.heads)
        found = {
            "name": self.name,
            "as": self.as_,
            "heads": heads,
            "rows": _rows("rows", self.rows),
            "keys": _rows("keys", self.keys),
            "top_k": None if self.top_k is None else int(self.top_k),
            "pool": self.pool,
            "dtype": self.dtype,
        }
        return {key: value for key, value in found.items() if value is not None}


OneOutput = str | Output | Mapping[str, Any]
Outputs = OneOutput | Sequence[OneOutput]


def outputs_json(outputs: Outputs) -> list[str | dict[str, Any]]:
    """The list of the wire, from one output or several."""
    several = [outputs] if isinstance(outputs, str | Output | Mapping) else outputs
    return [_one(one) for one in several]


def _one(output: OneOutput) -> str | dict[str, Any]:
    if isinstance(output, str):
        return output
    return output.to_json() if isinstance(output, Output) else dict(output)


def _rows(field: str, rows: Rows | None) -> list[int] | dict[str, int] | None:
    if not isinstance(rows, slice):
        return None if rows is None else _integers(field, rows)
    if rows.step not in (None, 1):
        raise ValueError(f"{field}: a slice has no step here, this one has {rows.step}; give a list of positions")
    ends = {"start": rows.start, "stop": rows.stop}
    return {end: int(at) for end, at in ends.items() if at is not None}


def _integers(field: str, numbers: Sequence[int] | range | Array) -> list[int]:
    array = np.asarray(numbers)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(f"{field}: must be a list of integers, not {numbers!r:.60}")
    return [int(number) for number in array]

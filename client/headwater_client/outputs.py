"""What is asked for: names, patterns, and parts of points."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headwater_client.checks import integer, integers, kind, string
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
        given: dict[str, tuple[Callable[[str, Any], Any], Any]] = {
            "name": (string, self.name),
            "as": (string, self.as_),
            "heads": (integers, self.heads),
            "rows": (_rows, self.rows),
            "keys": (_rows, self.keys),
            "top_k": (integer, self.top_k),
            "pool": (string, self.pool),
            "dtype": (string, self.dtype),
        }
        return {field: check(field, value) for field, (check, value) in given.items() if value is not None}


OneOutput = str | Output | Mapping[str, Any]
Outputs = OneOutput | Sequence[OneOutput]


def outputs_json(outputs: Outputs) -> list[str | dict[str, Any]]:
    """The list of the wire, from one output or several. Raises ValueError, with the place and the field."""
    several = [outputs] if isinstance(outputs, str | Output | Mapping) else outputs
    if not isinstance(several, Iterable):
        raise ValueError(f"outputs: must be a name, an Output, an object, or a list of them, not {kind(outputs)}")
    return [_one(f"outputs.{i}", one) for i, one in enumerate(several)]


def _one(field: str, output: OneOutput) -> str | dict[str, Any]:
    if isinstance(output, str):
        return output
    if isinstance(output, Output):
        try:
            return output.to_json()
        except ValueError as error:
            raise ValueError(f"{field}.{error}") from None
    if not isinstance(output, Mapping):
        raise ValueError(f"{field}: must be a name, an Output or an object, not {kind(output)}")
    try:
        found: dict[str, Any] = json.loads(json.dumps(dict(output), allow_nan=False, default=_plain))
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{field}: cannot be sent as JSON: {error}") from None
    return found


def _plain(value: Any) -> Any:
    """numpy's numbers and arrays within an object, as JSON has them."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"a {kind(value)} is none of its values")


def _rows(field: str, rows: Rows) -> list[int] | dict[str, int]:
    if not isinstance(rows, slice):
        return integers(field, rows)
    if rows.step not in (None, 1):
        raise ValueError(f"{field}: a slice has no step here, this one has {rows.step}; give a list of positions")
    ends = {"start": rows.start, "stop": rows.stop}
    return {end: integer(f"{field}.{end}", at) for end, at in ends.items() if at is not None}

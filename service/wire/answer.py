"""What a call gets back, before it is written in a format."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import orjson

from model.selection import ResultSpec
from service.host_tensor import HostTensor

# Characters beside the numbers of a result: its shape, and what the manifest says of it.
_JSON_BESIDE = 400
_JSON_OF_INPUT = 130  # of its usage
# Characters that a number takes in JSON on average, with its comma; of float32 as measured on layer outputs.
_JSON_CHARACTERS = {"float32": 12, "float16": 9, "bfloat16": 10, "int32": 6}


@dataclass(frozen=True)
class Usage:
    """What one sequence cost: its rows, its times in milliseconds, and the batch that it ran in.

    `compute_ms` is None where the answer goes out while it is computed.
    """

    tokens: int
    queue_ms: float
    compute_ms: float | None
    batch_sequences: int
    batch_tokens: int

    def as_json(self) -> dict[str, Any]:
        """As it stands in an answer."""
        computed = {} if self.compute_ms is None else {"compute_ms": round(self.compute_ms, 3)}
        return {
            "tokens": self.tokens,
            "queue_ms": round(self.queue_ms, 3),
            **computed,
            "batch": {"sequences": self.batch_sequences, "tokens": self.batch_tokens},
        }


@dataclass(frozen=True)
class Answer:
    """The named tensors of a call in the order of `specs`, and what goes with them."""

    model: str
    specs: Sequence[ResultSpec]
    tensors: dict[str, HostTensor]
    usage: list[Usage]
    several: bool
    tokens: list[dict[str, Any] | None] = field(default_factory=list)
    manifest: dict[str, Any] = field(default_factory=dict)

    def server_timing(self) -> str:
        """The Server-Timing header: the longest that a sequence waited and, where it is known, ran."""
        timing = f"queue;dur={max(one.queue_ms for one in self.usage):.3f}"
        computed = [one.compute_ms for one in self.usage if one.compute_ms is not None]
        return f"{timing}, compute;dur={max(computed):.3f}" if computed else timing

    def usage_json(self) -> Any:
        """One object, or a list with one for each input where they came as a list."""
        usage = [one.as_json() for one in self.usage]
        return usage if self.several else usage[0]

    def tokens_json(self) -> Any:
        """The ids and strings of inputs that had some, shaped as `usage_json`; None if none had."""
        if not any(self.tokens):
            return None
        return self.tokens if self.several else self.tokens[0]


def json_bytes(specs: Sequence[ResultSpec], tokens: Sequence[dict[str, Any] | None], inputs: int) -> int:
    """About how many bytes an answer of these results takes in JSON, with the tokens of so many inputs beside them."""
    results = sum(_JSON_BESIDE + 2 * len(spec.name) + _JSON_CHARACTERS[spec.dtype] * prod(spec.shape) for spec in specs)
    return results + _JSON_OF_INPUT * inputs + sum(len(orjson.dumps(one)) for one in tokens if one)

"""What the service says of itself, and of a call that it has not run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headwater_client.errors import BrokenAnswer, FieldError


@dataclass(frozen=True)
class Model:
    """The loaded model: its sizes, what can be asked for, and the limits in force."""

    name: str
    family: str
    layers: int
    d_model: int
    heads: int
    kv_heads: int
    d_k: int
    d_v: int
    d_ff: int
    vocab_size: int | None
    max_positions: int | None
    causal: bool
    tokenizer: bool
    dtype: str
    device: str
    parameters: int
    weights_sha256: str
    limits: dict[str, Any]
    points: dict[str, dict[str, Any]]

    @classmethod
    def from_json(cls, found: Any) -> "Model":
        """From the object of `GET /model`; fields that a newer service adds are left out. Raises BrokenAnswer."""
        names = cls.__dataclass_fields__
        if not isinstance(found, Mapping) or (missing := [name for name in names if name not in found]):
            what = "it is no object" if not isinstance(found, Mapping) else f"{missing[0]} is missing"
            raise BrokenAnswer(f"this is no description of a model: {what}")
        return cls(**{name: found[name] for name in names})


@dataclass(frozen=True)
class DryRun:
    """What a call would cost; where it would be refused, why, and as much of the cost as is known."""

    admitted: bool
    code: str | None = None
    status: int | None = None
    detail: str | None = None
    errors: tuple[FieldError, ...] = ()
    tokens: int | None = None
    layers_run: int | None = None
    flops: int | None = None
    answer_bytes: int | None = None  # of the tensors
    results: dict[str, dict[str, Any]] | None = None  # shape and dtype of each, by name

    @classmethod
    def from_json(cls, found: Any) -> "DryRun":
        """From the object that the service answers. Raises BrokenAnswer."""
        if not isinstance(found, Mapping) or not isinstance(found.get("admitted"), bool):
            raise BrokenAnswer("this is no outcome of a dry run")
        known = {name: found[name] for name in cls.__dataclass_fields__ if name in found and name != "errors"}
        fields = (FieldError(one["pointer"], one["message"]) for one in found.get("errors", ()))
        return cls(**known, errors=tuple(fields))

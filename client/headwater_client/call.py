"""A call as it goes out: what the caller gave, checked as far as it can be here, in the bytes of the wire.

Arrays go as safetensors, everything else as JSON. What depends on the model is left to the service, which knows better.
"""

import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np

from headwater_client.outputs import Outputs, outputs_json
from headwater_client.safetensors import pieces
from headwater_client.tensors import Array, Tensor, tensor_of

SAFETENSORS, JSON = "application/x-safetensors", "application/json"
KINDS = ("x", "inputs_embeds", "tokens", "text")
_SEND_BYTES = 1 << 20  # the HTTP library copies what it sends, a piece at a time


class Input(TypedDict, total=False):
    """One sequence: exactly one of x, inputs_embeds, tokens and text, and what belongs to it.

    x: [N, d], the residual stream, which enters layer `start`; inputs_embeds: [N, d]; tokens: [N]; text: a string.
    """

    x: Any
    inputs_embeds: Any
    tokens: Any
    text: str
    start: int
    positions: Sequence[int] | Array
    add_special_tokens: bool


@dataclass(frozen=True, repr=False)
class Body:
    """What is sent: its buffers, which are the caller's own memory, and its type."""

    buffers: tuple[bytes | memoryview, ...]
    content_type: str

    @property
    def nbytes(self) -> int:
        """Its length."""
        return sum(len(one) for one in self.buffers)

    def sent(self) -> Iterator[bytes]:
        """Pieces of a moderate size, for as often as it has to be sent."""
        for one in self.buffers:
            view = memoryview(one)
            for at in range(0, len(view), _SEND_BYTES):
                yield bytes(view[at : at + _SEND_BYTES])

    async def sent_async(self) -> AsyncIterator[bytes]:
        """The same for an event loop."""
        for piece in self.sent():
            yield piece


def as_input(item: Any) -> Input:
    """One sequence from what stands for it: a text, token ids [N], a matrix x [N, d], or an object of fields."""
    if isinstance(item, Mapping):
        return Input(**item)  # type: ignore[typeddict-item]  # checked field by field when it is written
    if isinstance(item, str):
        return Input(text=item)
    tensor = tensor_of("input", item)
    if len(tensor.shape) == 2:
        return Input(x=item)
    if len(tensor.shape) == 1 and np.issubdtype(tensor.stored.dtype, np.integer) and tensor.dtype != "bfloat16":
        return Input(tokens=item)
    raise ValueError(
        f"an input is a text, token ids [N], a matrix x [N, d] or an object; this has shape {list(tensor.shape)} "
        f"and dtype {tensor.dtype}"
    )


def body_of(
    one: Input | None,
    inputs: Sequence[Any] | None = None,
    *,
    outputs: Outputs | None = None,
    timeout_ms: int | None = None,
    n: int | None = None,
) -> Body:
    """The body for one sequence, or for several. Raises ValueError where it is no request whatever the model."""
    fields: dict[str, Any] = {}
    tensors: dict[str, Tensor] = {}
    given = [name for name, is_given in (("inputs", inputs is not None), ("n", n is not None)) if is_given]
    given += [kind for kind in KINDS if one is not None and kind in one]
    if len(given) != 1:
        choice = ", ".join((*KINDS, "inputs"))
        raise ValueError(f"exactly one input of {choice} is needed, not {', '.join(given) or 'none'}")
    if inputs is not None:
        if one:
            raise ValueError(f"{', '.join(one)}: with inputs, these belong into each of them")
        fields["inputs"] = [_described(as_input(each), f"{i}.", tensors) for i, each in enumerate(inputs)]
    elif one is not None:
        fields |= _described(one, "", tensors)
    if n is not None:
        fields["n"] = int(n)
    if outputs is not None:
        fields["outputs"] = outputs_json(outputs)
    if timeout_ms is not None:
        fields["timeout_ms"] = int(timeout_ms)
    text = json.dumps(fields, separators=(",", ":"), allow_nan=False, default=_plain)
    if not tensors:
        return Body((text.encode(),), JSON)
    return Body(tuple(pieces(tensors, {"request": text})), SAFETENSORS)


def _described(one: Input, prefix: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """The fields of one sequence that go as JSON; its array, if it has one, is put among `tensors`."""
    unknown = set(one) - Input.__annotations__.keys()
    if unknown:
        raise ValueError(
            f"{prefix}{min(unknown)}: an input has no such field; it has {', '.join(Input.__annotations__)}"
        )
    given = [kind for kind in KINDS if kind in one]
    if len(given) > 1 or (prefix and not given):
        raise ValueError(f"{prefix or 'input'}: exactly one of {', '.join(KINDS)} is needed, not {given or 'none'}")
    fields: dict[str, Any] = {}
    for kind, value in one.items():
        if kind in ("x", "inputs_embeds") or (kind == "tokens" and not isinstance(value, list | tuple | range)):
            tensors[prefix + kind] = tensor_of(prefix + kind, value)
        elif kind in ("tokens", "positions"):
            fields[kind] = _ids(prefix + kind, value)
        elif kind == "start":
            fields[kind] = int(value)  # type: ignore[call-overload]  # numpy's integers, which json does not know
        else:
            fields[kind] = value
    return fields


def _plain(value: Any) -> Any:
    """numpy's numbers and arrays within fields, as JSON has them."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise ValueError(f"{value!r:.60} cannot be sent as JSON")


def _ids(field: str, value: Any) -> list[int]:
    array = np.asarray(value)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(f"{field}: must be a list of integers, one a row")
    return [int(one) for one in array]

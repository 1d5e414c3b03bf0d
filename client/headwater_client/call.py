"""A call as it goes out: what the caller gave, checked as far as it can be here, in the bytes of the wire.

Arrays go as safetensors, everything else as JSON. What depends on the model is left to the service, which knows better.
"""

import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, cast

import numpy as np

from headwater_client.checks import flag, integer, integers, not_one, string
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


def as_input(item: Any, field: str = "input") -> Input:
    """One sequence from what stands for it: a text, token ids [N], a matrix x [N, d], or an object of fields.

    Raises ValueError, with `field` as its name, for what is none.
    """
    if isinstance(item, Mapping):
        return cast(Input, dict(item))  # checked field by field when it is written
    if isinstance(item, str):
        return Input(text=item)
    tensor = tensor_of(field, item)
    if len(tensor.shape) == 2:
        return Input(x=item)
    if len(tensor.shape) == 1 and np.issubdtype(tensor.stored.dtype, np.integer) and tensor.dtype != "bfloat16":
        return Input(tokens=item)
    raise ValueError(
        f"{field}: must be a text, token ids [N], a matrix x [N, d] or an object; this has shape "
        f"{list(tensor.shape)} and dtype {tensor.dtype}"
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
        not_one("inputs", inputs)
        if not isinstance(inputs, Iterable):
            raise ValueError(f"inputs: must be a list of inputs, not {type(inputs).__name__}")
        fields["inputs"] = [_written(each, i, tensors) for i, each in enumerate(inputs)]
    elif one is not None:
        fields |= _described(one, "", "", tensors)
    if n is not None:
        fields["n"] = integer("n", n)
    if outputs is not None:
        fields["outputs"] = outputs_json(outputs)
    if timeout_ms is not None:
        fields["timeout_ms"] = integer("timeout_ms", timeout_ms)
    text = json.dumps(fields, separators=(",", ":"), allow_nan=False)
    if not tensors:
        return Body((text.encode(),), JSON)
    return Body(tuple(pieces(tensors, {"request": text})), SAFETENSORS)


def _written(item: Any, index: int, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """One of several inputs."""
    field = f"inputs.{index}"
    return _described(as_input(item, field), f"{field}.", f"{index}.", tensors)


def _described(one: Input, path: str, prefix: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """The fields of one sequence that go as JSON; its array, if it has one, is put among `tensors`.

    `path` stands before the fields' names in messages, `prefix` before those of the tensors on the wire.
    """
    for name in one:
        if name not in Input.__annotations__:
            raise ValueError(f"{path}{name}: an input has no such field; it has {', '.join(Input.__annotations__)}")
    given = [kind for kind in KINDS if kind in one]
    if len(given) > 1 or (path and not given):
        found = ", ".join(given) or "none"
        raise ValueError(f"{path.rstrip('.') or 'input'}: exactly one of {', '.join(KINDS)} is needed, not {found}")
    fields: dict[str, Any] = {}
    for kind, value in one.items():
        if kind in ("x", "inputs_embeds") or (kind == "tokens" and not isinstance(value, list | tuple | range)):
            tensors[prefix + kind] = tensor_of(path + kind, value)
        else:
            fields[kind] = _PLAIN[kind](path + kind, value)
    return fields


_PLAIN: Mapping[str, Callable[[str, Any], Any]] = {
    "tokens": integers,
    "positions": integers,
    "text": string,
    "start": integer,
    "add_special_tokens": flag,
}

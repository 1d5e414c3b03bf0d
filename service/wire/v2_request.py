"""An inference request of the Open Inference Protocol to a call, as if the same had come to POST /forward.

A body is JSON, and behind it, where the header Inference-Header-Content-Length says how long that is, the bytes of
the tensors that have a `binary_data_size`, in the order of the inputs. What POST /forward has as fields stands in the
`parameters` here, of the request, an input or an output; these are scalars, so lists are JSON texts in them.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

import orjson
from pydantic import Field

from service.errors import Malformed, invalid
from service.host_tensor import HostTensor
from service.wire import json_body
from service.wire.body import Body
from service.wire.call import ForwardCall, Strict, build_call, checked
from service.wire.v2_parameters import (
    OF_INPUT,
    OF_OUTPUT,
    OF_REQUEST,
    SELECTION,
    SIZE,
    InputParameters,
    OutputParameters,
    RequestParameters,
)
from service.wire.v2_tensors import Datatype, from_bytes, from_json

LENGTH_HEADER = "Inference-Header-Content-Length"
_LISTS = ("heads", "rows", "keys", "positions")
_MAX_RANK = 8
_MAX_DIGITS = 18  # of a length; Python refuses to convert the longest
_NUMBER = re.compile(r"(0|[1-9]\d{0,6})\.")


class InferInput(Strict):
    """One input tensor: its numbers in `data`, or behind the JSON with `binary_data_size` in its parameters."""

    name: str = Field(description="x, inputs_embeds or tokens; of several sequences 0.x, 1.tokens, ...")
    shape: list[Annotated[int, Field(ge=0, lt=1 << 60)]] = Field(
        max_length=_MAX_RANK, description="[N, d], or [N] of tokens"
    )
    datatype: Datatype = Field(
        description="of the numbers; of tokens any integer type, of the others FP32, FP16, BF16 or FP64"
    )
    parameters: InputParameters
    data: Any = Field(
        None,
        description="row after row, or a list for each row",
        json_schema_extra={"type": "array", "items": {"anyOf": [{"type": "number"}, {"type": "array"}]}},
    )


class InferOutput(Strict):
    """One output: a point or a pattern of points, and in its parameters what is wanted of it."""

    name: str = Field(description="a point, or a pattern of points")
    parameters: OutputParameters


class InferBody(Strict):
    """An inference request; the model's name and version in it say nothing that the path does not say."""

    id: str | None = Field(None, description="stands in the answer as it came")
    model_name: str | None = Field(None, description="taken, and not looked at: the path says it")
    model_version: str | None = Field(None, description="taken, and not looked at: the path says it")
    parameters: RequestParameters
    inputs: list[InferInput] = Field(
        min_length=1, max_length=10_000, description="exactly one, or one for each of several sequences"
    )
    outputs: list[InferOutput] | None = Field(
        None, max_length=10_000, description="what is returned; the last layer's resid_post if there are none"
    )


@dataclass(frozen=True)
class InferCall:
    """A call, the id that its answer repeats, and of each output (or the default one) whether it goes out in binary."""

    call: ForwardCall
    id: str | None
    binary: list[bool]


def length_of_json(header: str | None) -> int | None:
    """How many bytes of the body are JSON; None for all of them."""
    if header is None:
        return None
    if not (header.isascii() and header.isdecimal() and len(header) <= _MAX_DIGITS):
        raise Malformed(f"{LENGTH_HEADER} must be a number of bytes, not {header!r:.40}")
    return int(header)


def decode(body: bytes | Body, json_length: int | None) -> InferCall:
    """The call that a body makes. For a thread: it takes time where bodies are large.

    Raises Malformed where lengths do not add up or the JSON is none, Unprocessable where it is well formed and wrong.
    """
    if json_length is not None and json_length > len(body):
        raise Malformed(f"{LENGTH_HEADER} is {json_length}, the body has {len(body)} bytes")
    behind = memoryview(body)[len(body) if json_length is None else json_length :]
    text = body if not behind else bytes(memoryview(body)[:json_length])
    raw = json_body.loads(text, "the inference request")
    if not isinstance(raw, dict):
        raise invalid("", "the inference request must be an object")
    asked = checked(InferBody, raw, "")
    common = _parameters(asked.parameters, (*SELECTION, *OF_INPUT, *OF_REQUEST), "/parameters")
    binary_output = _flag(common.pop("binary_data_output", False), "/parameters/binary_data_output")
    selection = {key: common.pop(key) for key in SELECTION if key in common}
    fields = _timeout(common)

    tensors, of_inputs = _inputs(asked.inputs, behind)
    numbered: dict[int, dict[str, Any]] = {}
    for i, (name, own) in enumerate(of_inputs.items()):
        if match := _NUMBER.match(name):
            numbered.setdefault(int(match[1]), {}).update(own)
        elif given := sorted(own.keys() & fields.keys()):
            raise invalid(f"/inputs/{i}/parameters/{given[0]}", "stands in the request's parameters too")
        else:
            fields |= own
    if numbered:
        # a number that is missing among them is refused with the tensors
        fields["inputs"] = [numbered.get(i, {}) for i in range(len(numbered))]

    binary = [binary_output]
    if asked.outputs:
        outputs = [_output(one, selection, binary_output, f"/outputs/{i}") for i, one in enumerate(asked.outputs)]
        fields["outputs"], binary = [output for output, _ in outputs], [in_binary for _, in_binary in outputs]
    elif selection:
        raise invalid(f"/parameters/{next(iter(selection))}", "goes with outputs, and none are named")
    return InferCall(build_call(fields, tensors), asked.id, binary)


def _inputs(inputs: list[InferInput], behind: memoryview) -> tuple[dict[str, HostTensor], dict[str, dict[str, Any]]]:
    """The tensors by their names, and the parameters of each that are fields of a call."""
    tensors: dict[str, HostTensor] = {}
    of_inputs: dict[str, dict[str, Any]] = {}
    at = 0
    for i, one in enumerate(inputs):
        pointer = f"/inputs/{i}"
        if one.name in tensors:
            raise invalid(f"{pointer}/name", f"there is an input {one.name!r:.80} already")
        parameters = _parameters(one.parameters, (*OF_INPUT, *SIZE), f"{pointer}/parameters")
        size = parameters.pop("binary_data_size", None)
        if (size is None) == (one.data is None):
            both = "both" if size is not None else "neither of them"
            raise invalid(pointer, f"needs either data or binary_data_size, and {both} came")
        if size is None:
            tensors[one.name] = from_json(one.data, one.datatype, one.shape, one.name, f"{pointer}/data")
        else:
            if type(size) is not int or not 0 <= size <= len(behind) - at:
                raise Malformed(
                    f"{pointer}/parameters/binary_data_size: {size!r:.40} came, and {len(behind) - at} bytes are left "
                    f"behind the JSON; {LENGTH_HEADER} says where that ends"
                )
            tensors[one.name] = from_bytes(behind[at : at + size], one.datatype, one.shape, one.name)
            at += size
        of_inputs[one.name] = parameters
    if at != len(behind):
        raise Malformed(f"the inputs have {at} bytes behind the JSON, {len(behind)} came")
    return tensors, of_inputs


def _output(one: InferOutput, selection: dict[str, Any], binary: bool, pointer: str) -> tuple[dict[str, Any], bool]:
    """An output as POST /forward has it, and whether it goes out in binary; its own parameters before the request's."""
    parameters = _parameters(one.parameters, (*SELECTION, *OF_OUTPUT), f"{pointer}/parameters")
    binary = _flag(parameters.pop("binary_data", binary), f"{pointer}/parameters/binary_data")
    return {"name": one.name} | selection | parameters, binary


def _parameters(given: dict[str, Any] | None, known: Iterable[str], pointer: str) -> dict[str, Any]:
    """Parameters that are all known here, with lists read out of their texts."""
    known = tuple(known)
    parameters = dict(given or {})
    for name, value in parameters.items():
        if name not in known:
            raise invalid(
                f"{pointer}/{name[:80]}", f"is no parameter that is known here; these are: {', '.join(known)}"
            )
        if name in _LISTS and isinstance(value, str):
            try:
                parameters[name] = orjson.loads(value)
            except orjson.JSONDecodeError:
                raise invalid(f"{pointer}/{name}", f"must be a list as a JSON text, not {value!r:.40}") from None
    return parameters


def _timeout(parameters: dict[str, Any]) -> dict[str, Any]:
    """The parameters with Triton's `timeout`, in microseconds (0 for none), as `timeout_ms`."""
    microseconds = parameters.pop("timeout", None)
    if microseconds is None:
        return parameters
    if type(microseconds) is not int or microseconds < 0:
        raise invalid("/parameters/timeout", f"must be a number of microseconds, not {microseconds!r:.40}")
    if "timeout_ms" in parameters:
        raise invalid("/parameters/timeout", "cannot stand beside timeout_ms")
    return parameters | ({"timeout_ms": math.ceil(microseconds / 1000)} if microseconds else {})


def _flag(value: Any, pointer: str) -> bool:
    if not isinstance(value, bool):
        raise invalid(pointer, f"must be true or false, not {value!r:.40}")
    return value

"""A call as it stood on the wire, whatever the format was: arrays beside checked fields."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, ValidationError

from service.errors import FieldError, Unprocessable, invalid
from service.host_tensor import HostTensor
from service.wire import json_lists

InputKind = Literal["x", "inputs_embeds", "tokens", "text", "n"]
KINDS: tuple[InputKind, ...] = ("x", "inputs_embeds", "tokens", "text")
MAX_N = 1 << 40  # rows that a dry run may ask about
_NUMBERED = re.compile(r"(0|[1-9]\d{0,6})\.(x|inputs_embeds|tokens)")


class Strict(BaseModel):
    """Fields whose names and types are exactly these."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class RowRange(Strict):
    """A run of positions; negative ones count from the end."""

    start: int = Field(0, description="the first position")
    stop: int | None = Field(None, description="the position behind the last one; the end if absent")


Positions = Annotated[
    Annotated[list[int], Tag("list")] | Annotated[RowRange, Tag("range")],
    Discriminator(lambda value: "range" if isinstance(value, (dict, RowRange)) else "list"),
]


class OutputObject(Strict):
    """A point or pattern, and the part of it that is wanted."""

    name: str = Field(max_length=200, description="a point, or a pattern of points")
    as_: str | None = Field(
        None,
        alias="as",
        min_length=1,
        max_length=200,
        description="the name in the answer; with a pattern what stands before each name, and a dot",
    )
    heads: list[int] | None = Field(None, description="of q, k, v, attn_scores, attn_probs, z: these heads")
    rows: Positions | None = Field(
        None, description="these token positions, of maps the query rows; negative ones count from the end"
    )
    keys: Positions | None = Field(None, description="of maps: these columns")
    top_k: int | None = Field(
        None,
        ge=1,
        description="of maps and logits: the k largest of each row, as NAME.values and NAME.indices",
    )
    pool: Literal["mean"] | None = Field(None, description="of [N, d] points: the mean over the chosen rows")
    dtype: Literal["float32", "float16", "bfloat16"] = Field("float32", description="the dtype of the result")


def _as_object(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, (str, dict)) else value


Output = Annotated[OutputObject, BeforeValidator(_as_object, json_schema_input_type=str | OutputObject)]


class InputFields(Strict):
    """What may stand beside the array or text of one input."""

    start: int = Field(0, ge=0, description="the first layer to run; above 0 only with x")
    positions: Any = Field(
        None,
        description="a position for each row, where the model uses them; 0 to N-1 if absent",
        json_schema_extra={"type": "array", "items": {"type": "integer"}},
    )
    add_special_tokens: bool | None = Field(None, description="as the model's own tokenizer does, if absent")


class CallFields(InputFields):
    """What may stand beside the inputs of one call."""

    outputs: Annotated[list[Output], BeforeValidator(_as_list)] | None = Field(
        None,
        min_length=1,
        max_length=10_000,
        description="what is returned; the last layer's resid_post if absent",
    )
    timeout_ms: int | None = Field(None, ge=1, description="a deadline of the caller's own, in milliseconds")


@dataclass(frozen=True)
class InputCall:
    """One input: where it stood, its kind, its value (a text, or an array as it came) and what stood beside it.

    The kind `n` is a number of rows without the rows, for a dry run.
    """

    pointer: str
    kind: InputKind
    value: HostTensor | str | int
    start: int
    positions: npt.NDArray[np.int64] | None
    add_special_tokens: bool


@dataclass(frozen=True)
class ForwardCall:
    """A call. `several`: its inputs came as a list, so that names in the answer have their numbers before them."""

    inputs: list[InputCall]
    several: bool
    outputs: list[OutputObject] | None
    timeout_ms: int | None


def build_call(raw: Any, tensors: dict[str, HostTensor]) -> ForwardCall:
    """The call that a parsed body makes; `tensors` came beside it in binary. Raises Unprocessable."""
    if not isinstance(raw, dict):
        raise invalid("", "the request must be an object")
    raw = dict(raw)
    numbered: dict[int, dict[str, HostTensor]] = {}
    single: dict[str, HostTensor] = {}
    for name, tensor in tensors.items():
        if match := _NUMBERED.fullmatch(name):
            numbered.setdefault(int(match[1]), {})[match[2]] = tensor
        elif name in ("x", "inputs_embeds", "tokens"):
            single[name] = tensor
        else:
            raise invalid(f"/{name[:80]}", "is no input; tensors are x, inputs_embeds or tokens, or 0.x, 1.x, ...")
    several = "inputs" in raw or bool(numbered)
    if not several:
        kind, value = _one_input(raw, single, "")
        fields = checked(CallFields, raw, "")
        return ForwardCall([_input("", kind, value, fields)], False, fields.outputs, fields.timeout_ms)

    listed = raw.pop("inputs", [])
    if given := [
        name for name in (*KINDS, "n", "start", "positions", "add_special_tokens") if name in raw or name in single
    ]:
        raise invalid(f"/{given[0]}", "cannot stand beside inputs; put it into each of them")
    if not isinstance(listed, list) or not (listed or numbered):
        raise invalid("/inputs", "must be a list of at least one object")
    count = max(len(listed), len(numbered))
    if missing := set(numbered) - set(range(count)):
        raise invalid(f"/inputs/{max(missing)}", f"inputs are numbered from 0 without a gap, and there are {count}")
    inputs: list[InputCall] = []
    for i in range(count):
        pointer = f"/inputs/{i}"
        of_one = listed[i] if i < len(listed) else {}
        if not isinstance(of_one, dict):
            raise invalid(pointer, "must be an object with one of x, inputs_embeds, tokens, text")
        of_one = dict(of_one)
        kind, value = _one_input(of_one, numbered.get(i, {}), pointer)
        inputs.append(_input(pointer, kind, value, checked(InputFields, of_one, pointer)))
    call = checked(CallFields, raw, "")
    return ForwardCall(inputs, True, call.outputs, call.timeout_ms)


def _one_input(
    raw: dict[str, Any], tensors: dict[str, HostTensor], pointer: str
) -> tuple[InputKind, HostTensor | str | int]:
    """Take the one input out of an object, whichever of the four it is."""
    kinds: tuple[InputKind, ...] = (*KINDS, "n")
    given = [kind for kind in kinds if kind in raw or kind in tensors]
    if len(given) != 1:
        found = " and ".join(given) if given else "none"
        raise invalid(pointer, f"exactly one of {', '.join(KINDS)} or inputs is needed, and {found} came")
    (kind,) = given
    if kind in tensors:
        if kind in raw:
            raise invalid(f"{pointer}/{kind}", "came both as a tensor and in the request")
        return kind, tensors[kind]
    value = raw.pop(kind)
    if kind == "n":
        if type(value) is not int or not 1 <= value <= MAX_N:
            raise invalid(f"{pointer}/n", f"must be a whole number from 1 to {MAX_N}, not {value!r:.40}")
        return kind, value
    if kind == "text":
        if not isinstance(value, str):
            raise invalid(f"{pointer}/text", "must be a string")
        return kind, value
    if kind == "tokens":
        return kind, HostTensor("int64", json_lists.integers(value, f"{pointer}/tokens"))
    return kind, HostTensor("float64", json_lists.matrix(value, f"{pointer}/{kind}"))


def _input(pointer: str, kind: InputKind, value: HostTensor | str | int, fields: InputFields) -> InputCall:
    positions = None
    if fields.positions is not None:
        positions = json_lists.integers(fields.positions, f"{pointer}/positions")
    if fields.add_special_tokens is not None and kind != "text":
        raise invalid(f"{pointer}/add_special_tokens", f"goes with text, and {kind} came")
    # None: as the tokenizer does, which the tokenizers library calls adding special tokens
    special = True if fields.add_special_tokens is None else fields.add_special_tokens
    return InputCall(pointer, kind, value, fields.start, positions, special)


_Fields = TypeVar("_Fields", bound=BaseModel)


def checked(model: type[_Fields], raw: dict[str, Any], pointer: str) -> _Fields:
    """The fields as their types; Unprocessable with a pointer for each that is wrong."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        fields = [
            FieldError(pointer + _pointer(raw, one["loc"]), _message(one["msg"], one["type"], one["input"]))
            for one in error.errors(include_url=False, include_context=False)
        ]
        detail = "; ".join(f"{field.pointer}: {field.message}" for field in fields[:3])
        raise Unprocessable(detail, *fields[:20]) from None


def _message(message: str, kind: str, value: Any) -> str:
    if kind == "extra_forbidden":
        return "is not a field that is known here"
    if kind == "missing":
        return "is missing"
    if kind == "model_type":
        return f"should be an object, not {value!r:.40}"
    message = re.sub("^(Input|Value|List|String) should", "should", message)
    message = message.partition(" after validation")[0]
    shown = f", not {json.dumps(value):.40}" if isinstance(value, (str, int, float, bool, type(None))) else ""
    return message + shown


def _pointer(raw: Any, location: Sequence[int | str]) -> str:
    """The JSON pointer (RFC 6901) of a validation error, without the names of the types that were tried."""
    pointer, value = "", raw
    for i, step in enumerate(location):
        last = i == len(location) - 1
        if isinstance(value, dict) and (step in value or last):
            value = value.get(step)
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            value = value[step]
        else:
            continue
        pointer += "/" + str(step).replace("~", "~0").replace("/", "~1")[:80]
    return pointer

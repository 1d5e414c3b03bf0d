"""The door: what could fail a batch is refused here, with the field, the value and the limit.

A call comes in as it stood on the wire and goes on as sequences that fit the model, with the name, shape and dtype of
everything that the answer will hold.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from model.checkpoint.load import LoadedModel
from model.config import StackConfig
from model.cost import Cost, cost_of
from model.keep import names_as_made
from model.points import Point, UnknownPoint, expand, is_pattern
from model.selection import Index, ResultSpec, Wanted, heads_of, result_specs
from model.sequence import Sequence
from model.tokenizer import encode, strings
from service.errors import TooLarge, invalid
from service.host_tensor import HostTensor
from service.manifest import manifest
from service.settings import Settings
from service.wire.answer import json_bytes
from service.wire.binary_answer import check_npy
from service.wire.call import ForwardCall, InputCall, OutputObject, RowRange
from service.wire.formats import Format
from service.wire.safetensors_format import aligned

MAX_RESULTS = 100_000  # tensors of one answer
MAX_ROTARY_POSITION = 1 << 24  # above it float32, in which angles are computed, has no odd numbers
_LARGEST: dict[str, float] = {"float16": float(np.finfo(np.float16).max)}


@dataclass(frozen=True)
class Admitted:
    """A call that fits the model: its sequences, what the answer will hold and in which order, what stands beside it.

    In JSON results stand in the order in which they were asked for, in safetensors in the order in which they are made.
    `seconds` is the time that the call may take, `costs` what each sequence takes of a batch, `held_bytes` what the
    answer takes until it is out.
    """

    sequences: list[Sequence]
    specs: list[ResultSpec]
    tokens: list[dict[str, Any] | None]
    several: bool
    seconds: float
    costs: list[Cost] = field(default_factory=list)
    held_bytes: int = 0
    manifest: dict[str, Any] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """The rows of all sequences."""
        return sum(sequence.length for sequence in self.sequences)

    @property
    def nbytes(self) -> int:
        """The bytes of all results."""
        return sum(spec.nbytes for spec in self.specs)

    @property
    def json_nbytes(self) -> int:
        """About how many bytes the answer has in JSON."""
        return json_bytes(self.specs, self.tokens, len(self.sequences))


def admit(call: ForwardCall, answer_format: Format, model: LoadedModel, settings: Settings) -> Admitted:
    """Check a call against the model and the limits. Raises Unprocessable, TooLarge or NotAcceptable."""
    for one in call.inputs:
        if one.kind == "n":
            raise invalid(f"{one.pointer}/n", "stands for an input in a dry run alone")
    admitted = fit(call, answer_format, model, settings)
    check_size(admitted, answer_format, settings)
    # here and not where the answer is put together: that is in the event loop, and there may be very many results
    return replace(
        admitted,
        costs=[cost_of(model.config, rows) for rows in admitted.sequences],
        held_bytes=admitted.nbytes + (admitted.json_nbytes if answer_format == "json" else 0),
        manifest=manifest((want for rows in admitted.sequences for want in rows.wanted), model),
    )


def fit(call: ForwardCall, answer_format: Format, model: LoadedModel, settings: Settings) -> Admitted:
    """Check a call against the model, whatever its size. Raises Unprocessable; TooLarge where there are too many."""
    if len(call.inputs) > settings.max_inputs:
        raise TooLarge(f"{len(call.inputs)} inputs came, the limit max_inputs is {settings.max_inputs}")
    texts = sum(len(one.value.encode()) for one in call.inputs if isinstance(one.value, str))
    if texts > settings.max_text_bytes:
        raise TooLarge(f"the texts have {texts} bytes, the limit max_text_bytes is {settings.max_text_bytes}")
    config = model.config
    outputs = call.outputs or [OutputObject(name=f"layers.{config.n_layers - 1}.resid_post")]
    rows = 0
    sequences: list[Sequence] = []
    specs: dict[str, ResultSpec] = {}
    tokens: list[dict[str, Any] | None] = []
    for i, one in enumerate(call.inputs):
        left = settings.max_tokens - rows
        if isinstance(one.value, str):
            _check_text(one, model, settings.max_tokens, left)
        sequence, ids = _sequence(one, model)
        rows += sequence.length
        prefix = f"{i}." if call.several else ""
        wanted: list[Wanted] = []
        for want, pointer in _wanted(outputs, prefix, config, sequence.start, sequence.length):
            for spec in result_specs(want, config, sequence.length):
                if spec.name in specs:
                    raise invalid(pointer, f"a second result would be named {spec.name!r}; rename one with as")
                specs[spec.name] = spec
            wanted.append(want)
            if len(specs) > MAX_RESULTS:
                raise TooLarge(f"at least {len(specs)} results are asked for, the limit of one answer is {MAX_RESULTS}")
        stop = max(want.point.depth(config.n_layers) for want in wanted)
        sequence = replace(sequence, wanted=tuple(wanted), stop=max(stop, sequence.start))
        if one.kind in ("x", "inputs_embeds") and _is_normed(sequence, config):
            _check_norms(sequence.rows, f"{one.pointer}/{one.kind}")
        sequences.append(sequence)
        tokens.append(_tokens(ids, model))
    in_order = list(specs.values())
    if answer_format == "safetensors":
        in_order = aligned([specs[name] for name in names_as_made([s.wanted for s in sequences], config)])
    seconds = min(settings.deadline_seconds, (call.timeout_ms or float("inf")) / 1000)
    return Admitted(sequences, in_order, tokens, call.several, seconds)


def check_size(
    admitted: Admitted, answer_format: Format, settings: Settings, *, binary_form: str = "application/x-safetensors"
) -> None:
    """Refuse what is over a limit, or what the format cannot carry. Raises TooLarge or NotAcceptable.

    `binary_form` is what a caller is told to ask for where JSON is too large.
    """
    if admitted.rows > settings.max_tokens:
        raise TooLarge(f"{admitted.rows} rows came, the limit max_tokens is {settings.max_tokens}")
    if answer_format == "npy":
        check_npy([spec.dtype for spec in admitted.specs])
    if admitted.nbytes > settings.max_answer_bytes:
        raise TooLarge(
            f"the answer would have {admitted.nbytes} bytes, the limit max_answer_bytes is "
            f"{settings.max_answer_bytes}; rows, heads, keys, top_k, pool and dtype make it smaller"
        )
    if answer_format == "json" and (estimate := admitted.json_nbytes) > settings.max_json_bytes:
        raise TooLarge(
            f"the answer would have about {estimate} bytes in JSON, the limit max_json_bytes is "
            f"{settings.max_json_bytes}; ask for {binary_form}, or for less with rows, heads, keys, "
            "top_k or pool",
            code="json_too_large",
        )


# --- inputs


def _sequence(one: InputCall, model: LoadedModel) -> tuple[Sequence, npt.NDArray[np.int64] | None]:
    """The sequence of an input, nothing wanted of it yet, and its token ids where it has some."""
    config = model.config
    if one.start > config.n_layers:
        raise invalid(f"{one.pointer}/start", f"{one.start} is over the model's {config.n_layers} layers")
    if one.start and one.kind not in ("x", "n"):
        raise invalid(f"{one.pointer}/start", f"{one.start} goes with x alone, and {one.kind} came")
    pointer = f"{one.pointer}/{one.kind}"
    if one.kind == "n":
        assert isinstance(one.value, int)
        nothing = np.broadcast_to(np.float32(0), (one.value, config.d_model))  # takes no memory
        return Sequence("x", nothing, one.start, one.start, ()), None
    if one.kind in ("x", "inputs_embeds"):
        assert isinstance(one.value, HostTensor)
        matrix = _matrix(one.value, pointer, model)
        _check_length(len(matrix), one, pointer, config)
        positions = _positions(one, len(matrix), config)
        kind = "x" if one.kind == "x" else "inputs_embeds"
        return Sequence(kind, matrix, one.start, one.start, (), positions), None  # type: ignore[arg-type]
    if not config.vocab_size:
        raise invalid(pointer, "the model has no vocabulary; give it x")
    ids = _ids_of_text(one, pointer, model) if one.kind == "text" else _ids(one, pointer)
    _check_length(len(ids), one, pointer, config)
    outside = (ids < 0) | (ids >= config.vocab_size)
    if outside.any():
        i = int(outside.argmax())
        raise invalid(f"{pointer}/{i}", f"token id {ids[i]} is outside the vocabulary, 0 to {config.vocab_size - 1}")
    return Sequence("tokens", ids, 0, 0, (), _positions(one, len(ids), config)), ids


def _matrix(value: HostTensor, pointer: str, model: LoadedModel) -> npt.NDArray[np.float32]:
    numbers, d = value.numbers(), model.config.d_model
    if value.is_integer:
        raise invalid(pointer, f"must be floating point, not {value.dtype}")
    if numbers.ndim != 2:
        raise invalid(pointer, f"must have 2 axes [N, d], not shape {list(numbers.shape)}")
    if numbers.shape[1] != d:
        raise invalid(pointer, f"the rows have width {numbers.shape[1]}, the model's d is {d}")
    with np.errstate(over="ignore", invalid="ignore"):  # of a signalling NaN numpy warns
        matrix = numbers.astype(np.float32, copy=False)
        low, high = (matrix.min(), matrix.max()) if matrix.size else (0.0, 0.0)
    dtype = str(model.stack.dtype).removeprefix("torch.")
    limit = _LARGEST.get(dtype, float(np.finfo(np.float32).max))
    if not (-limit <= low and high <= limit):  # NaN compares false
        i, j = (int(k) for k in np.argwhere(~(np.abs(matrix) <= limit))[0])
        raise invalid(f"{pointer}/{i}/{j}", f"{numbers[i, j]} is not finite in {dtype}, in which the model computes")
    return matrix


def _is_normed(sequence: Sequence, config: StackConfig) -> bool:
    """Whether a norm sees the rows that come in: one in a layer, behind the last, or of the embeddings."""
    return (
        sequence.stop > sequence.start
        or any(want.point.kind in ("final_norm", "logits") for want in sequence.wanted)
        or (sequence.kind == "inputs_embeds" and config.embedding_norm)
    )


def _check_norms(rows: npt.NDArray[Any], pointer: str) -> None:
    """Refuse rows whose squares overflow.

    Norms sum them in float32, in every dtype, and where that overflows they give zeros in silence.
    """
    d = rows.shape[1]
    largest = 0.5 * math.sqrt(float(np.finfo(np.float32).max) / d)
    if max(-rows.min(), rows.max()) > largest:
        i, j = (int(k) for k in np.argwhere(np.abs(rows) > largest)[0])
        raise invalid(
            f"{pointer}/{i}/{j}",
            f"{rows[i, j]:.7g} is over {largest:.4g}, the limit: the squares of {d} such numbers overflow in a norm",
            code="non_finite_result",
        )


def _ids(one: InputCall, pointer: str) -> npt.NDArray[np.int64]:
    assert isinstance(one.value, HostTensor)
    ids = one.value.numbers()
    if not one.value.is_integer:
        raise invalid(pointer, f"must be integers, not {one.value.dtype}")
    if ids.ndim != 1:
        raise invalid(pointer, f"must have 1 axis [N], not shape {list(ids.shape)}")
    if ids.dtype == np.uint64 and ids.size and ids.max() > np.iinfo(np.int64).max:
        raise invalid(pointer, f"token id {ids.max()} is outside the vocabulary")
    return ids.astype(np.int64, copy=False)


def _check_text(one: InputCall, model: LoadedModel, limit: int, left: int) -> None:
    """Refuse a text that has too many tokens even if each were the longest, before it is made into tokens.

    `left` of the `limit` max_tokens are left to it by the inputs before it.
    """
    assert isinstance(one.value, str)
    if model.token_bytes is None:
        return
    size = len(one.value.encode())
    least = model.token_bytes.fewest(size, one.value)
    what = f"{size} bytes, and a token holds at most {model.token_bytes.longest}: at least {least} tokens"
    if model.config.max_positions and least > model.config.max_positions:
        raise invalid(f"{one.pointer}/text", f"has {what}, the model has {model.config.max_positions} positions")
    if least > left:
        raise TooLarge(f"{one.pointer}/text has {what}; {left} are left of the limit max_tokens, which is {limit}")


def _ids_of_text(one: InputCall, pointer: str, model: LoadedModel) -> npt.NDArray[np.int64]:
    assert isinstance(one.value, str)
    if model.tokenizer is None:
        raise invalid(pointer, "the model has no tokenizer; give it tokens")
    ids = encode(model.tokenizer, one.value, one.add_special_tokens)
    return np.array(ids, dtype=np.int64)


def _check_length(n: int, one: InputCall, pointer: str, config: StackConfig) -> None:
    if n == 0:
        raise invalid(pointer, "has no tokens; at least 1 is needed" if one.kind == "text" else "has no rows")
    if one.kind != "x" and config.max_positions and n > config.max_positions:
        raise invalid(pointer, f"has {n} tokens, the model has {config.max_positions} positions")


def _positions(one: InputCall, n: int, config: StackConfig) -> npt.NDArray[np.int64] | None:
    if one.positions is None:
        return None
    pointer = f"{one.pointer}/positions"
    rotary = config.rotary_theta is not None
    if not (rotary or config.learned_positions):
        raise invalid(pointer, "the model uses no positions")
    if one.kind == "x" and not rotary:
        raise invalid(pointer, "in this model positions were added before x; they cannot be given with it")
    if len(one.positions) != n:
        raise invalid(pointer, f"has {len(one.positions)} positions for {n} rows")
    limit = MAX_ROTARY_POSITION if one.kind == "x" else config.max_positions
    outside = (one.positions < 0) | (one.positions >= limit)
    if outside.any():
        i = int(outside.argmax())
        raise invalid(f"{pointer}/{i}", f"position {one.positions[i]} is outside 0 to {limit - 1}")
    return one.positions


def _tokens(ids: npt.NDArray[np.int64] | None, model: LoadedModel) -> dict[str, Any] | None:
    if ids is None:
        return None
    listed = ids.tolist()
    return {"ids": listed} | ({"strings": strings(model.tokenizer, listed)} if model.tokenizer else {})


# --- outputs


def _wanted(
    outputs: list[OutputObject], prefix: str, config: StackConfig, start: int, n: int
) -> Iterator[tuple[Wanted, str]]:
    """What the outputs want of a sequence of n rows, each with the pointer to where it was asked."""
    for i, output in enumerate(outputs):
        pointer = f"/outputs/{i}"
        try:
            points = expand(output.name, config, start)
        except UnknownPoint as error:
            raise invalid(f"{pointer}/name", str(error), code="unknown_point") from None
        for name, point in points:
            selection = _selection(output, point, pointer, config, n)
            yield replace(selection, name=prefix + _renamed(output, name, pointer)), pointer


def _renamed(output: OutputObject, name: str, pointer: str) -> str:
    if output.as_ is None:
        return name
    if output.as_ == "__metadata__":
        raise invalid(f"{pointer}/as", "'__metadata__' is a name that safetensors keeps for itself")
    if is_pattern(output.name):
        return f"{output.as_.removesuffix('.')}.{name}"
    return output.as_


def _selection(output: OutputObject, point: Point, pointer: str, config: StackConfig, n: int) -> Wanted:
    for key, axes, those in (
        ("heads", ("heads", "map"), "q, k, v, z, attn_scores and attn_probs have heads"),
        ("keys", ("map",), "attn_scores and attn_probs have key columns"),
        ("top_k", ("map", "vocabulary"), "attn_scores, attn_probs and logits have a top_k"),
        ("pool", ("rows",), "points of shape [N, d] have a mean"),
    ):
        if getattr(output, key) is not None and point.axes not in axes:
            raise invalid(f"{pointer}/{key}", f"does not go with {point.name}: only {those}")
    heads = None
    if output.heads is not None:
        heads = _indices(output.heads, heads_of(point, config), f"{pointer}/heads", "head", negative=False)
    return Wanted(
        name="",
        point=point,
        heads=heads,
        rows=_index(output.rows, n, f"{pointer}/rows", "row"),
        keys=_index(output.keys, n, f"{pointer}/keys", "key"),
        top_k=output.top_k,
        pool=output.pool is not None,
        dtype=output.dtype,
    )


def _index(chosen: list[int] | RowRange | None, n: int, pointer: str, what: str) -> Index | None:
    if chosen is None:
        return None
    if isinstance(chosen, list):
        return _indices(chosen, n, pointer, what, negative=True)
    start = chosen.start + n if chosen.start < 0 else chosen.start
    stop = n if chosen.stop is None else chosen.stop + n if chosen.stop < 0 else chosen.stop
    if not 0 <= start < stop <= n:
        end = "the end" if chosen.stop is None else chosen.stop
        raise invalid(pointer, f"the range {chosen.start} to {end} is empty or outside the {n} {what}s of this input")
    return slice(start, stop)


def _indices(chosen: list[int], count: int, pointer: str, what: str, *, negative: bool) -> tuple[int, ...]:
    if not chosen:
        raise invalid(pointer, f"names no {what}; at least 1 is needed")
    lowest = -count if negative else 0
    if min(chosen) < lowest or max(chosen) >= count:
        i = next(i for i, index in enumerate(chosen) if not lowest <= index < count)
        raise invalid(f"{pointer}/{i}", f"{what} {chosen[i]} is outside {lowest} to {count - 1}")
    return tuple(index + count if index < 0 else index for index in chosen)

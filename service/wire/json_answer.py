"""An answer as JSON: arrays to text by a fast encoder, in pieces, so that other threads get their turn between."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from service.wire.answer import Answer

PIECE_BYTES = 256 << 10  # of numbers that are encoded at a time: a few milliseconds


def encode(answer: Answer) -> Iterator[bytes]:
    """The pieces of the body. -inf becomes null, as JSON has none; nothing else that is not finite gets here."""
    yield b'{"model":' + orjson.dumps(answer.model) + b',"outputs":{'
    for i, spec in enumerate(answer.specs):
        head = orjson.dumps({"shape": spec.shape, "dtype": spec.dtype})[:-1]
        yield (b"," if i else b"") + orjson.dumps(spec.name) + b":" + head + b',"data":'
        yield from numbers(np.ascontiguousarray(answer.tensors[spec.name].numbers()))
        yield b"}"
    yield b"}"
    tokens = answer.tokens_json()
    if tokens is not None:
        yield b',"tokens":' + orjson.dumps(tokens)
    yield b',"usage":' + orjson.dumps(answer.usage_json())
    yield b',"manifest":' + orjson.dumps(answer.manifest) + b"}"


def numbers(array: npt.NDArray[Any]) -> Iterator[bytes]:
    """The pieces of an array as nested lists; -inf becomes null."""
    if array.nbytes <= PIECE_BYTES or array.ndim == 0:
        yield orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY)
        return
    yield b"["
    step = PIECE_BYTES // array[0].nbytes
    for first in range(0, len(array), max(1, step)):
        if first:
            yield b","
        if step:
            part = orjson.dumps(array[first : first + step], option=orjson.OPT_SERIALIZE_NUMPY)
            yield part[1:-1]
        else:
            yield from numbers(array[first])
    yield b"]"

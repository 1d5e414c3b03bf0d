"""Bytes into tensors, however they are cut, and whatever is wrong with them."""

import json
import struct
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from headwater_client.errors import BrokenAnswer
from headwater_client.receiving import TensorsOneByOne, WholeBody
from headwater_client.safetensors import pieces, read
from headwater_client.tensors import Tensor
from tests.service.calls import same_bits

ARRAYS: dict[str, np.ndarray[Any, Any]] = {
    "a": np.arange(35, dtype=np.float32).reshape(5, 7),
    "empty": np.empty((0, 3), np.float32),
    "b": np.arange(6, dtype=np.int32),
    "scalar": np.array(2.5),
    "c": np.arange(11, dtype=np.float16),
    "last": np.empty((2, 0), np.uint8),
}
BODY = b"".join(pieces({name: Tensor(str(a.dtype), a) for name, a in ARRAYS.items()}, {"key": "value"}))


def test_what_is_written_reads_the_same_here_and_in_the_formats_own_library() -> None:
    tensors, metadata = read(np.frombuffer(BODY, np.uint8))
    theirs = safetensors.numpy.load(BODY)
    assert metadata == {"key": "value"}
    assert set(tensors) == set(theirs) == set(ARRAYS)
    for name, array in ARRAYS.items():
        assert same_bits(tensors[name].numbers(), array), name
        assert same_bits(theirs[name], array), name


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13, 64, 127, len(BODY)])
def test_a_body_cut_into_pieces_of_any_size_gives_each_tensor_once(size: int) -> None:
    coming, found = TensorsOneByOne(), []
    whole = WholeBody(None)
    for at in range(0, len(BODY), size):
        piece = BODY[at : at + size]
        whole.add(piece)
        found += coming.feed(piece)
    coming.finish()
    assert whole.whole().tobytes() == BODY
    assert sorted(name for name, _ in found) == sorted(ARRAYS)
    assert all(same_bits(tensor.numbers(), ARRAYS[name]) for name, tensor in found)


def test_a_tensor_comes_with_its_last_byte_and_not_later() -> None:
    coming = TensorsOneByOne()
    given = [(at, name) for at in range(len(BODY)) for name, _ in coming.feed(BODY[at : at + 1])]
    header = coming.header
    assert header is not None
    first = len(BODY) - header.data_bytes
    ends = {one.name: first + one.end - 1 for one in header.entries if one.begin < one.end}
    assert {name: at for at, name in given if name in ends} == ends


@pytest.mark.parametrize("length", [0, 5, 8, 40, len(BODY) - 1])
def test_a_body_that_ends_early_is_a_broken_answer(length: int) -> None:
    coming, whole = TensorsOneByOne(), WholeBody(len(BODY))
    list(coming.feed(BODY[:length]))
    whole.add(BODY[:length])
    with pytest.raises(BrokenAnswer, match="ended after"):
        coming.finish()
    with pytest.raises(BrokenAnswer, match=f"ended after {length} of {len(BODY)}"):
        whole.whole()
    with pytest.raises(BrokenAnswer):
        read(np.frombuffer(BODY[:length], np.uint8))


def test_a_body_that_goes_on_is_a_broken_answer() -> None:
    whole = WholeBody(3)
    with pytest.raises(BrokenAnswer, match="more than the 3 bytes"):
        whole.add(b"1234")
    with pytest.raises(BrokenAnswer, match="more bytes came"):
        list(TensorsOneByOne().feed(BODY + b"x"))


def entry(**changes: Any) -> dict[str, Any]:
    return {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes}


@pytest.mark.parametrize(
    "header",
    [
        [], "a", {"a": 1}, {"__metadata__": 1}, {"__metadata__": {"a": 1}}, entry(dtype="F31"), entry(dtype=["F32"]),
        entry(shape=[3]), entry(shape=[-2]), entry(shape=[True, 2]), entry(shape=2), entry(data_offsets=[8, 0]),
        entry(data_offsets=[0]), entry(data_offsets=[0, 8, 8]), entry(data_offsets=[4, 12]), entry(shape=[1 << 60]),
    ],
)  # fmt: skip
def test_a_wrong_header_is_a_broken_answer(header: Any) -> None:
    text = json.dumps(header).encode()
    body = struct.pack("<Q", len(text)) + text + bytes(8)
    with pytest.raises(BrokenAnswer):
        read(np.frombuffer(body, np.uint8))
    with pytest.raises(BrokenAnswer):
        list(TensorsOneByOne().feed(body))


@pytest.mark.parametrize("body", [struct.pack("<Q", 1 << 40), b"<html>\n<body>not found</body></html>"])
def test_what_is_no_safetensors_at_all_does_not_make_the_client_wait_for_gigabytes(body: bytes) -> None:
    with pytest.raises(BrokenAnswer, match="no safetensors"):
        list(TensorsOneByOne().feed(body))

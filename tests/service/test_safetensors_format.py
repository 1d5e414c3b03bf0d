"""The two binary readers against their formats' own libraries, and against whatever bytes may come."""

import io
import json
import struct
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from model.selection import ResultSpec
from service.errors import Malformed
from service.wire import npy_format, safetensors_format

Array = np.ndarray[Any, Any]
DTYPES = ["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1"]
FUZZ = settings(
    max_examples=150, deadline=None, database=None, suppress_health_check=list(HealthCheck), print_blob=True
)

shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)
dtypes = st.sampled_from(DTYPES).map(np.dtype)
names = st.text(min_size=1, max_size=9).filter(lambda name: name != "__metadata__")
numbers = st.one_of(
    st.integers(-3, 70),
    st.sampled_from([2**31, 2**32, 2**53, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30]),
)


def is_text(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


@st.composite
def arrays(draw: st.DrawFn) -> Array:
    shape, dtype = draw(shapes), draw(dtypes)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    seed = draw(st.integers(0, 10**6))
    return np.frombuffer(np.random.default_rng(seed).bytes(size), dtype).reshape(shape)


@st.composite
def mutated(draw: st.DrawFn, valid: st.SearchStrategy[bytes]) -> bytes:
    """A valid body with a few bytes changed, dropped, doubled or inserted; mostly in its header."""
    body = bytearray(draw(valid))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, min(len(body), 200)))
        match draw(st.sampled_from(["change", "drop", "insert", "cut", "double"])):
            case "change":
                body[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
            case "drop":
                del body[at : at + draw(st.integers(1, 9))]
            case "insert":
                body[at:at] = draw(
                    st.one_of(st.binary(max_size=5), st.sampled_from([b"0", b"-", b'"', b"[", b"}", b"e9"]))
                )
            case "cut":
                del body[at:]
            case "double":
                body[at:at] = body[at : at + draw(st.integers(1, 30))]
    return bytes(body)


@st.composite
def safetensors_bodies(draw: st.DrawFn) -> bytes:
    tensors = draw(st.dictionaries(names.filter(is_text), arrays(), max_size=4))
    metadata = draw(st.none() | st.dictionaries(names.filter(is_text), st.text(max_size=9).filter(is_text), max_size=3))
    return safetensors.numpy.save(tensors, metadata)


@st.composite
def crafted_headers(draw: st.DrawFn) -> bytes:
    """A header of the right form with any numbers in it, over a few bytes of data."""
    entry = st.fixed_dictionaries(
        {
            "dtype": st.sampled_from(["F32", "BF16", "U8", "I64", "BOOL", "F8_E4M3", "f32", "", 5]),
            "shape": st.lists(numbers, max_size=4) | st.just(None),
            "data_offsets": st.lists(numbers, min_size=1, max_size=3),
        }
    )
    header = draw(st.dictionaries(st.sampled_from(["x", "0.x", "tokens", "__metadata__", ""]), entry, max_size=3))
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + draw(st.binary(max_size=16))


def npy_body(array: Array) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


@st.composite
def crafted_npy(draw: st.DrawFn) -> bytes:
    descr = draw(
        st.sampled_from(
            ["'<f4'", "'>i8'", "'|O'", "'V5'", "'<U3'", "'|b1'", "'<c8'", "'f4,f4'", "('<f4', (2,))", "[]", "5", "''"]
        )
    )
    shape = draw(
        st.lists(numbers, max_size=5).map(tuple).map(repr) | st.sampled_from(["5", "[2]", "(2.0,)", "(None,)"])
    )
    order = draw(st.sampled_from(["False", "True", "2", "None"]))
    text = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + draw(st.binary(max_size=16))


def libraries_verdict(body: bytes) -> list[tuple[str, dict[str, Any]]] | None:
    """What safetensors' own library reads; None if it refuses."""
    try:
        return safetensors.deserialize(body)
    except safetensors.SafetensorError:
        return None


def check_detail(detail: str) -> None:
    """It says something, and does not give the body back."""
    assert 0 < len(detail) < 1000


def read_safetensors(body: bytes) -> dict[str, Any] | None:
    """What our reader reads; None where it says Malformed, the one error that it may raise."""
    try:
        tensors, metadata = safetensors_format.read(bytearray(body))
    except Malformed as error:
        check_detail(error.detail)
        return None
    assert all(isinstance(value, str) for value in metadata.values())
    return tensors


def check_against_library(body: bytes) -> None:
    ours, theirs = read_safetensors(body), libraries_verdict(body)
    if ours is None:
        return
    assert theirs is not None, "the library refuses what was read"
    assert ours.keys() == {name for name, _ in theirs}
    for name, about in theirs:
        assert list(ours[name].data.shape) == about["shape"]
        assert ours[name].data.tobytes() == bytes(about["data"])


@FUZZ
@given(tensors=st.dictionaries(names.filter(is_text), arrays(), max_size=4))
def test_what_the_library_writes_is_read_as_it_was(tensors: dict[str, Array]) -> None:
    found, metadata = safetensors_format.read(bytearray(safetensors.numpy.save(tensors, {"request": "{}"})))
    assert metadata == {"request": "{}"}
    assert found.keys() == tensors.keys()
    for name, array in tensors.items():
        assert found[name].dtype == array.dtype.name
        assert found[name].data.shape == array.shape
        assert found[name].data.tobytes() == array.tobytes()
        assert found[name].data.flags.aligned
        assert found[name].data.flags.c_contiguous


@FUZZ
@given(body=mutated(safetensors_bodies()))
def test_a_damaged_safetensors_body_is_read_as_the_library_does_or_malformed(body: bytes) -> None:
    check_against_library(body)


@FUZZ
@given(body=crafted_headers())
def test_a_safetensors_header_may_have_any_numbers(body: bytes) -> None:
    check_against_library(body)


@FUZZ
@given(body=st.binary(max_size=40))
def test_any_bytes_are_no_harm_to_the_safetensors_reader(body: bytes) -> None:
    check_against_library(body)


@pytest.mark.parametrize(
    "header",
    [
        '{"x": {"dtype": "F32", "dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}',
        '{"x": {"dtype": "F32", "shape": [1], "shape": [1], "data_offsets": [0, 4]}}',
        '{"__metadata__": {"request": "1"}, "__metadata__": {"request": "2"}, '
        '"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}',
        '{"__metadata__": {"a": 1}, "x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}',
        '{"x": {"dtype": "F32", "shape": [2305843009213693952, 8], "data_offsets": [0, 4]}}',
        '{"x": {"dtype": "F32", "shape": [2305843009213693952, 5, 0], "data_offsets": [0, 0]}}',
    ],
    ids=["dtype twice", "shape twice", "metadata twice", "metadata of numbers", "overflow", "overflow to nothing"],
)
def test_a_header_that_the_library_refuses_is_refused(header: str) -> None:
    text = header.encode()
    check_against_library(struct.pack("<Q", len(text)) + text + (b"" if "[0, 0]" in header else b"abcd"))


@FUZZ
@given(
    made=st.lists(
        st.tuples(st.sampled_from(["float32", "float16", "bfloat16", "int32"]), shapes), min_size=1, max_size=5
    ),
    metadata=st.dictionaries(st.sampled_from(["model", "usage", "request"]), st.text(max_size=20).filter(is_text)),
)
def test_our_own_header_is_what_the_library_reads(
    made: list[tuple[str, tuple[int, ...]]], metadata: dict[str, str]
) -> None:
    specs = [ResultSpec(f"{i}.layers.{i}.z", shape, dtype) for i, (dtype, shape) in enumerate(made)]
    ordered = safetensors_format.aligned(specs)
    assert sorted(ordered, key=str) == sorted(specs, key=str)
    head = safetensors_format.header(ordered, metadata)
    assert len(head) % 8 == 0
    data = {spec.name: np.random.default_rng(i).bytes(spec.nbytes) for i, spec in enumerate(ordered)}
    body = head + b"".join(data[spec.name] for spec in ordered)
    loaded = safetensors.torch.load(body)
    assert loaded.keys() == data.keys()
    for spec in specs:
        tensor = loaded[spec.name]
        assert tensor.dtype is getattr(torch, spec.dtype)
        assert tuple(tensor.shape) == spec.shape
        assert tensor.view(-1).view(torch.uint8).numpy().tobytes() == data[spec.name] if tensor.numel() else True
    assert safetensors_format.read(bytearray(body))[1] == metadata


def read_npy(body: bytes) -> Any:
    """What our reader reads; None where it says Malformed, the one error that it may raise."""
    try:
        found = npy_format.read(bytearray(body))
    except Malformed as error:
        check_detail(error.detail)
        return None
    return found


def check_against_numpy(body: bytes) -> None:
    found = read_npy(body)
    if found is None:
        return
    expected = np.load(io.BytesIO(body), allow_pickle=False)
    assert found.data.shape == expected.shape
    assert found.data.tobytes() == expected.astype(expected.dtype.newbyteorder("<")).tobytes()


@FUZZ
@given(array=arrays(), big=st.booleans(), fortran=st.booleans())
def test_what_numpy_writes_is_read_as_it_was(array: Array, big: bool, fortran: bool) -> None:
    written = np.asarray(array.astype(array.dtype.newbyteorder(">" if big else "<")), order="F" if fortran else "C")
    found = npy_format.read(bytearray(npy_body(written)))
    assert found.dtype == array.dtype.name
    assert found.data.shape == array.shape
    assert found.data.tobytes() == array.tobytes()
    assert found.data.flags.aligned
    assert found.data.flags.c_contiguous


@FUZZ
@given(body=mutated(arrays().map(npy_body)))
def test_a_damaged_npy_body_is_read_as_numpy_does_or_malformed(body: bytes) -> None:
    check_against_numpy(body)


@FUZZ
@given(body=crafted_npy())
def test_an_npy_header_may_have_anything_in_it(body: bytes) -> None:
    check_against_numpy(body)


@FUZZ
@given(body=st.binary(max_size=40).map(lambda tail: b"\x93NUMPY\x01\x00" + tail))
def test_any_bytes_are_no_harm_to_the_npy_reader(body: bytes) -> None:
    check_against_numpy(body)


@FUZZ
@given(shape=shapes, dtype=st.sampled_from(["float32", "float16", "int32"]))
def test_our_own_npy_header_is_what_numpy_reads(shape: tuple[int, ...], dtype: str) -> None:
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    data = np.random.default_rng(7).bytes(size)
    loaded = np.load(io.BytesIO(npy_format.header(shape, dtype) + data), allow_pickle=False)
    assert loaded.dtype == dtype
    assert loaded.shape == shape
    assert loaded.tobytes() == data

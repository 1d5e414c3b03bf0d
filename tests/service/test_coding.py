"""Packed bodies: what is in them comes out in bounded parts, is counted as it grows, and refused where it is wrong."""

import gzip
import json
import zlib
from collections.abc import Callable
from contextlib import suppress

import httpx
import pytest
from backports import zstd
from hypothesis import given, settings
from hypothesis import strategies as st

from service.errors import Malformed, ServiceError, TooLarge, UnsupportedMediaType
from service.wire.coding import Coding, coding_of_answer, coding_of_body, packed, unpacked
from tests.service.calls import ids, rows

PACK: dict[Coding, Callable[[bytes], bytes]] = {"zstd": zstd.compress, "gzip": gzip.compress, "deflate": zlib.compress}
UNPACK: dict[Coding, Callable[[bytes], bytes]] = {
    "zstd": zstd.decompress,
    "gzip": gzip.decompress,
    "deflate": zlib.decompress,
}
every_coding = pytest.mark.parametrize("coding", PACK)
MEBIBYTE = 1 << 20


def zstd_frame(blocks: bytes, *, window_log: int = 17) -> bytes:
    """A frame that says nothing of its size, with these blocks."""
    return b"\x28\xb5\x2f\xfd\x00" + bytes([(window_log - 10) << 3]) + blocks


def zstd_block(kind: int, size: int, content: bytes, *, last: bool = False) -> bytes:
    return (size << 3 | kind << 1 | last).to_bytes(3, "little") + content


REPEATED = zstd_block(1, 1 << 17, b"a")  # 4 bytes that stand for 128 KiB


@every_coding
def test_a_packed_body_is_a_call_like_any_other(tiny: httpx.Client, coding: Coding) -> None:
    text = PACK[coding](json.dumps({"tokens": ids(7)}).encode())
    headers = {"Content-Type": "application/json", "Content-Encoding": coding.upper()}
    response = tiny.post("/forward", content=text, headers=headers)
    assert response.json()["outputs"]["layers.2.resid_post"]["shape"] == [7, 30]


@every_coding
def test_an_answer_is_packed_as_the_caller_asks(tiny: httpx.Client, coding: Coding) -> None:
    call = {"inputs": [{"name": "x", "shape": [5, 30], "datatype": "FP32", "data": rows(5).tolist()}]}
    path = f"/v2/models/{tiny.get('/model').json()['name']}/infer"
    plain = tiny.post(path, json=call, headers={"Accept-Encoding": "identity"})
    request = tiny.build_request("POST", path, json=call, headers={"Accept-Encoding": coding})
    response = tiny.send(request, stream=True)
    assert response.headers["content-encoding"] == coding
    assert UNPACK[coding](b"".join(response.iter_raw())) == plain.content
    response.close()


def test_of_codings_that_are_liked_as_much_the_fastest_is_taken() -> None:
    assert coding_of_answer("gzip, deflate, br, zstd") == "zstd"
    assert coding_of_answer("gzip, zstd;q=0.5") == "gzip"
    assert coding_of_answer("zstd;q=0, deflate") == "deflate"
    assert coding_of_answer("zstd, identity") == "zstd"
    assert coding_of_answer("zstd;q=0.5, identity") is None
    assert coding_of_answer(None) is None


def test_codings_that_are_not_read_are_refused_with_those_that_are() -> None:
    assert coding_of_body("X-GZIP") == "gzip"
    with pytest.raises(UnsupportedMediaType, match="zstd, gzip, deflate or identity"):
        coding_of_body("br")


@every_coding
@settings(max_examples=120, deadline=None)
@given(body=st.binary(max_size=200), at=st.integers(0, 200), put=st.binary(max_size=3))
def test_what_is_packed_comes_out_again_or_is_refused(coding: Coding, body: bytes, at: int, put: bytes) -> None:
    sent = b"".join(packed([body[:7], memoryview(body)[7:]], coding))
    assert unpacked(bytearray(sent), coding, 200) == UNPACK[coding](sent) == body
    with suppress(ServiceError):
        unpacked(bytearray(sent[:at] + put + sent[at + len(put) :]), coding, 200)


@every_coding
def test_a_body_that_breaks_off_or_goes_on_is_malformed(coding: Coding) -> None:
    sent = PACK[coding](bytes(range(256)) * 1000)
    for end in (0, 1, 5, len(sent) // 2, len(sent) - 1):
        with pytest.raises(Malformed, match="breaks off"):
            unpacked(bytearray(sent[:end]), coding, MEBIBYTE)
    for behind in (b"\0", sent, bytes(1 << 17)):
        with pytest.raises(Malformed, match="goes on behind its end"):
            unpacked(bytearray(sent + behind), coding, MEBIBYTE)


@every_coding
def test_what_grows_is_told_in_parts_of_at_most_a_mebibyte(coding: Coding) -> None:
    body, told = bytes(5 * MEBIBYTE + 7), []
    assert unpacked(bytearray(PACK[coding](body)), coding, len(body), told.append) == body
    steps = [b - a for a, b in zip([0, *told], told, strict=False)]
    assert max(steps) <= MEBIBYTE
    assert told[-1] == len(body)


class Enough(Exception):
    """Raised by a counter."""


@pytest.mark.parametrize(
    ("coding", "sent"),
    [
        ("gzip", gzip.compress(bytes(64 * MEBIBYTE))),
        ("deflate", zlib.compress(bytes(64 * MEBIBYTE))),
        ("zstd", zstd.compress(bytes(64 * MEBIBYTE))),
        ("zstd", zstd_frame(REPEATED * 512 + zstd_block(1, 1, b"a", last=True))),
    ],
)
def test_a_small_body_that_stands_for_much_is_ended_when_it_passes_the_limit(coding: Coding, sent: bytes) -> None:
    told: list[int] = []
    with pytest.raises(TooLarge, match="the limit max_body_bytes is 3000000") as caught:
        unpacked(bytearray(sent), coding, 3_000_000, told.append)
    assert caught.value.code == "body_too_large"
    assert max(told) <= 3_000_000

    def enough(size: int) -> None:
        if size > MEBIBYTE:
            raise Enough

    with pytest.raises(Enough):
        unpacked(bytearray(sent), coding, 1 << 40, enough)


def test_a_frame_may_need_a_window_of_8_mebibytes_and_no_more() -> None:
    body = bytes(20 * MEBIBYTE)
    for log, allowed in ((23, True), (24, False)):
        packer = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: log})
        sent = bytearray(packer.compress(body) + packer.flush())
        if allowed:
            assert unpacked(sent, "zstd", len(body)) == body
        else:
            with pytest.raises(Malformed, match="too much memory"):
                unpacked(sent, "zstd", len(body))


def test_blocks_that_stand_for_nothing_end() -> None:
    last = zstd_block(1, 3, b"a", last=True)
    assert unpacked(bytearray(zstd_frame(zstd_block(0, 0, b"") * 100_000 + last)), "zstd", 10) == b"aaa"

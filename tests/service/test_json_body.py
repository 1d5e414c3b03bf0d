"""Large JSON bodies are read in pieces, and mean what they would mean read whole."""

import json
from contextlib import suppress
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.errors import Malformed, ServiceError
from service.wire import json_body
from service.wire.json_lists import Floats, Irregular, integers, matrix

BODIES = (
    b'{"x":[[1,2.5],[3,-4e2]],"t":[1,2,3,4,5,6],"s":"a\\"]b[\\\\","o":[{"rows":[1,2,3]},"q"]}',
    b'[[[1,2],[3]],[1 , 2,3],[],[[]],"x"]',
    b'{"a":[ [1] , [2] ],"b":[1.5,2,3,4],"c":[123456789012345678901234567890, 1]}',
)


@pytest.fixture
def in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    _shrink(monkeypatch)


def _shrink(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(json_body, "LARGE_BYTES", 1)
    patch.setattr(json_body, "LONG_BYTES", 4)
    patch.setattr(json_body, "PIECE_BYTES", 3)


def plain(value: Any) -> Any:
    if isinstance(value, (np.ndarray, Floats)):
        return (value.numbers if isinstance(value, Floats) else value).tolist()
    if isinstance(value, list):
        return [plain(one) for one in value]
    return {key: plain(one) for key, one in value.items()} if isinstance(value, dict) else value


def loosely(value: Any) -> Any:
    """With integers that 64 bits cannot hold as floats, as an array of numbers has them."""
    if isinstance(value, list):
        return [loosely(one) for one in value]
    if isinstance(value, dict):
        return {key: loosely(one) for key, one in value.items()}
    return float(value) if type(value) is int and not -(1 << 63) <= value < 1 << 63 else value


def irregular(value: Any) -> bool:
    if isinstance(value, Irregular):
        return True
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(irregular(one) for one in inside)


def has_repeats(text: bytes | bytearray) -> bool:
    """Whether an object in it has two equal keys, as far as it is JSON."""
    found: list[bool] = []
    with suppress(ValueError):
        json.loads(text, object_pairs_hook=lambda pairs: found.append(len(dict(pairs)) < len(pairs)))
    return any(found)


@given(
    body=st.sampled_from(BODIES),
    changes=st.lists(
        st.tuples(st.integers(0, 99), st.sampled_from(("put", "replace", "drop")), st.sampled_from(b'[],1" .e-\\{')),
        max_size=4,
    ),
)
@settings(max_examples=3000, deadline=None)
def test_any_text_read_in_pieces_is_what_it_is_read_whole(body: bytes, changes: list[tuple[int, str, int]]) -> None:
    text = bytearray(body)
    for at, change, character in changes:
        at %= len(text)
        text[at : at + (change != "put")] = b"" if change == "drop" else bytes([character])
    with pytest.MonkeyPatch.context() as patch:
        _shrink(patch)
        try:
            found = json_body.loads(text, "the body")
        except Malformed:
            if not has_repeats(text):
                with pytest.raises(orjson.JSONDecodeError):
                    orjson.loads(text)
            return
    # A list that makes no array is refused with a 422; where that is seen first, the rest has not been looked at.
    if not irregular(found):
        assert not has_repeats(text)
        assert loosely(plain(found)) == loosely(orjson.loads(text))


@pytest.mark.usefixtures("in_small_pieces")
@pytest.mark.parametrize(
    ("text", "pointer", "message"),
    [
        ('{"x": [[1, 2], [3, 4], [5, 6, 7]]}', "/x/2", "row 2 has 3 numbers, row 0 has 2"),
        ('{"x": [[1, 2], [3, 4], [5, [6]]]}', "/x", "nested 3 deep"),
        ('{"x": [1, 2, 3, 4, 5]}', "/x", "not a list of 5 numbers"),
    ],
)
def test_a_matrix_that_is_none_is_refused_where_it_is_wrong(text: str, pointer: str, message: str) -> None:
    with pytest.raises(ServiceError) as caught:
        matrix(json_body.loads(text.encode(), "the body")["x"], "/x")
    assert caught.value.fields[0].pointer == pointer
    assert message in caught.value.fields[0].message


@pytest.mark.usefixtures("in_small_pieces")
@pytest.mark.parametrize(
    ("text", "pointer", "message"),
    [
        ("[1, 2, 3, 4.5, 6]", "/tokens/3", "4.5"),
        ("[1, 2, 3, 1e3, 6]", "/tokens/3", "1000.0"),
        ("[[1, 2], [3, 4]]", "/tokens", "not 2 rows"),
        ("[1, 2, 3, 99999999999999999999]", "/tokens/3", "1e+20"),
    ],
)
def test_ids_that_are_none_are_refused_where_they_are_wrong(text: str, pointer: str, message: str) -> None:
    with pytest.raises(ServiceError) as caught:
        integers(json_body.loads(b'{"tokens": %b}' % text.encode(), "the body")["tokens"], "/tokens")
    assert caught.value.fields[0].pointer == pointer
    assert message in caught.value.fields[0].message


def test_no_step_parses_more_than_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    parse = orjson.loads

    def noting(text: bytes) -> Any:
        sizes.append(len(text))
        return parse(text)

    monkeypatch.setattr(json_body.orjson, "loads", noting)
    x = np.random.default_rng(0).standard_normal((7919, 31))
    text = json.dumps({"x": x.tolist(), "outputs": ["layers.*.resid_post"], "tokens": list(range(99991))}).encode()
    found = json_body.loads(text, "the body")
    assert max(sizes) < 2 * json_body.PIECE_BYTES < len(text) / 10
    np.testing.assert_array_equal(found["x"], x)
    np.testing.assert_array_equal(found["tokens"], range(99991))
    assert found["outputs"] == ["layers.*.resid_post"]


def test_a_long_list_that_is_no_matrix_stays_a_list() -> None:
    rows = list(range(-50_021, 50_021))
    text = json.dumps({"x": [[0.5] * 31] * 9973, "outputs": [{"name": "final_norm", "rows": rows}]}).encode()
    found = json_body.loads(text, "the body")
    assert found["outputs"] == [{"name": "final_norm", "rows": rows}]
    assert found["x"].shape == (9973, 31)


def read(text: str | bytes) -> Any:
    return json_body.loads(bytearray(text.encode() if isinstance(text, str) else text), "the body")


PADDING = '"x": [' + ", ".join(["0.25"] * 200_000) + "]"


@pytest.mark.parametrize(
    "inside",
    ['"rows": 1, "rows": 2', '"o": [{"a": 1, "a": 1}]', '"o": [1, {"a": 1, "a": 1}]', '"a": {"b": ":"}, "a": 1',
     '"\\u0061": 1, "a": 1', '"o": {"p": {"q": 1, "b:": 2, "q": 3}}'],
)  # fmt: skip
@pytest.mark.parametrize("large", [False, True])
def test_a_key_that_stands_twice_in_an_object_is_named(inside: str, large: bool) -> None:
    text = f"{{{inside}, {PADDING}}}" if large else f"{{{inside}}}"
    with pytest.raises(Malformed, match=r"has the key '(rows|a|q)' twice in one object"):
        read(text)


def test_keys_that_are_equal_in_different_objects_and_colons_in_texts_are_no_fault() -> None:
    text = '{"a": ":", "o": [{"a": "::"}, {"a": 1}], "b:": 1, "c": 1e3}'
    assert read(text) == json.loads(text)
    assert read(f'{{"n": 0.{"9" * 5000}, "m": {"9" * 300}, "t": ":"}}')["t"] == ":"


@pytest.mark.parametrize("key", ["k" * 300, "k:" * 300])
def test_a_long_key_is_a_key_like_any_other(key: str) -> None:
    assert read(f'{{"{key}": 5, {PADDING}}}')[key] == 5
    with pytest.raises(Malformed, match="twice"):
        read(f'{{"{key}": 5, "{key}": 6, {PADDING}}}')


def test_a_long_text_is_read_as_it_is() -> None:
    text = 'é"\\\n\U0001f600' * 100_000
    assert read(json.dumps({"text": text, "add_special_tokens": False}))["text"] == text
    assert read(json.dumps({"text": text}, ensure_ascii=False))["text"] == text


def test_many_lists_of_middling_length_are_arrays() -> None:
    inputs = [{"tokens": [7 * i] * 101} for i in range(4096)]
    found = read(json.dumps({"inputs": inputs}))["inputs"]
    assert [one["tokens"].tolist() for one in found] == [one["tokens"] for one in inputs]


NUMBERS = "0.25, " * 1_000_000


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        (f'{{"x": [{NUMBERS} "a"]}}', "text or an object at byte 6000008"),
        (f'{{"x": [[{NUMBERS} 1], {{}}]}}', "text or an object at byte"),
        (f'{{"x": [{NUMBERS}', "does not end before"),
        (f'{{"x": [{NUMBERS} }}', "does not end before"),
        (f'{{"x": ["a", {NUMBERS} 1]}}', "more than 4194304 bytes beside"),
        (f'{{"y": [{NUMBERS} 1]}}', "more than 4194304 bytes beside"),
        (f'{{"x": 1{" " * 6_000_000}}}', "more than 4194304 bytes beside"),
        ('{"a": [[[]]], ' * 200_000, "more than 100000 texts and lists"),
        ('{"text": "' + "a" * (17 << 20) + '"}', "a text of over 16777216 bytes"),
    ],
    ids=lambda one: one[-28:],
)  # fmt: skip
def test_a_large_body_that_no_call_has_is_refused_without_parsing_it_in_one_go(
    monkeypatch: pytest.MonkeyPatch, text: str, refusal: str
) -> None:
    sizes = [0]
    parse = orjson.loads

    def noting(part: bytes) -> Any:
        sizes.append(len(part))
        return parse(part)

    monkeypatch.setattr(json_body.orjson, "loads", noting)
    with pytest.raises(ServiceError) as caught:
        read(text)
    assert refusal in caught.value.detail
    assert max(sizes) <= json_body.REST_BYTES


@pytest.mark.parametrize("text", ["[[" + "1," * 3_000_000 + "1]]", "[" + "1" * 6_000_000 + "]"])
def test_a_row_or_number_of_megabytes_is_not_parsed(text: str) -> None:
    with pytest.raises(ServiceError, match="of over 4194304 bytes, the limit of one"):
        matrix(read(f'{{"x": {text}}}')["x"], "/x")

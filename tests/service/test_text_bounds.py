"""A text that must have too many tokens is refused before it is made into tokens; no other is."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from model.tokenizer import encode, token_bytes
from tests.server import Server, serving
from tests.service.calls import post, problem
from tests.service.small_text_model import LONGEST, LOST, POSITIONS, WORD, over_bytes, write_model


def word_piece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "##a": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from([WORD, "  ", "\x04", "é", "中", "a", "\n"]) | st.characters(codec="utf-8"), max_size=60)
)
def test_no_text_has_fewer_tokens_than_its_bytes_say(parts: list[str]) -> None:
    tokenizer, text = over_bytes(), "".join(parts)
    bound = token_bytes(tokenizer)
    assert bound is not None
    assert (bound.longest, bound.lost) == (LONGEST, LOST)
    assert bound.fewest(len(text.encode()), text) <= len(encode(tokenizer, text, False))


def stripping() -> Tokenizer:
    tokenizer = over_bytes()
    tokenizer.add_special_tokens([AddedToken("<end>", rstrip=True, normalized=False)])
    return tokenizer


def normalised() -> Tokenizer:
    tokenizer = over_bytes()
    tokenizer.normalizer = normalizers.Replace("a", "")
    return tokenizer


def dropping() -> Tokenizer:
    tokenizer = over_bytes()
    split = pre_tokenizers.Split(" ", "removed")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    return tokenizer


@pytest.mark.parametrize("made", [word_piece, stripping, normalised, dropping])
def test_where_a_token_can_stand_for_any_length_there_is_no_bound(made: Any) -> None:
    assert token_bytes(made()) is None


def test_an_added_token_may_be_the_longest() -> None:
    tokenizer = over_bytes()
    tokenizer.add_special_tokens(["<a very long token>"])
    bound = token_bytes(tokenizer)
    assert bound is not None
    assert bound.longest == 19


def served(directory: Path, tokenizer: Tokenizer) -> AbstractContextManager[Server]:
    write_model(directory, tokenizer)
    return serving(directory, "--threads", "1", "--max-text-bytes", "6000011", "--max-tokens", "17")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with served(tmp_path_factory.mktemp("models") / "bytes", over_bytes()) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx.Client]:
    with server.client() as one:
        yield one


def test_the_longest_text_that_can_fit_is_taken(client: httpx.Client) -> None:
    response = post(client, {"text": WORD * POSITIONS})
    assert response.json()["usage"]["tokens"] == POSITIONS


def test_a_text_over_the_positions_whatever_its_tokens_is_refused_by_its_length(client: httpx.Client) -> None:
    text = WORD * POSITIONS + "c"
    body = problem(post(client, {"inputs": [{"text": "a"}, {"text": text}]}), 422, "invalid_request")
    assert body["errors"][0]["pointer"] == "/inputs/1/text"
    for number in (len(text), LONGEST, POSITIONS + 1, POSITIONS):
        assert str(number) in body["detail"]


def test_a_text_over_what_max_tokens_leaves_is_refused_by_its_length(client: httpx.Client) -> None:
    text = WORD * (POSITIONS - 1)  # 12 tokens; 17 are allowed, and 2 times 3 came before
    body = problem(post(client, {"inputs": [{"tokens": [1, 2, 3]}] * 2 + [{"text": text}]}), 413, "too_large")
    for number in (len(text), LONGEST, POSITIONS - 1, 11, 17):
        assert str(number) in body["detail"]
    dry = client.post("/forward?dry_run=true", json={"inputs": [{"text": text}] * 2}).json()
    assert (dry["admitted"], dry["code"]) == (False, "too_large")


def test_bytes_that_go_into_no_token_are_not_counted(client: httpx.Client) -> None:
    response = post(client, {"text": "\x04" * 1000 + WORD})
    assert response.json()["usage"]["tokens"] == 1


def test_texts_over_the_limit_in_bytes_are_refused_with_both_numbers(client: httpx.Client) -> None:
    body = problem(post(client, {"inputs": [{"text": "é" * 1_500_003}] * 2}), 413, "too_large")
    assert "6000012 bytes" in body["detail"]
    assert "max_text_bytes is 6000011" in body["detail"]


def test_probes_are_answered_while_a_long_text_is_made_into_tokens(tmp_path: Path) -> None:
    """A tokenizer without a bound has to look at the text as a whole, and that takes a second or more."""
    with served(tmp_path / "words", word_piece()) as running, running.client() as caller, running.client() as probe:
        answers: list[tuple[httpx.Response, float]] = []

        def call() -> None:
            began = time.monotonic()
            answers.append((post(caller, {"text": "b a" * 699_999}), time.monotonic() - began))

        thread = threading.Thread(target=call)
        thread.start()
        waits = []
        while thread.is_alive():
            began = time.monotonic()
            assert probe.get("/livez").status_code == 200
            waits.append(time.monotonic() - began)
        thread.join()
    ((response, seconds),) = answers
    problem(response, 422)
    assert "positions" in response.text
    assert max(waits) < seconds / 3, "a probe waited for the whole text"


def test_the_text_of_a_metadata_key_is_bounded_too(client: httpx.Client) -> None:
    text = json.dumps({"text": WORD * 40})
    header = json.dumps({"__metadata__": {"request": text}}).encode()
    body = len(header).to_bytes(8, "little") + header
    response = client.post("/forward", content=body, headers={"Content-Type": "application/x-safetensors"})
    assert problem(response, 422)["errors"][0]["pointer"] == "/text"

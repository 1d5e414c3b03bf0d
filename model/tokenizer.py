"""The model's own tokenizer: text to ids, and ids to the pieces of text that they stand for."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from model.errors import CheckpointError


def load_tokenizer(path: Path, vocab_size: int) -> Tokenizer | None:
    """The tokenizer of a checkpoint, or None where there is no file.

    Padding and truncation, which some files carry, are switched off: they would change what was asked for.
    """
    if not path.is_file():
        return None
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more special
        raise CheckpointError(f"{path}: not a readable tokenizer ({error})") from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    if vocab_size and tokenizer.get_vocab_size() > vocab_size:
        raise CheckpointError(
            f"{path}: the tokenizer has {tokenizer.get_vocab_size()} tokens, the model's vocabulary {vocab_size}"
        )
    return tokenizer


def encode(tokenizer: Tokenizer, text: str, add_special_tokens: bool) -> list[int]:
    """The ids of a text. Other threads go on meanwhile."""
    # not `encode`, which holds the interpreter until it is through: a second for each MB
    (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
    ids: list[int] = encoding.ids
    return ids


def strings(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """What each id stands for, by itself."""
    return tokenizer.decode_batch([[i] for i in ids], skip_special_tokens=False)


@dataclass(frozen=True)
class TokenBytes:
    """What bounds the tokens of a text from below: bytes of the longest token, and the bytes that go into no token."""

    longest: int
    lost: bytes

    def fewest(self, size: int, text: str) -> int:
        """A text of `size` bytes in UTF-8 has no fewer tokens."""
        kept = len(text.encode().translate(None, self.lost)) if self.lost else size
        return -(-kept // self.longest)


def token_bytes(tokenizer: Tokenizer) -> TokenBytes | None:
    """How few tokens a text can have, where its bytes tell: in BPE over bytes, without a normaliser.

    None elsewhere. WordPiece makes one [UNK] of a word of any length, unknown characters may be fused into one token,
    normalisers and pre-tokenisers drop characters.
    """
    raw: dict[str, Any] = json.loads(tokenizer.to_str())
    model, before = raw["model"], raw["pre_tokenizer"] or {}
    steps: list[dict[str, Any]] = before.get("pretokenizers", [before])
    if not (
        model["type"] == "BPE"
        and not model.get("continuing_subword_prefix")
        and not model.get("end_of_word_suffix")
        and raw["normalizer"] is None
        and any(step.get("type") == "ByteLevel" for step in steps)
        and all(_keeps_characters(step) for step in steps)
        and not any(token["lstrip"] or token["rstrip"] for token in raw["added_tokens"])
    ):
        return None
    # a token of the model has a character for each byte, an added one is text
    added = [len(token["content"].encode()) for token in raw["added_tokens"]]
    lost = bytes(byte for byte, character in enumerate(_characters_of_bytes()) if character not in model["vocab"])
    return TokenBytes(max(*map(len, model["vocab"]), *added), lost)


def _keeps_characters(step: dict[str, Any]) -> bool:
    """Whether a pre-tokeniser drops nothing of the text."""
    return step.get("type") in ("ByteLevel", "Digits") or (
        step.get("type") == "Split" and step["behavior"] != "Removed"
    )


def _characters_of_bytes() -> list[str]:
    """What BPE over bytes writes for each: the byte's own character where it can be seen, else one from 256 on."""
    seen = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in seen else next(others)) for byte in range(256)]

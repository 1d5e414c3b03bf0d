"""The model's own tokenizer: text to ids, and ids to the pieces of text that they stand for."""

from pathlib import Path

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
    """The ids of a text."""
    return tokenizer.encode(text, add_special_tokens=add_special_tokens).ids


def strings(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """What each id stands for, by itself."""
    return tokenizer.decode_batch([[i] for i in ids], skip_special_tokens=False)

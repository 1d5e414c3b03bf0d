"""A small model with a tokenizer over bytes, which makes words of six letters into one token."""

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from model.checkpoint.initialise import initialise

POSITIONS, LONGEST = 13, 6
WORD = "abcdef"
MERGES = [*((WORD[:i], WORD[i]) for i in range(1, LONGEST)), ("Ġ", "Ġ"), ("ĠĠ", "ĠĠ")]
LOST = bytes([4, 0xF5])


def over_bytes() -> Tokenizer:
    """BPE over bytes, two of which have no token; the longest token has 6 bytes."""
    alphabet = sorted(set(pre_tokenizers.ByteLevel.alphabet()) - {"Ą", "õ"})
    words = [*alphabet, *("".join(pair) for pair in MERGES)]
    tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def write_model(directory: Path, tokenizer: Tokenizer, *, n_layers: int = 1) -> Path:
    """A stack of random weights with this tokenizer, width 6 and 13 positions."""
    initialise(
        directory,
        seed=5,
        n_layers=n_layers,
        d_model=6,
        n_heads=1,
        d_k=3,
        d_v=5,
        d_ff=7,
        vocab_size=tokenizer.get_vocab_size(),
        max_positions=POSITIONS,
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory

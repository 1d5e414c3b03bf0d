"""`headwater init`: a textbook checkpoint with seeded random weights, for teaching, tests and benchmarks."""

from pathlib import Path
from typing import Any

from model.checkpoint import textbook
from model.checkpoint.config_keys import ConfigKeys
from model.checkpoint.write import new_directory, write_config, write_weights
from model.errors import CheckpointError


def initialise(destination: Path, *, seed: int, **options: Any) -> None:
    """Write a new directory; `options` are keys of a textbook config.json. Raises CheckpointError."""
    if not 0 <= seed < 1 << 63:
        raise CheckpointError(f"--seed is {seed}, and must be from 0 to 2^63 - 1")
    keys = ConfigKeys({"model_type": "textbook", **options}, "init")
    config = textbook.read_config(keys)
    keys.finish(())
    with new_directory(destination) as directory:
        write_config(directory, textbook.config_json(config))
        write_weights(directory, textbook.random_tensors(config, seed))

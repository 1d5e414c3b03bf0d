"""Writing a checkpoint directory: all of it, or nothing."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from model.errors import CheckpointError


@contextmanager
def new_directory(destination: Path) -> Iterator[Path]:
    """A directory to fill, for all to read, which takes its name when it is complete; never over one that is there."""
    if destination.exists():
        raise CheckpointError(f"{destination}: is there already")
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{destination.name}.", dir=destination.parent))
    except OSError as error:
        raise CheckpointError(f"{destination}: cannot be written ({error})") from None
    try:
        partial.chmod(0o755)
        yield partial
        for path in partial.iterdir():  # safetensors' own are for their owner alone
            path.chmod(0o644)
        os.rename(partial, destination)
    except OSError as error:
        raise CheckpointError(f"{destination}: cannot be written ({error})") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_config(directory: Path, config: dict[str, Any]) -> None:
    """config.json."""
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def write_weights(directory: Path, tensors: dict[str, Tensor]) -> None:
    """model.safetensors."""
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})

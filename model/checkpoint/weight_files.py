"""Where the weights of a directory are: in one safetensors file, or in shards that an index lists."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model.errors import CheckpointError

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class WeightFiles:
    """The files of a checkpoint's weights; `listed` says in which of them the index has each tensor, by file name.

    `path` is the file or the index, which errors are about; without an index there is one file, and nothing listed.
    """

    path: Path
    files: tuple[Path, ...]
    listed: dict[str, str] | None = None

    def sha256(self) -> str:
        """Of one file its SHA-256; of shards that of what `sha256sum` prints of them, in the order of their names."""
        if self.listed is None:
            return sha256_of(self.path)
        lines = "".join(f"{sha256_of(file)}  {file.name}\n" for file in self.files)
        return hashlib.sha256(lines.encode()).hexdigest()


def weight_files(directory: Path) -> WeightFiles:
    """The files, none of which has been opened; CheckpointError where one is missing."""
    if (directory / WEIGHTS).is_file():
        return WeightFiles(directory / WEIGHTS, (directory / WEIGHTS,))
    if (directory / INDEX).is_file():
        return _listed_by(directory / INDEX)
    found = sorted(p.name for p in directory.glob("*.bin"))
    hint = f"; {found[0]} can be made into one by `headwater convert`" if found else ""
    raise CheckpointError(f"{directory}: there is no {WEIGHTS} in it{hint}")


def _listed_by(index: Path) -> WeightFiles:
    listed = read_json(index).get("weight_map")
    if not isinstance(listed, dict) or not listed or not all(isinstance(file, str) for file in listed.values()):
        raise CheckpointError(f"{index}: weight_map is no table from tensors to files")
    names = sorted(set(listed.values()))
    for name in names:
        # a plain name alone: neither a path out of the directory nor one to anywhere else
        if Path(name).name != name or "\\" in name or "\0" in name:
            raise CheckpointError(f"{index}: {name!r} is not the name of a file in the directory")
        if not (index.parent / name).is_file():
            raise CheckpointError(f"{index}: the shard {name!r} is missing")
    return WeightFiles(index, tuple(index.parent / name for name in names), listed)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; CheckpointError where it is none."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not readable as JSON ({error})") from None
    if not isinstance(raw, dict):
        raise CheckpointError(f"{path}: not a JSON object")
    return raw


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

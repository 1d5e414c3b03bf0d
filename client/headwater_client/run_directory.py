"""A directory of answers: one file a sequence, and a file that says what was asked of which model.

Whatever ends the process, each file is whole or not there: it is written under another name, then renamed. run.json
comes first, so there are no answers of which it is not known what they are.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

from headwater_client.answer import Answer
from headwater_client.call import Input
from headwater_client.errors import BrokenAnswer, HeadwaterError, RunInUse, RunMismatch
from headwater_client.safetensors import header_length, pieces, read_header
from headwater_client.tensors import tensor_of

FORMAT = 1
RUN, LOCK = "run.json", ".lock"
_ANSWER = re.compile(r"\d{8}\.(safetensors|error\.json)")
INPUT_KEY = "headwater_client.input_sha256"


def digest(one: Input) -> str:
    """What tells one input from another: its fields, dtypes, shapes and numbers."""
    hashed = hashlib.sha256()
    for name, value in sorted(one.items()):
        hashed.update(f"{name}\0".encode())
        if name in ("x", "inputs_embeds", "tokens", "positions"):
            tensor = tensor_of(name, value)
            integers = name in ("tokens", "positions")  # the same ids, in whatever type
            stored = tensor.stored.astype("<i8") if integers else tensor.stored
            hashed.update(f"{'ids' if integers else tensor.dtype} {tensor.shape}\0".encode())
            hashed.update(np.ascontiguousarray(stored).reshape(-1).view(np.uint8).data)
        else:
            hashed.update(f"{value!r}\0".encode())
    return hashed.hexdigest()


class RunDirectory:
    """The answers of one run. Its methods are called by one thread at a time for each index."""

    def __init__(self, path: Path, lock: IO[str]) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def open(cls, path: Path, about: Mapping[str, Any]) -> "RunDirectory":
        """Make it, or go on with it.

        Raises RunMismatch if it is another run's, or has files that a run would write over; RunInUse if a process is at
        it; ValueError if it is no directory.
        """
        if path.exists() and not path.is_dir():
            raise ValueError(f"into: {path.name} is a file, and must be a directory")
        path.mkdir(parents=True, exist_ok=True)
        lock = (path / LOCK).open("w")
        try:
            _lock(lock)
            for left in path.glob(".*.part"):  # of a process that was ended
                left.unlink()
            wanted = {"format": FORMAT, **about}
            if (path / RUN).exists():
                _compare(_read(path / RUN), wanted)
            else:
                _refuse_others(path)
                with _written(path / RUN) as file:
                    file.write(json.dumps(wanted, indent=1).encode())
        except BaseException:
            lock.close()
            raise
        return cls(path, lock)

    def file(self, index: int) -> Path:
        """Where the answer of a sequence is, or will be."""
        return self.path / f"{index:08d}.safetensors"

    def error_file(self, index: int) -> Path:
        """Where it stands why a sequence has no answer."""
        return self.path / f"{index:08d}.error.json"

    def has(self, index: int, input_sha256: str) -> bool:
        """Whether the whole answer to this very input is there. Raises RunMismatch if it is another input's."""
        try:
            with self.file(index).open("rb") as file:
                length = header_length(file.read(8))
                header = read_header(file.read(length))
                whole = os.fstat(file.fileno()).st_size == 8 + length + header.data_bytes
        except (FileNotFoundError, BrokenAnswer):
            return False
        if whole and header.metadata.get(INPUT_KEY) != input_sha256:
            raise RunMismatch(f"{self.path.name} has an answer {index} to another input; the inputs must be the same")
        return whole

    def keep(self, index: int, input_sha256: str, answer: Answer) -> Path:
        """Write an answer; what it was asked with is in its metadata."""
        tensors = {name: answer.tensor(name) for name in answer}
        with _written(self.file(index)) as file:
            for piece in pieces(tensors, {**answer.metadata, INPUT_KEY: input_sha256}):
                file.write(piece)
        self.error_file(index).unlink(missing_ok=True)
        return self.file(index)

    def keep_error(self, index: int, error: HeadwaterError) -> None:
        """Write why there is no answer; a later run tries again."""
        about = {
            "index": index,
            "kind": type(error).__name__,
            "status": error.status,
            "code": error.code,
            "detail": error.detail,
            "errors": [{"pointer": one.pointer, "message": one.message} for one in error.errors],
            "request_id": error.request_id,
        }
        with _written(self.error_file(index)) as file:
            file.write(json.dumps(about, indent=1).encode())

    def close(self) -> None:
        """Let others write here."""
        self._lock.close()


@contextmanager
def _written(path: Path) -> Iterator[IO[bytes]]:
    """A file that appears under its name when it is whole."""
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            yield file
        part.replace(path)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise


def _lock(file: IO[str]) -> None:
    try:
        import fcntl
    except ImportError:  # not on Windows, where two runs into one directory are not noticed
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise RunInUse("another run writes into this directory") from None


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise RunMismatch(f"{path.name} is not what a run writes; take another directory") from None


def _refuse_others(path: Path) -> None:
    """Whatever is called like an answer was not written by a run, where no run.json says of which."""
    for there in sorted(path.iterdir()):
        if _ANSWER.fullmatch(there.name):
            raise RunMismatch(
                f"the directory has {there.name} and no {RUN}, so no run wrote it; take another directory"
            )


def _compare(found: Any, wanted: Mapping[str, Any]) -> None:
    for key, value in wanted.items():
        there = found.get(key) if isinstance(found, dict) else None
        if there != value:
            raise RunMismatch(
                f"the directory has a run with {key} {json.dumps(there)[:200]}, "
                f"and this one has {json.dumps(value)[:200]}; take another directory"
            )

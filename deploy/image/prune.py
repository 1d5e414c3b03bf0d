"""Take out of an environment what only builds and test runners use: headers, static libraries, tests, setuptools.

python prune.py DIRECTORY
"""

import shutil
import sys
from pathlib import Path

FOR_COMPILERS = {".a", ".h", ".hpp", ".cuh", ".pxd", ".pyx", ".cmake"}
TESTS = "tests"  # the directory that many packages have at some depth
FOR_BUILDS = (
    "setuptools",
    "setuptools-*.dist-info",
    "_distutils_hack",
    "distutils-precedence.pth",
)  # torch asks for it
OF_TORCH = ("include", "share", "test")
NEEDED_PROGRAM = "torch_shm_manager"  # torch looks for it when it is imported; the other programs are tests


def prune(directory: Path) -> int:
    """Remove them; how many bytes they had."""
    removed = 0
    for torch in directory.rglob("site-packages/torch"):
        removed += sum(_remove(torch / name) for name in OF_TORCH)
        removed += sum(_remove(one) for one in torch.glob("bin/*") if one.name != NEEDED_PROGRAM)
        removed += sum(_remove(one) for one in torch.glob("lib/*_test.so"))
    for name in FOR_BUILDS:
        removed += sum(_remove(one) for one in directory.rglob(f"site-packages/{name}"))
    for path in sorted(directory.rglob("site-packages/**/*")):
        if path.suffix in FOR_COMPILERS or (path.name == TESTS and path.is_dir()):
            removed += _remove(path)
    return removed


def _remove(path: Path) -> int:
    """Remove a file or a tree, if it is there; how many bytes it had."""
    if path.is_dir() and not path.is_symlink():
        size = sum(one.lstat().st_size for one in path.rglob("*") if not one.is_dir())
        shutil.rmtree(path)
        return size
    size = path.lstat().st_size if path.is_symlink() or path.exists() else 0
    path.unlink(missing_ok=True)
    return size


if __name__ == "__main__":
    print(f"pruned {prune(Path(sys.argv[1])) / 1e6:.0f} MB from {sys.argv[1]}")

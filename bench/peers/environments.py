"""A virtual environment for each peer, below the cache directory: nothing of theirs is among our dependencies.

torch and transformers come in the versions of constraints.txt, so that the same arithmetic is compared.
"""

import hashlib
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

from bench.peers.models import folder

CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"
INSTALL_SECONDS = 1200


@cache
def pinned(package: str) -> str:
    """`package==version`, as constraints.txt has it."""
    found = re.search(rf"^{re.escape(package)}==\S+$", CONSTRAINTS.read_text(), re.MULTILINE)
    if found is None:
        raise LookupError(f"constraints.txt does not pin {package}")
    return found[0]


def environment_python(name: str, requirements: tuple[str, ...]) -> Path:
    """The interpreter of an environment with these; made if there is none yet."""
    digest = hashlib.sha256("\n".join((sys.version, *requirements)).encode()).hexdigest()[:8]
    directory = folder() / "environments" / f"{name}-{digest}"
    python, complete = directory / "bin" / "python", directory / "complete"
    if not complete.is_file():
        print(f"installing {', '.join(requirements)}", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(directory)], check=True)
        # torch by its exact version, for a range would bring the CUDA build where both can be had
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements]
        subprocess.run(command, check=True, timeout=INSTALL_SECONDS)
        complete.touch()
    return python

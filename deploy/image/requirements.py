"""What the package needs, one requirement a line, so that it can be installed before the package is there.

    python requirements.py [EXTRA ...]

reads the pyproject.toml of the working directory. The dependencies come first, then those of the extras.
"""

import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path


def requirements(pyproject: str, extras: Sequence[str]) -> list[str]:
    """The requirements that stand in this TOML text. Raises KeyError for an extra that is not in it."""
    project = tomllib.loads(pyproject)["project"]
    found: list[str] = list(project["dependencies"])
    for extra in extras:
        found += project["optional-dependencies"][extra]
    return found


if __name__ == "__main__":
    print("\n".join(requirements(Path("pyproject.toml").read_text(encoding="utf-8"), sys.argv[1:])))

"""How pip reaches packages on this machine, so that pip in a build can do the same: settings, and the paths in them."""

import ast
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

# constraints and the rest stay out: those of the project are the Dockerfile's own
KEYS = ("index-url", "extra-index-url", "find-links", "cert", "trusted-host", "no-index", "default-timeout")


@dataclass(frozen=True)
class PipSettings:
    """A pip.conf for the build, and the host's paths that it names, to be mounted where they are."""

    text: str
    paths: tuple[Path, ...]


def pip_settings(listed: str | None = None) -> PipSettings:
    """Those in force here, variables of the environment included; `listed` is what `pip config list` prints."""
    if listed is None:
        command = [sys.executable, "-m", "pip", "config", "list"]
        listed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    values: dict[str, str] = {}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        section, _, key = name.rpartition(".")
        # variables win over files, and the file's section for one command concerns nobody here
        if key in KEYS and (section == ":env:" or (section == "global" and key not in values)):
            values[key] = ast.literal_eval(value)
    lines = [f"{key} = {' '.join(value.split())}" for key, value in sorted(values.items())]
    paths = sorted({path for value in values.values() for word in value.split() if (path := _path(word))})
    return PipSettings("\n".join(["[global]", *lines, ""]), tuple(paths))


def _path(word: str) -> Path | None:
    """The file or folder that must be there for this word of a setting; None where it is no path of this machine."""
    if word.startswith("file://"):
        # an index's pages point at files beside it
        return Path(unquote(urlsplit(word).path)).parent
    path = Path(word)
    return path if path.is_absolute() and path.exists() else None

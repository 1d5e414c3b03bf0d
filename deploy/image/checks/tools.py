"""The programs that build and run an image without a daemon: those that are there, or installed from Debian."""

import os
import shutil
import subprocess

PROGRAMS = ("buildah", "podman", "runc", "mmdebstrap")
PACKAGES = (
    "buildah", "podman", "runc", "netavark", "aardvark-dns", "catatonit", "iptables", "uidmap", "mmdebstrap",
)  # fmt: skip
INSTALL_SECONDS = 300


def why_not() -> str | None:
    """None once all programs are there, which may install them; else why the image cannot be tested on this machine."""
    if os.geteuid() != 0:
        return "the image is tested by root alone, who can mount and limit memory without a daemon"
    if not _missing():
        return None
    if shutil.which("apt-get") is None:
        return f"{', '.join(_missing())}: not installed, and there is no apt-get to install them with"
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        ["apt-get", "update", "-qq"],
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *PACKAGES],
    ):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=INSTALL_SECONDS)
        said = (done.stderr.strip().splitlines() or ["nothing on stderr"])[-1]
    # one index out of several may be out of reach: what counts is whether the programs are there
    return f"{', '.join(_missing())}: could not be installed ({said})" if _missing() else None


def _missing() -> list[str]:
    return [program for program in PROGRAMS if shutil.which(program) is None]

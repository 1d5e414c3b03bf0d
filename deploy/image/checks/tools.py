"""The programs that build and run an image without a daemon: those that are there, or installed from Debian.

    python -m deploy.image.checks.tools

installs what is missing, and exits 3 with one line that says why where the image cannot be tested on this machine.
"""

import os
import shutil
import subprocess
import sys

PROGRAMS = ("buildah", "podman", "runc", "mmdebstrap", "netavark", "catatonit")
PACKAGES = (
    "buildah", "podman", "runc", "netavark", "aardvark-dns", "catatonit", "iptables", "uidmap", "mmdebstrap",
)  # fmt: skip
OF_PODMAN = ("/usr/lib/podman", "/usr/libexec/podman")  # where it has programs that nobody else calls
INSTALL_SECONDS, LOCK_SECONDS = 240, 60


def why_not() -> str | None:
    """None once all programs are there, which may install them; else why the image cannot be tested on this machine."""
    if os.geteuid() != 0:
        return "the image is tested by root alone, who can mount and limit memory without a daemon"
    # a root that is one in a container only may have neither
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, timeout=INSTALL_SECONDS).returncode != 0:
        return "this root may mount nothing"
    said = _install() if _missing() else ""
    return f"{', '.join(_missing())}: {said}" if _missing() else None


def _install() -> str:
    """Try, and say what became of it: one index out of several may be out of reach, and yet all programs there."""
    if shutil.which("apt-get") is None:
        return "not installed, and there is no apt-get to install them with"
    lock = f"DPkg::Lock::Timeout={LOCK_SECONDS}"
    said = ""
    for command in (
        ["apt-get", "update", "-qq"],
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "-o", lock, *PACKAGES],
    ):
        try:
            done = subprocess.run(
                command, env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"}, stdin=subprocess.DEVNULL,
                capture_output=True, text=True, timeout=INSTALL_SECONDS,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"could not be installed within {INSTALL_SECONDS} s"
        said = (done.stderr.strip().splitlines() or ["nothing on stderr"])[-1]
    return f"could not be installed ({said})"


def _missing() -> list[str]:
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *OF_PODMAN])
    return [program for program in PROGRAMS if shutil.which(program, path=path) is None]


if __name__ == "__main__":
    if (reason := why_not()) is not None:
        print(reason)
        sys.exit(3)

"""From a checkout to images: a base to stand on, the image as it is by default, and one with a model baked in."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from deploy.image.checks.machine import pip_settings
from deploy.image.checks.store import Store

ROOT = Path(__file__).parents[3]
BASE, IMAGE, BAKED = "localhost/python-stand-in:test", "localhost/headwater:test", "localhost/headwater:baked"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
BASE_SECONDS, BUILD_SECONDS = 180, 360
DECOY = "decoy.safetensors"  # beside what is needed, to see that it stays out


def make_base(store: Store) -> str:
    """Debian with Python, made from this machine's own release, as python:3.11-slim is; its name.

    IMAGE_TEST_BASE in the environment names an image to pull instead.
    """
    if wanted := os.environ.get("IMAGE_TEST_BASE"):
        store.podman("pull", "--quiet", wanted, seconds=BASE_SECONDS)
        return wanted
    release = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder:
        command = [
            "mmdebstrap", "--quiet", "--variant=minbase",
            "--include=python3,python3-venv,python3-pip,ca-certificates",
            "--customize-hook=ln -sf python3 \"$1/usr/bin/python\"",
            "--customize-hook=rm -f \"$1\"/usr/lib/python3*/EXTERNALLY-MANAGED",
            release["VERSION_CODENAME"], f"{folder}/base.tar",
        ]  # fmt: skip
        environment = os.environ | {"TMPDIR": folder}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=BASE_SECONDS)
        assert done.returncode == 0, done.stderr[-3000:]
        store.podman("import", "--change", f"ENV PATH={PATH}", f"{folder}/base.tar", BASE, seconds=BASE_SECONDS)
    return BASE


def make_context(folder: Path, model: Path) -> Path:
    """A copy of the checkout to build from, with a model to bake in, and with what a checkout may have besides."""
    ours = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    for name in filter(None, ours.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    shutil.copytree(model, folder / "models" / "small")
    (folder / "model" / "__pycache__").mkdir(exist_ok=True)
    for place in (folder, folder / "tests", folder / "deploy", folder / "model" / "__pycache__"):
        (place / DECOY).write_bytes(b"not for the image")
    return folder


def build(store: Store, context: Path, base: str, name: str, *arguments: str) -> None:
    """Build the Dockerfile of a context as it stands there; steps that were built before are not built again."""
    settings = pip_settings()
    conf = store.folder / "pip.conf"
    conf.write_text(settings.text)
    mounts = [word for path in settings.paths for word in ("--volume", f"{path}:{path}:ro")]
    given = [word for argument in (f"BASE={base}", *arguments) for word in ("--build-arg", argument)]
    store.buildah(
        "build", "--format", "docker", "--isolation", "chroot", "--network", "host", "--pull-never", "--layers",
        "--secret", f"id=pip.conf,src={conf}", *mounts, *given, "--tag", name, str(context),
        seconds=BUILD_SECONDS,
    )  # fmt: skip

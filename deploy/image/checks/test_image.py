"""What the image promises, on a real build of it, without a daemon: `make image-test`.

The base is Debian with Python, made on the spot; the image is built from a copy of the checkout, and run read-only,
as a user that nobody knows, without capabilities, and with a memory limit.
"""

import secrets
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.load.shutdown import Shutdown, shutdown
from deploy.image.checks.answers import check_answer
from deploy.image.checks.build import BAKED, DECOY, build
from deploy.image.checks.container import MEMORY, STRICT, Container, free_port, running
from deploy.image.checks.layers import layers_of, table
from deploy.image.checks.store import MOST_SECONDS, Store

pytestmark = pytest.mark.timeout(MOST_SECONDS)

MOST_BYTES = 1_500_000_000
MOST_BYTES_OF_PACKAGE = 5_000_000
GIBIBYTE = 1 << 30
COMPOSE = "podman-compose==1.6.0"
COMPILERS = ("cc", "gcc", "g++", "c++", "clang", "ld", "as", "make")
NOT_WANTED = ("pip", "setuptools", "wheel", "pytest", "hypothesis", "mypy", "ruff", "transformers", "schemathesis")


@pytest.fixture(scope="session")
def root(store: Store, image: str) -> Path:
    """The image's files, mounted to be looked at."""
    return Path(store.podman("image", "mount", image).strip())


@pytest.fixture(scope="module")
def strict(store: Store, image: str, model: Path) -> Iterator[Container]:
    """The image as a cluster would run it."""
    with running(store, image, *STRICT, "--volume", f"{model}:/model:ro") as container:
        container.wait_until_ready()
        yield container


def install(requirement: str, folder: Path) -> None:
    """A tool that is no part of the environment of the other tests."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), requirement]
    subprocess.run(command, check=True, timeout=180)


def test_the_image_is_small_and_a_new_version_of_the_service_is_a_small_layer(
    store: Store, image: str, capsys: pytest.CaptureFixture[str]
) -> None:
    layers = layers_of(store, image)
    with capsys.disabled():
        print(f"\n{table(layers)}")
    assert sum(one.nbytes for one in layers) < MOST_BYTES
    (ours,) = (one.nbytes for one in layers if one.name == "Headwater")
    assert 100_000 < ours < MOST_BYTES_OF_PACKAGE


def test_the_image_says_how_it_is_run_and_what_it_is(store: Store, image: str, base: str) -> None:
    config = store.config_of(image)
    assert config["Entrypoint"] == ["headwater"]
    assert config["Cmd"] == ["serve"]
    assert config["User"] == "10001:10001"
    assert config["StopSignal"] in ("SIGTERM", "15")
    assert list(config["ExposedPorts"]) == ["8000/tcp"]
    assert config["Healthcheck"]["Test"] == ["CMD", "python", "-I", "/opt/headwater/bin/healthcheck.py"]
    labels = {name.removeprefix("org.opencontainers.image."): value for name, value in config["Labels"].items()}
    assert labels["title"] == "headwater"
    assert labels["version"] == "0.1.0"
    assert labels["base.name"] == base
    assert {"description", "revision", "created"} <= labels.keys()


def test_only_what_runs_is_inside(root: Path) -> None:
    packages = next(root.glob("opt/headwater/lib/python3*/site-packages"))
    assert (packages / "torch").is_dir()
    assert not [name for name in NOT_WANTED if list(packages.glob(f"{name}-*")) or (packages / name).exists()]
    inside = [path for path in root.glob("opt/headwater/**/*") if path.is_file()]
    assert not [path for path in inside if path.suffix in (".a", ".h", ".hpp", ".pxd")]
    assert not list(root.glob("opt/headwater/**/tests"))
    programs = {path.name for path in root.glob("opt/headwater/bin/*")}
    assert {"headwater", "python", "healthcheck.py"} <= programs
    assert not [name for name in programs if "pip" in name or "pytest" in name]
    folders = [root / path.strip("/") for path in ("usr/bin", "usr/local/bin", "bin")]
    assert not [name for name in COMPILERS for folder in folders if (folder / name).exists()]
    assert not list(root.rglob(DECOY)), "what .dockerignore should leave out"
    assert not (root / "build").exists()
    assert [path.name for path in (root / "model").iterdir()] == ["README"]


def test_any_user_can_read_all_of_it_and_write_nothing(root: Path) -> None:
    modes = [(path, path.lstat().st_mode) for place in ("opt", "model") for path in (root / place).rglob("*")]
    assert len(modes) > 1000
    for path, mode in modes:
        if stat.S_ISLNK(mode):
            continue
        runs = stat.S_ISDIR(mode) or path.parent == root / "opt" / "headwater" / "bin"
        wanted = 0o555 if runs else 0o444
        assert mode & wanted == wanted, f"{path}: {stat.filemode(mode)}"
        assert not mode & (stat.S_IWOTH | stat.S_ISUID | stat.S_ISGID), f"{path}: {stat.filemode(mode)}"


def test_what_was_compiled_is_up_to_date(root: Path) -> None:
    """A read-only container could not keep what it compiles, and would do it again at each start."""
    packages = next(root.glob("opt/headwater/lib/python3*/site-packages"))
    for source in ("service/cli.py", "torch/__init__.py", "fastapi/__init__.py"):
        (compiled,) = (packages / source).parent.glob(f"__pycache__/{Path(source).stem}.cpython-*.pyc")
        stamp = int.from_bytes(compiled.read_bytes()[8:12], "little")
        assert stamp == int((packages / source).stat().st_mtime), source


def test_the_first_process_is_the_service_itself_and_has_no_privilege(strict: Container) -> None:
    arguments = Path(f"/proc/{strict.pid}/cmdline").read_bytes().split(b"\0")[:-1]
    assert arguments[0].endswith(b"python"), arguments
    assert arguments[1:] == [b"/opt/headwater/bin/headwater", b"serve"]
    status = strict.status()
    assert status["NSpid"].split()[-1] == "1"
    assert set(status["Uid"].split()) == set(status["Gid"].split()) == {str(strict.user)}
    assert [int(status[name], 16) for name in ("CapEff", "CapPrm", "CapBnd")] == [0, 0, 0]
    assert status["NoNewPrivs"] == "1"
    tried = strict.run(
        "sh", "-c", "touch /opt/headwater/x /model/x /x /var/tmp/x; touch /tmp/x && rm /tmp/x && echo yes"
    )
    assert tried.stderr.count("Read-only file system") == 4, tried.stderr
    assert tried.stdout.split() == ["yes"]


def test_it_answers_as_the_same_model_outside_of_a_container(strict: Container, expected: dict[str, Any]) -> None:
    with strict.client() as client:
        check_answer(client, expected)
        assert client.get("/docs").status_code == 200
    # torch makes a directory for compiled code when it is imported, which stays empty here
    assert strict.run("find", "/tmp", "-type", "f").stdout == "", "a model in a directory needs no place to write"


def test_its_limits_are_those_of_the_memory_that_it_may_use(strict: Container) -> None:
    assert MEMORY == "2g"
    with strict.client() as client:
        lines = client.get("/metrics").text.splitlines()
    (value,) = (line.split()[1] for line in lines if line.startswith("headwater_max_admitted_bytes "))
    assert 0 < float(value) < 2 * GIBIBYTE


def test_the_health_check_tells_a_service_that_lives_from_one_that_does_not(strict: Container) -> None:
    assert strict.store.tried("podman", "healthcheck", "run", strict.name).returncode == 0
    well = strict.run("python", "-I", "/opt/headwater/bin/healthcheck.py")
    assert (well.returncode, well.stdout) == (0, "/livez: 200\n")
    elsewhere = ["env", "HEADWATER_PORT=1", "python", "-I", "/opt/headwater/bin/healthcheck.py"]
    assert strict.run(*elsewhere).returncode == 1


def test_it_writes_nothing_but_below_tmp(store: Store, image: str, model: Path, expected: dict[str, Any]) -> None:
    """Seen where it could write: the root is not read-only here, and the user is root."""
    with running(store, image, "--volume", f"{model}:/model:ro", user=0) as container:
        container.wait_until_ready()
        with container.client() as client:
            check_answer(client, expected)
        changed = [line.split(maxsplit=1) for line in store.podman("diff", container.name).splitlines()]
        assert store.podman("stop", "--time", "30", container.name)
        assert store.podman("wait", container.name).strip() == "0"
    made_by_podman = ("/etc", "/run", "/dev", "/proc", "/sys")
    written = [path for _, path in changed if path != "/tmp" and not path.startswith(("/tmp/", *made_by_podman))]
    assert not written


def test_sigterm_under_load_loses_nobody_who_was_admitted(
    strict: Container, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = shutdown(strict, Shutdown(seconds=5.0))  # type: ignore[arg-type]
    with capsys.disabled():
        print(f"\n{outcome.markdown()}")
    assert not outcome.failed, f"\n{outcome.markdown()}\n{strict.logs()[-2000:]}"


def test_without_a_model_it_ends_at_once_with_one_line_that_says_so(store: Store, image: str) -> None:
    with running(store, image, *STRICT) as container:
        assert container.wait_until_it_ended() == 2
        assert container.logs().splitlines()[-1] == "headwater: /model: there is no config.json in it"


def test_with_a_model_that_it_may_not_read_it_ends_with_one_line_that_says_so(
    store: Store, image: str, model: Path, tmp_path: Path
) -> None:
    private = tmp_path / "private"
    shutil.copytree(model, private)
    (private / "model.safetensors").chmod(0o600)
    with running(store, image, *STRICT, "--volume", f"{private}:/model:ro") as container:
        assert container.wait_until_it_ended() == 2
        last = container.logs().splitlines()[-1]
    assert last.startswith("headwater: /model/model.safetensors: ")
    assert "Permission denied" in last


def test_a_model_that_is_baked_in_is_served_without_any_network(
    store: Store, context: Path, base: str, image: str
) -> None:
    build(store, context, base, BAKED, "MODEL=models/small", "VERSION=9.9.9", "REVISION=abc", "CREATED=2026-01-01")
    labels = store.config_of(BAKED)["Labels"]
    assert labels["org.opencontainers.image.version"] == "9.9.9"
    assert labels["org.opencontainers.image.revision"] == "abc"
    look = "from urllib.request import urlopen; print(urlopen('http://127.0.0.1:8000/readyz', timeout=5).status)"
    default = {"HEADWATER_HOST": "0.0.0.0", "HEADWATER_PORT": "8000"}
    with running(store, BAKED, *STRICT, network="none", **default) as container:
        deadline = time.monotonic() + 60
        while (done := container.run("python", "-I", "-c", look)).stdout != "200\n":
            assert time.monotonic() < deadline, f"{done.stderr}\n{container.logs()[-2000:]}"
        assert container.run("python", "-I", "/opt/headwater/bin/healthcheck.py").returncode == 0


def test_compose_starts_the_service_as_it_is_written_and_stops_it_properly(
    store: Store, context: Path, image: str, model: Path, expected: dict[str, Any], tmp_path: Path
) -> None:
    """Prometheus and Grafana are other people's images, and not here."""
    install(COMPOSE, tmp_path)
    port, project = free_port(), f"test-{secrets.token_hex(4)}"
    variables = {
        "PYTHONPATH": str(tmp_path),
        "HEADWATER_IMAGE": image,
        "HEADWATER_MODEL_DIR": str(model),
        "HEADWATER_NAME": "small",
        "HEADWATER_PORT": str(port),
    }
    compose = (sys.executable, "-m", "podman_compose", "--project-name", project)
    name = f"{project}_headwater_1"
    try:
        up = store.tried(*compose, "up", "--detach", "--no-build", "headwater", cwd=context, **variables)
        assert up.returncode == 0, up.stderr[-3000:]
        container = Container(store, name, port, 10001)
        container.wait_until_ready()
        assert container.status()["Uid"].split()[0] == "10001"
        assert int(container.status()["CapEff"], 16) == 0
        assert "Read-only file system" in container.run("touch", "/x").stderr
        with container.client() as client:
            check_answer(client, expected)
            assert client.get("/model").json()["name"] == "small"
        store.podman("stop", "--time", "30", name)
        assert container.poll() == 0, container.logs()[-2000:]
    finally:
        store.tried(*compose, "down", "--timeout", "1", cwd=context, **variables)

"""What the Dockerfile and compose.yaml promise, as far as their text tells; `make image-test` builds and runs it."""

import http.server
import json
import os
import re
import runpy
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.image.checks.machine import pip_settings
from deploy.image.prune import prune
from deploy.image.requirements import requirements
from service.settings import Settings

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
HEALTHCHECK = ROOT / "deploy" / "image" / "healthcheck.py"
NOT_A_SETTING = "HEADWATER_CACHE_DIR"  # read before there are settings, by every command


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions, with lines that go on joined, in their order."""
    lines = [line for line in DOCKERFILE.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in joined.splitlines())]


def last_stage() -> list[tuple[str, str]]:
    whole = instructions()
    begins = max(place for place, (name, _) in enumerate(whole) if name == "FROM")
    return whole[begins:]


def only(name: str) -> str:
    """The argument of the one instruction of that name in the last stage."""
    (found,) = (rest for one, rest in last_stage() if one == name)
    return found


def variables() -> dict[str, str]:
    return dict(word.split("=", 1) for word in only("ENV").split())


def defaults() -> dict[str, str]:
    """What every ARG is without an argument; those that are declared again without a value are left out."""
    found = [rest.split("=", 1) for name, rest in instructions() if name == "ARG" and "=" in rest]
    return dict(found)


def test_the_service_is_the_first_process_so_that_sigterm_reaches_it() -> None:
    assert json.loads(only("ENTRYPOINT")) == ["headwater"]
    assert json.loads(only("CMD")) == ["serve"]
    assert only("STOPSIGNAL") == "SIGTERM"


def test_the_image_runs_as_a_number_that_is_not_root() -> None:
    user, group = only("USER").split(":")
    assert int(user) > 0
    assert int(group) > 0


def test_the_health_check_asks_without_a_shell_and_without_another_program() -> None:
    options, _, command = only("HEALTHCHECK").partition("CMD ")
    assert json.loads(command) == ["python", "-I", "/opt/headwater/bin/healthcheck.py"]
    assert {"--interval", "--timeout", "--start-period", "--retries"} == set(re.findall(r"--[a-z-]+", options))


def test_every_variable_of_the_service_is_one_of_its_settings() -> None:
    ours = {name for name in variables() if name.startswith("HEADWATER_")}
    assert ours - {NOT_A_SETTING} <= {f"HEADWATER_{name.upper()}" for name in Settings.model_fields}
    assert NOT_A_SETTING in ours
    in_compose = COMPOSE["services"]["headwater"]["environment"]
    assert in_compose.keys() <= {f"HEADWATER_{name.upper()}" for name in Settings.model_fields}


def test_the_variables_are_settings_that_the_service_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (variables() | COMPOSE["services"]["headwater"]["environment"]).items():
        if name.startswith("HEADWATER_"):
            monkeypatch.setenv(name, value)
    settings = Settings()
    assert (settings.host, settings.model, settings.port) == ("0.0.0.0", "/model", int(only("EXPOSE")))


def test_whatever_may_be_written_is_below_tmp_and_nothing_is_fetched() -> None:
    found = variables()
    for name in ("HOME", "XDG_CACHE_HOME", "HEADWATER_CACHE_DIR"):
        assert Path(found[name]).is_relative_to("/tmp"), name
    assert found["HF_HUB_OFFLINE"] == "1"


def test_base_and_source_of_torch_are_arguments_and_no_registry_is_named() -> None:
    bases = [rest for name, rest in instructions() if name == "FROM"]
    assert len(bases) == 4
    stages = {base.split()[-1] for base in bases if " AS " in base}
    assert all(base.split()[0] in {"${BASE}", *stages} for base in bases)
    assert defaults()["BASE"] == "python:3.11-slim"
    assert defaults()["PIP_ARGS"] == ""
    assert defaults()["TORCH_BUILD"] == "cpu"
    for name in ("Dockerfile", "compose.yaml", ".dockerignore"):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert not re.search(r"https?://|docker\.io|quay\.io|ghcr\.io|\w+\.(org|com|dev)/", text), name


def test_an_image_has_a_tag_or_none_but_no_registry() -> None:
    for service in COMPOSE["services"].values():
        found = re.fullmatch(r"\$\{[A-Z]+_IMAGE:-(?P<name>[a-z/]+):(?P<tag>[\w.]+)\}", service["image"])
        assert found is not None, service["image"]
        assert found["name"].count("/") <= 1


def test_the_version_on_the_label_is_that_of_the_package() -> None:
    project = tomllib.loads(PYPROJECT)["project"]
    assert defaults()["VERSION"] == project["version"]
    assert f'org.opencontainers.image.description="{project["description"]}"' in only("LABEL")


def test_every_installation_takes_the_versions_of_the_constraints_file() -> None:
    installs = [rest for name, rest in instructions() if name == "RUN" and "pip" in rest]
    assert len(installs) == 3
    for one in installs:
        assert "-c constraints.txt" in one or "--no-deps" in one
        assert "${PIP_ARGS}" in one
        assert "--mount=type=secret,id=pip.conf,target=/etc/pip.conf" in one


def test_nothing_is_copied_out_of_the_context_but_what_is_needed() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert lines[0] == "*", "what is not named stays out"
    named = {line.removeprefix("!") for line in lines if line.startswith("!")}
    sources: set[str] = set()
    for name, rest in instructions():
        if name == "COPY" and "--from=" not in rest:
            words = [word for word in rest.split() if not word.startswith("--")]
            sources |= {word.rstrip("/").replace("${MODEL}", defaults()["MODEL"]) for word in words[:-1]}
    assert sources == {
        "constraints.txt",
        "pyproject.toml",
        "README.md",
        "model",
        "service",
        "viewer",
        "deploy/image/prune.py",
        "deploy/image/requirements.py",
        "deploy/image/healthcheck.py",
        "deploy/image/no-model",
    }
    assert all((ROOT / source).exists() for source in sources)
    assert {"/".join(source.split("/")[:2]) for source in sources} | {"deploy", "models"} == named


def test_the_requirements_are_those_of_the_package_and_of_the_extra() -> None:
    project = tomllib.loads(PYPROJECT)["project"]
    found = requirements(PYPROJECT, ["otel"])
    assert found == project["dependencies"] + project["optional-dependencies"]["otel"]
    with pytest.raises(KeyError):
        requirements(PYPROJECT, ["nothing"])


def test_pruning_takes_headers_static_libraries_and_tests_and_leaves_the_rest(tmp_path: Path) -> None:
    packages = tmp_path / "opt" / "lib" / "python3.11" / "site-packages"
    gone = [
        "torch/include/a.h",
        "torch/test/a.py",
        "torch/share/cmake/a.cmake",
        "torch/bin/test_api",
        "torch/lib/libx.a",
        "torch/lib/libjitbackend_test.so",
        "numpy/core/tests/test_a.py",
        "numpy/core/a.pxd",
        "setuptools/a.py",
        "setuptools-84.2.1.dist-info/METADATA",
        "distutils-precedence.pth",
    ]
    stays = [
        "torch/__init__.py",
        "torch/bin/torch_shm_manager",
        "torch/lib/libtorch_cpu.so",
        "torch/testing/a.py",
        "tests_of_nothing/a.py",
    ]
    for name in [*gone, *stays]:
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).write_bytes(b"0123456789")
    assert prune(tmp_path) == 10 * len(gone)
    assert sorted(str(path.relative_to(packages)) for path in packages.rglob("*") if path.is_file()) == sorted(stays)
    assert prune(tmp_path) == 0


@contextmanager
def answering(status: int) -> Iterator[int]:
    """A server on a port of its own that has this answer to all."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/livez" else 404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1), (404, 1)])
def test_the_health_check_says_what_livez_says(status: int, code: int) -> None:
    with answering(status) as port:
        done = health(HEADWATER_HOST="0.0.0.0", HEADWATER_PORT=str(port))
    assert (done.returncode, done.stdout) == (code, f"/livez: {status}\n")


def test_the_health_check_says_no_where_nobody_answers() -> None:
    with answering(200) as port:
        pass
    done = health(HEADWATER_HOST="127.0.0.1", HEADWATER_PORT=str(port))
    assert done.returncode == 1
    assert done.stdout.startswith("/livez: ConnectionRefusedError")


def health(**of_the_service: str) -> "subprocess.CompletedProcess[str]":
    others = {name: value for name, value in os.environ.items() if not name.startswith("HEADWATER_")}
    return subprocess.run(
        [sys.executable, "-I", str(HEALTHCHECK)],
        env=others | of_the_service, capture_output=True, text=True, timeout=30,
    )  # fmt: skip


def test_the_health_check_can_be_imported_without_asking() -> None:
    assert runpy.run_path(str(HEALTHCHECK))["LOOPBACK"]["0.0.0.0"] == "127.0.0.1"


def test_pip_in_a_build_looks_where_pip_looks_here(tmp_path: Path) -> None:
    wheels, index = tmp_path / "wheels", tmp_path / "index" / "simple"
    wheels.mkdir()
    index.mkdir(parents=True)
    listed = "\n".join(
        [
            f":env:.find-links='{wheels}'",
            "global.find-links='/elsewhere'",
            "global.constraint='/etc/constraints.txt'",
            f"global.extra-index-url='\\nfile://{index}\\nhttps://packages.invalid/simple'",
            "install.index-url='https://another.invalid'",
            "global.timeout-of-nothing='5'",
        ]
    )
    found = pip_settings(listed)
    assert found.text == (
        f"[global]\nextra-index-url = file://{index} https://packages.invalid/simple\nfind-links = {wheels}\n"
    )
    assert found.paths == (index.parent, wheels)


def seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+)s", text)
    assert found is not None, text
    return float(found[1])


def test_compose_waits_longer_for_the_end_than_the_service_drains() -> None:
    service = COMPOSE["services"]["headwater"]
    given = {name.removeprefix("HEADWATER_").lower(): value for name, value in service["environment"].items()}
    settings = Settings(**given)
    assert seconds(service["stop_grace_period"]) > settings.drain_delay_seconds + settings.drain_seconds


@pytest.mark.parametrize("name", ["headwater", "prometheus", "grafana"])
def test_compose_runs_all_of_it_without_privileges_and_for_this_machine_alone(name: str) -> None:
    service = COMPOSE["services"][name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["tmpfs"] == ["/tmp"]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert "privileged" not in service
    assert all(volume.endswith(":ro") for volume in service["volumes"] if volume.startswith((".", "$")))


def test_compose_has_the_health_check_of_the_image() -> None:
    check: dict[str, Any] = COMPOSE["services"]["headwater"]["healthcheck"]
    options, _, command = only("HEALTHCHECK").partition("CMD ")
    assert check["test"] == ["CMD", *json.loads(command)]
    told = dict(re.findall(r"--([a-z-]+)=(\S+)", options))
    assert {name.replace("-", "_"): value for name, value in told.items()} == {
        name: str(value) for name, value in check.items() if name != "test"
    }


def test_prometheus_scrapes_the_service_and_grafana_reads_prometheus_where_compose_has_them() -> None:
    prometheus = yaml.safe_load((ROOT / "deploy/compose/prometheus.yml").read_text())
    (ours,) = (job for job in prometheus["scrape_configs"] if job["job_name"] == "headwater")
    assert ours["static_configs"] == [{"targets": [f"headwater:{only('EXPOSE')}"]}]
    mounted = mounts("prometheus")
    assert "/etc/prometheus/prometheus.yml" in mounted
    assert all(str(Path(place).parent) in mounted for place in prometheus["rule_files"])
    (source,) = yaml.safe_load((ROOT / "deploy/compose/grafana/datasources/prometheus.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((ROOT / "deploy/compose/grafana/dashboards/headwater.yml").read_text())["providers"]
    assert provider["options"]["path"] in mounts("grafana")


def test_all_that_compose_mounts_is_there_and_grafana_gets_a_dashboard_that_finds_its_source() -> None:
    sources = [volume for service in COMPOSE["services"].values() for volume in service.get("volumes", ())]
    paths = {volume.split(":")[0] for volume in sources if volume.startswith("./")}
    assert len(paths) == 5
    assert all((ROOT / path).exists() for path in paths)
    assert {volume.split(":")[0] for volume in sources if volume[0] not in "./$"} == COMPOSE["volumes"].keys()
    (source,) = yaml.safe_load((ROOT / "deploy/compose/grafana/datasources/prometheus.yml").read_text())["datasources"]
    (folder,) = (path for path in paths if f"{path}:/etc/grafana/dashboards:ro" in sources)
    dashboards = [json.loads(path.read_text(encoding="utf-8")) for path in (ROOT / folder).glob("*.json")]
    assert [one["title"] for one in dashboards] == ["Headwater"]
    for one in dashboards:
        (chosen,) = (each for each in one["templating"]["list"] if each["type"] == "datasource")
        assert chosen["query"] == source["type"]
        assert source["isDefault"] is True, "what the variable stands for until somebody chooses"


def mounts(service: str) -> list[str]:
    """Where the repository's files are mounted in a service."""
    volumes = COMPOSE["services"][service]["volumes"]
    return [volume.split(":")[1] for volume in volumes if volume.startswith("./")]


def test_the_port_that_compose_opens_is_the_one_that_the_image_listens_on() -> None:
    (port,) = COMPOSE["services"]["headwater"]["ports"]
    assert port.rpartition(":")[2] == variables()["HEADWATER_PORT"] == only("EXPOSE")

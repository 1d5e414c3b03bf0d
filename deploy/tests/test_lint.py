"""hadolint finds nothing; checkov nothing but what deploy/checkov.yaml lists with a reason, and all of that."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.tests.choices import ROOT, TOOLS, Choice
from deploy.tests.manifests import Manifests
from deploy.tests.test_schemas import distinct

SKIPS = ROOT / "deploy" / "checkov.yaml"


@pytest.fixture(scope="module")
def found(everything: dict[Choice, Manifests], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """checkov's report, with nothing left out."""
    folder = tmp_path_factory.mktemp("checkov")
    (folder / "all.yaml").write_text(yaml.safe_dump_all(distinct(everything)))
    return checkov(folder)


def checkov(folder: Path, *options: str) -> dict[str, Any]:
    # by its interpreter: its first line names that one as it stands, which no path with a space survives
    command = [
        str(TOOLS / "python"),
        str(TOOLS / "checkov"),
        "--directory",
        str(folder),
        "--framework",
        "kubernetes",
        "--skip-download",
    ]
    done = subprocess.run([*command, "--output", "json", *options], capture_output=True, text=True, timeout=120)
    assert done.returncode in (0, 1), done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_nothing_is_found_but_what_is_skipped_with_a_reason(found: dict[str, Any]) -> None:
    results = found["results"]
    assert not results["parsing_errors"]
    assert found["summary"]["passed"] > 500
    skipped = set(yaml.safe_load(SKIPS.read_text())["skip-check"])
    failed = {f"{one['check_id']} {one['check_name']}: {one['resource']}" for one in results["failed_checks"]}
    assert not sorted(one for one in failed if one.split()[0] not in skipped)
    assert skipped == {one.split()[0] for one in failed}, "a skip that skips nothing hides the next fault"


def test_every_skip_has_its_reason() -> None:
    lines = [line for line in SKIPS.read_text().splitlines() if line.strip().startswith("-")]
    assert len(lines) == len(yaml.safe_load(SKIPS.read_text())["skip-check"])
    for line in lines:
        assert re.fullmatch(r"  - CKV2?_K8S_\d+ # \S.{20,}", line), line


def hadolint(dockerfile: Path) -> subprocess.CompletedProcess[str]:
    command = [str(TOOLS / "hadolint"), "--failure-threshold", "style", "--no-color", str(dockerfile)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    done = hadolint(ROOT / "Dockerfile")
    assert done.returncode == 0, done.stdout + done.stderr


def test_hadolint_would_find_something(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM scratch\nRUN cd /tmp\n")
    done = hadolint(tmp_path / "Dockerfile")
    assert done.returncode == 1, done.stderr
    assert "DL3003" in done.stdout

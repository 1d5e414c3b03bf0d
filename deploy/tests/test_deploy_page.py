"""docs/deploy.md: its manifests are taken by the API, change what they say, and its numbers are the service's."""

import os
import re
from pathlib import Path

import pytest
import yaml

from deploy.tests.choices import KUBERNETES, ROOT, Choice, kustomize
from deploy.tests.manifests import Manifests
from deploy.tests.test_schemas import VERSIONS, validate
from deploy.tests.test_settings import settings_of

PAGE = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")


def example(name: str) -> str:
    """A block of the page."""
    found = re.search(rf"<!-- example: {name} -->\n```\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None, name
    return found[1]


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Manifests:
    """The cpu overlay with a claim, and the patches that the page shows."""
    folder = tmp_path_factory.mktemp("patched").resolve()
    whole = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": "team-a",
        "resources": [os.path.relpath(KUBERNETES / "overlays" / "cpu", folder)],
        "components": [os.path.relpath(KUBERNETES / "components" / "model-pvc", folder)],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(whole) + example("patches"))
    return Manifests(kustomize(folder))


def test_the_patches_open_two_ways_out_and_no_more(patched: Manifests) -> None:
    rules = patched.the("NetworkPolicy")["spec"]["egress"]
    ports = [[port["port"] for port in rule["ports"]] for rule in rules]
    assert ports == [[4318], [53, 53]]
    assert all(rule["to"] for rule in rules), "an empty list would be everywhere"
    variables = {one["name"]: one.get("value") for one in patched.container["env"]}
    assert variables["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector.tracing:4318"
    assert "HEADWATER_THREADS" in variables


def test_the_patches_take_a_directory_of_the_volume(patched: Manifests) -> None:
    (mount,) = (one for one in patched.container["volumeMounts"] if one["mountPath"] == "/model")
    assert mount == {"name": "model", "mountPath": "/model", "readOnly": True, "subPath": "minilm-2"}
    assert {one["mountPath"] for one in patched.container["volumeMounts"]} == {"/model", "/tmp"}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_api_takes_what_the_page_shows(version: str, patched: Manifests, tmp_path: Path) -> None:
    manifests = [*patched.all, yaml.safe_load(example("ingress"))]
    done = validate(manifests, version, tmp_path / "page.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_ingress_leads_to_the_service(patched: Manifests) -> None:
    ingress = yaml.safe_load(example("ingress"))
    (path,) = ingress["spec"]["rules"][0]["http"]["paths"]
    service = patched.the("Service")
    assert path["backend"]["service"]["name"] == service["metadata"]["name"]
    assert path["backend"]["service"]["port"]["name"] in [port["name"] for port in service["spec"]["ports"]]
    assert ingress["metadata"]["namespace"] == service["metadata"]["namespace"]
    assert ingress["spec"]["tls"][0]["hosts"] == [ingress["spec"]["rules"][0]["host"]]


def test_what_a_proxy_must_allow_is_what_the_service_allows(
    everything: dict[Choice, Manifests], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(everything[Choice("cpu")], monkeypatch)
    assert f"| bodies of {settings.max_body_bytes >> 20} MiB | `HEADWATER_MAX_BODY_BYTES`" in PAGE
    assert f"| answers after {settings.deadline_seconds:g} s | its read timeout" in PAGE


def test_links_to_other_pages_lead_to_headings_that_are_there() -> None:
    for page in ("deploy.md", "kubernetes.md"):
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        for name, anchor in re.findall(r"\]\(([\w-]+\.md)?(#[\w-]+)?\)", text):
            target = ROOT / "docs" / (name or page)
            assert target.exists(), f"{page}: {name}"
            headings = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = {"#" + re.sub(r"[^\w\- ]", "", one).strip().lower().replace(" ", "-") for one in headings}
            assert not anchor or anchor in anchors, f"{page}: {name}{anchor}"

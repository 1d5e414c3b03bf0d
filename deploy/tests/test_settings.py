"""What the pod sets is what the service knows, and means what it should there."""

import re
from pathlib import PurePosixPath

import pytest

from deploy.tests.choices import ROOT, Choice
from deploy.tests.manifests import Manifests, containers, quantity
from model.checkpoint.packages import cache_directory
from service.cli import _parser
from service.settings import Settings

PREFIX = "HEADWATER_"
KNOWN = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
IN_IMAGE = PurePosixPath("/model")
NOT_SETTINGS = {"HEADWATER_CACHE_DIR"}  # of the model's part, which knows no settings


def settings_of(built: Manifests, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The settings as the pod's process has them. Raises ValidationError."""
    with monkeypatch.context() as patched:
        for name in KNOWN:
            patched.delenv(name, raising=False)
        for name, value in built.settings.items():
            patched.setenv(name, value)
        return Settings()


def test_every_key_of_the_config_map_is_a_setting_and_its_value_one_of_it(
    built: Manifests, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(built.settings) <= KNOWN
    settings = settings_of(built, monkeypatch)
    for name, text in built.settings.items():
        assert str(getattr(settings, name.removeprefix(PREFIX).lower())) in (text, f"{text}.0"), name


def test_a_setting_that_is_wrong_would_be_noticed(built: Manifests, monkeypatch: pytest.MonkeyPatch) -> None:
    built = Manifests([*built.all])
    monkeypatch.setitem(built.settings, "HEADWATER_PORT", "tcp://10.0.0.1:80")
    with pytest.raises(ValueError, match="port"):
        settings_of(built, monkeypatch)


def test_variables_of_services_cannot_be_taken_for_settings(built: Manifests) -> None:
    """Kubernetes sets HEADWATER_PORT=tcp://... in every pod beside a Service of that name, unless told otherwise."""
    assert f"{built.the('Service')['metadata']['name'].upper()}_PORT" in KNOWN
    assert built.pod["enableServiceLinks"] is False


def test_variables_of_the_container_are_known_and_none_is_set_twice(built: Manifests) -> None:
    names = [one["name"] for one in built.container["env"]]
    assert {name for name in names if name.startswith(PREFIX)} <= KNOWN | NOT_SETTINGS
    assert len(set(names)) == len(names)
    assert not set(names) & set(built.settings)


def test_the_cache_is_where_the_pod_says(built: Manifests, monkeypatch: pytest.MonkeyPatch) -> None:
    (wanted,) = [one["value"] for one in built.container["env"] if one["name"] in NOT_SETTINGS]
    monkeypatch.setenv("HEADWATER_CACHE_DIR", wanted)
    assert str(cache_directory()) == wanted


def test_the_model_takes_as_many_threads_as_the_pod_asks_for_cores(built: Manifests) -> None:
    (threads,) = [one for one in built.container["env"] if one["name"] == "HEADWATER_THREADS"]
    field = threads["valueFrom"]["resourceFieldRef"]
    assert field == {"containerName": built.container["name"], "resource": "requests.cpu", "divisor": "1"}
    resources = built.container["resources"]
    asked, limit = (quantity(resources[kind]["cpu"]) for kind in ("requests", "limits"))
    assert asked == int(asked) >= 1
    assert limit >= asked + 1, "the event loop needs time beside the model's threads"


def test_arguments_are_known_to_the_command(built: Manifests) -> None:
    assert "command" not in built.container, "the image's entry point is used"
    options = _parser().parse_args(built.container["args"])
    assert options.command.__name__ == "_serve"


def test_files_that_settings_name_lie_in_a_volume(built: Manifests) -> None:
    mounts = {mount["mountPath"]: mount for mount in built.container["volumeMounts"]}
    model = PurePosixPath(built.settings["HEADWATER_MODEL"])
    assert model == IN_IMAGE
    if str(model) in mounts:
        assert mounts[str(model)]["readOnly"] is True
    if keys := built.settings.get("HEADWATER_API_KEYS_FILE"):
        path = PurePosixPath(keys)
        mount = mounts[str(path.parent)]
        (volume,) = [one["secret"] for one in built.pod["volumes"] if one["name"] == mount["name"]]
        assert [item["path"] for item in volume["items"]] == [path.name]
        assert volume["defaultMode"] == 0o440, "the group, which is fsGroup, reads it, and nobody else"


def test_nothing_is_downloaded(built: Manifests) -> None:
    fixed = {one["name"]: one.get("value") for one in built.container["env"]}
    assert fixed["HF_HUB_OFFLINE"] == "1"
    assert built.settings["HEADWATER_MODEL"].startswith("/")
    writable = fixed["HOME"], fixed["HEADWATER_CACHE_DIR"]
    assert all(path == "/tmp" or path.startswith("/tmp/") for path in writable if path)


def test_images_have_a_version_that_is_the_services_own(built: Manifests) -> None:
    version = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    for container in containers(built.pod):
        name, _, tag = container["image"].partition(":")
        assert tag in (version[1], f"{version[1]}-cuda"), container["image"]
        assert re.fullmatch(r"[a-z-]+", name), "a registry is for whoever deploys"


def test_the_image_is_what_the_pod_takes_it_for(everything: dict[Choice, Manifests]) -> None:
    """Its entry point, where a model is baked in, its port, its user."""
    path = ROOT / "Dockerfile"
    if not path.exists():
        pytest.skip("there is no Dockerfile beside these manifests")
    text = path.read_text()
    assert 'ENTRYPOINT ["headwater"]' in text
    assert f"COPY --chmod=755 ${{MODEL}} {IN_IMAGE}\n" in text
    for built in everything.values():
        (port,) = built.container["ports"]
        assert f"EXPOSE {port['containerPort']}\n" in text
        assert f"USER {built.pod['securityContext']['runAsUser']}:" in text

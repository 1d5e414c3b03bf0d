"""What is tried is what there is."""

from deploy.tests.choices import KUBERNETES, MODELS, NAMESPACE, OVERLAYS, Choice, every_choice, kustomize
from deploy.tests.manifests import Manifests


def test_every_overlay_and_every_component_is_tried() -> None:
    assert set(OVERLAYS) == {path.name for path in (KUBERNETES / "overlays").iterdir()}
    tried = {name for choice in every_choice() for name in choice.components}
    assert tried == {path.name for path in (KUBERNETES / "components").iterdir()}
    assert len(set(every_choice())) == 48


def test_the_base_builds_by_itself() -> None:
    kinds = {one["kind"] for one in kustomize(KUBERNETES / "base")}
    assert kinds == {
        "ServiceAccount", "ConfigMap", "Service", "Deployment", "PodDisruptionBudget", "NetworkPolicy",
        "HorizontalPodAutoscaler",
    }  # fmt: skip


def test_each_component_brings_what_it_is_for_and_nothing_is_there_twice(choice: Choice, built: Manifests) -> None:
    chosen = set(choice.components)
    names = [(one["kind"], one["metadata"]["name"]) for one in built.all]
    assert len(set(names)) == len(names)
    assert len(built.of("ServiceMonitor")) == len(built.of("PrometheusRule")) == ("prometheus-operator" in chosen)
    assert len(built.of("ScaledObject")) == ("keda" in chosen)
    assert len(built.of("HorizontalPodAutoscaler")) == ("keda" not in chosen)
    assert len(built.of("PersistentVolumeClaim")) == ("model-pvc" in chosen)
    assert ("initContainers" in built.pod) == ("model-init" in chosen)
    assert ("HEADWATER_API_KEYS_FILE" in built.settings) == ("api-keys" in chosen)
    mounted = [mount["mountPath"] for mount in built.container["volumeMounts"]]
    assert mounted.count(built.settings["HEADWATER_MODEL"]) == bool(chosen & set(MODELS))


def test_everything_is_in_the_namespace_that_was_chosen(built: Manifests) -> None:
    """An overlay with a namespace would keep it from its components, which come later."""
    assert {one["metadata"].get("namespace") for one in built.all} == {NAMESPACE}


def test_the_gpu_overlay_asks_for_a_gpu_and_computes_on_it(choice: Choice, built: Manifests) -> None:
    on_gpu = choice.overlay == "gpu"
    asked = built.container["resources"]["limits"].get("nvidia.com/gpu")
    tolerated = [one["key"] for one in built.pod.get("tolerations", [])]
    assert asked == ("1" if on_gpu else None)
    assert tolerated == (["nvidia.com/gpu"] if on_gpu else [])
    assert built.settings.get("HEADWATER_DEVICE", "cpu") == ("cuda" if on_gpu else "cpu")
    assert built.settings.get("HEADWATER_DTYPE", "float32") == ("bfloat16" if on_gpu else "float32")
    assert built.container["image"].endswith("-cuda") == on_gpu

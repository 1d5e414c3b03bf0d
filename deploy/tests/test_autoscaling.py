"""Both autoscalers follow metrics that the service has, by the same rule, and leave room for what else moves pods."""

import re

import yaml
from prometheus_client.parser import text_string_to_metric_families

from deploy.tests.choices import KUBERNETES, NAMESPACE, Choice, Manifest
from deploy.tests.manifests import Manifests, quantity
from deploy.tools.prometheus_rule import RULES, prometheus_rule
from service.metrics import WATCHED, Metrics

QUEUE, BUSY = "headwater_queue_tokens", "headwater_batch_seconds_per_second"


def exported() -> set[str]:
    """The names of all series of a new app; of those with labels that nothing has set yet, what they will be."""
    text = Metrics().exposition("")[0].decode()
    names = {f"headwater_{name}" for name in WATCHED}
    for family in text_string_to_metric_families(text):
        names |= {sample.name for sample in family.samples}
        if family.type == "histogram":
            names |= {f"{family.name}_{part}" for part in ("sum", "count", "bucket")}
    return names


def queries(built: Manifests) -> list[str]:
    return [one["metadata"]["query"] for scaled in built.of("ScaledObject") for one in scaled["spec"]["triggers"]]


def test_the_autoscaler_follows_tokens_that_wait_and_what_the_adapter_makes_of_metrics(built: Manifests) -> None:
    offered = {rule["name"]["as"] for rule in rules_of_the_adapter()}
    for autoscaler in built.of("HorizontalPodAutoscaler"):
        metrics = [one["pods"] for one in autoscaler["spec"]["metrics"]]
        assert [one["metric"]["name"] for one in metrics] == [QUEUE, BUSY]
        assert {QUEUE, BUSY} == offered
        assert {one["target"]["type"] for one in metrics} == {"AverageValue"}, "a sum by a number"


def rules_of_the_adapter() -> list[Manifest]:
    rules: list[Manifest] = yaml.safe_load((KUBERNETES / "prometheus-adapter.yaml").read_text())["rules"]["custom"]
    return rules


def test_the_adapter_makes_them_of_series_that_are_exported() -> None:
    for rule in rules_of_the_adapter():
        series = rule["seriesQuery"].partition("{")[0]
        assert series in exported()
        assert set(rule["resources"]["overrides"]) == {"namespace", "pod"}
        assert "<<.Series>>{<<.LabelMatchers>>}" in rule["metricsQuery"]
        over_time = "rate(" if series.endswith("_sum") else "avg_over_time("
        assert f"sum({over_time}<<" in rule["metricsQuery"]


def test_keda_asks_for_recorded_sums_in_the_pods_namespace(built: Manifests) -> None:
    recorded = {rule.get("record") for group in prometheus_rule(RULES)["spec"]["groups"] for rule in group["rules"]}
    for query in queries(built):
        named = re.findall(r"[\w:]*headwater[\w:]*", query.replace(f'"{NAMESPACE}"', ""))
        assert len(named) == 2
        assert set(named) <= recorded, "these are the expressions that promtool tests"
        assert query.startswith("sum(")
        assert query.count(f'{{namespace="{NAMESPACE}"}}') == 1
    if built.of("ScaledObject"):
        first, second = queries(built)
        assert "headwater_queue_tokens" in first
        assert "headwater_batch_seconds" in second


def test_keda_has_the_numbers_of_the_autoscaler_that_it_replaces(
    choice: Choice, everything: dict[Choice, Manifests]
) -> None:
    if "keda" not in choice.components:
        return
    without = Choice(choice.overlay, tuple(name for name in choice.components if name != "keda"))
    autoscaler = everything[without].the("HorizontalPodAutoscaler")["spec"]
    scaled = everything[choice].the("ScaledObject")["spec"]
    assert scaled["minReplicaCount"] == autoscaler["minReplicas"]
    assert scaled["maxReplicaCount"] == autoscaler["maxReplicas"]
    assert scaled["advanced"]["horizontalPodAutoscalerConfig"]["behavior"] == autoscaler["behavior"]
    targets = [one["pods"]["target"]["averageValue"] for one in autoscaler["metrics"]]
    assert [trigger["metadata"]["threshold"] for trigger in scaled["triggers"]] == targets
    assert all(str(float(target)) in (target, f"{target}.0") for target in targets), "KEDA reads no 800m"
    assert autoscaler["minReplicas"] <= scaled["fallback"]["replicas"] <= autoscaler["maxReplicas"]


def test_eviction_and_scaling_down_never_take_the_last_pod(built: Manifests) -> None:
    budget = built.the("PodDisruptionBudget")["spec"]
    least = [one["spec"]["minReplicas"] for one in built.of("HorizontalPodAutoscaler")]
    least += [one["spec"]["minReplicaCount"] for one in built.of("ScaledObject")]
    (replicas,) = least
    assert "minAvailable" not in budget, "as many as there are would block the drain of every node"
    assert 1 <= budget["maxUnavailable"] < replicas


def test_scaling_is_quick_up_and_slow_down(built: Manifests) -> None:
    found = [one["spec"]["behavior"] for one in built.of("HorizontalPodAutoscaler")]
    found += [one["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"] for one in built.of("ScaledObject")]
    (behaviour,) = found
    up, down = behaviour["scaleUp"], behaviour["scaleDown"]
    assert up["stabilizationWindowSeconds"] <= 60
    assert down["stabilizationWindowSeconds"] >= 300
    (one_at_a_time,) = down["policies"]
    assert one_at_a_time["type"] == "Pods"
    assert one_at_a_time["value"] == 1
    assert one_at_a_time["periodSeconds"] > built.pod["terminationGracePeriodSeconds"]
    for monitor in built.of("ServiceMonitor"):
        (endpoint,) = monitor["spec"]["endpoints"]
        assert up["stabilizationWindowSeconds"] >= int(endpoint["interval"].removesuffix("s"))


def test_a_quantity_is_a_number() -> None:
    assert [quantity(text) for text in ("500m", "2", "0.5", "4Gi", "1Mi")] == [0.5, 2, 0.5, 4 * 2**30, 2**20]

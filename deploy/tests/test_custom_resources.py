"""The shape of what no schema of Kubernetes knows: keys that exist, of the right types, and all that must be there."""

import re
from collections.abc import Mapping
from typing import Any

import pytest

from deploy.tests.manifests import Manifests

DURATION = re.compile(r"\d+(ms|[smhd])")

# of each object the keys that are used, and what they hold; a key in brackets may be missing
Shape = Mapping[str, Any]
BEHAVIOUR: Shape = {
    "stabilizationWindowSeconds": int,
    "selectPolicy": re.compile("Max|Min|Disabled"),
    "policies": [{"type": re.compile("Pods|Percent"), "value": int, "periodSeconds": int}],
}
SERVICE_MONITOR: Shape = {
    "jobLabel": str,
    "selector": {"matchLabels": dict},
    "endpoints": [
        {
            "port": str,
            "path": re.compile("/.*"),
            "interval": DURATION,
            "scrapeTimeout": DURATION,
            "[authorization]": {"type": re.compile("Bearer"), "credentials": {"name": str, "key": str}},
        }
    ],
}
PROMETHEUS_RULE: Shape = {
    "groups": [
        {
            "name": str,
            "[interval]": DURATION,
            "rules": [
                {
                    "expr": str,
                    "[record]": re.compile(r"[a-zA-Z_:][\w:]*"),
                    "[alert]": str,
                    "[for]": DURATION,
                    "[keep_firing_for]": DURATION,
                    "[labels]": dict,
                    "[annotations]": dict,
                }
            ],
        }
    ],
}
SCALED_OBJECT: Shape = {
    "scaleTargetRef": {"name": str},
    "minReplicaCount": int,
    "maxReplicaCount": int,
    "pollingInterval": int,
    "fallback": {"failureThreshold": int, "replicas": int, "behavior": re.compile("currentReplicasIfHigher")},
    "advanced": {"horizontalPodAutoscalerConfig": {"behavior": {"scaleUp": BEHAVIOUR, "scaleDown": BEHAVIOUR}}},
    "triggers": [
        {
            "type": re.compile("prometheus"),
            "name": str,
            "metricType": re.compile("AverageValue"),
            "metadata": {
                "serverAddress": re.compile(r"http://[\w.-]+:\d+"),
                "query": str,
                "threshold": re.compile(r"\d+(\.\d+)?"),
                "ignoreNullValues": re.compile("true|false"),
            },
        }
    ],
}
SHAPES = {
    "ServiceMonitor": ("monitoring.coreos.com/v1", SERVICE_MONITOR),
    "PrometheusRule": ("monitoring.coreos.com/v1", PROMETHEUS_RULE),
    "ScaledObject": ("keda.sh/v1alpha1", SCALED_OBJECT),
}


def faults(value: Any, shape: Any, where: str = "spec") -> list[str]:
    """Where a value differs from its shape."""
    if isinstance(shape, re.Pattern):
        return [] if isinstance(value, str) and shape.fullmatch(value) else [f"{where}: {value!r}"]
    if isinstance(shape, type):
        return [] if type(value) is shape else [f"{where}: {value!r} is no {shape.__name__}"]
    if isinstance(shape, list):
        if not isinstance(value, list) or not value:
            return [f"{where}: no list with something in it"]
        return [fault for i, one in enumerate(value) for fault in faults(one, shape[0], f"{where}[{i}]")]
    if not isinstance(value, dict):
        return [f"{where}: no object"]
    known = {key.strip("[]"): (key, inner) for key, inner in shape.items()}
    found = [f"{where}.{key} is not known" for key in value if key not in known]
    for key, (written, inner) in known.items():
        if key in value:
            found += faults(value[key], inner, f"{where}.{key}")
        elif written == key:
            found.append(f"{where}.{key} is missing")
    return found


def test_custom_resources_have_their_shape(built: Manifests) -> None:
    for kind, (version, shape) in SHAPES.items():
        for one in built.of(kind):
            assert one["apiVersion"] == version
            assert set(one) == {"apiVersion", "kind", "metadata", "spec"}
            assert faults(one["spec"], shape) == [], kind


def test_every_rule_is_a_recording_or_an_alert(built: Manifests) -> None:
    for one in built.of("PrometheusRule"):
        for group in one["spec"]["groups"]:
            assert all(("record" in rule) != ("alert" in rule) for rule in group["rules"])


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ({"port": 80, "path": "/"}, "80"),
        ({"port": "http"}, "path is missing"),
        ({"port": "http", "path": "metrics"}, "metrics"),
        ({"port": "http", "path": "/", "intervall": "15s"}, "intervall is not known"),
        ([], "no object"),
        ({"port": "http", "path": "/", "ways": []}, "no list"),
    ],
)
def test_a_wrong_shape_would_be_noticed(value: Any, fault: str) -> None:
    shape = {"port": str, "path": re.compile("/.*"), "[ways]": [str]}
    assert fault in " ".join(faults(value, shape))
    assert faults({"port": "http", "path": "/", "ways": ["in"]}, shape) == []

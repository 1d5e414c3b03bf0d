"""The files of deploy/observability, as its tests look at them."""

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
HERE = ROOT / "deploy" / "observability"
RULES = HERE / "rules"


@cache
def rules() -> list[dict[str, Any]]:
    """All recording and alert rules, in the order of their files."""
    return [
        rule
        for path in sorted(RULES.glob("*.yml"))
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
        for rule in group["rules"]
    ]


def alerts() -> dict[str, dict[str, Any]]:
    """The alert rules by name."""
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def recorded() -> dict[str, list[dict[str, Any]]]:
    """The recording rules by the name of what they record; several may record the same with different labels."""
    found: dict[str, list[dict[str, Any]]] = {}
    for rule in rules():
        if "record" in rule:
            found.setdefault(rule["record"], []).append(rule)
    return found


def scenarios() -> list[dict[str, Any]]:
    """The tests of promtool, from all files."""
    return [
        one
        for path in sorted((HERE / "tests").glob("*.yml"))
        for one in yaml.safe_load(path.read_text(encoding="utf-8"))["tests"]
    ]


def dashboard() -> dict[str, Any]:
    """The dashboard of Grafana."""
    found: dict[str, Any] = json.loads((HERE / "dashboards" / "headwater.json").read_text(encoding="utf-8"))
    return found


def dashboard_queries() -> Iterator[tuple[str, str]]:
    """Where each query of the dashboard stands, and the query as Prometheus gets it when all replicas are chosen."""
    found = dashboard()
    for panel in found["panels"]:
        for target in panel.get("targets", ()):
            yield f"panel {panel['title']!r}", _filled_in(target["expr"])
    for annotation in found["annotations"]["list"]:
        yield f"annotation {annotation['name']!r}", _filled_in(annotation["expr"])
    for variable in found["templating"]["list"]:
        if variable["type"] == "query":
            values = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
            assert values is not None, variable
            yield f"variable {variable['name']!r}", f"count by ({values[2]}) ({_filled_in(values[1])})"


def _filled_in(query: str) -> str:
    for variable, value in {"$__rate_interval": "1m", "$__range": "3h", "$job": ".*", "$instance": ".*"}.items():
        query = query.replace(variable, value)
    return query

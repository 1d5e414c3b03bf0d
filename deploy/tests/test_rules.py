"""The rules that the Prometheus Operator gets are those that promtool tests."""

from pathlib import Path

import yaml

from deploy.tests.manifests import Manifests
from deploy.tools.prometheus_rule import RULES, WRITTEN, prometheus_rule


def test_the_prometheus_rule_has_the_rules_that_are_tested(built: Manifests) -> None:
    for one in built.of("PrometheusRule"):
        assert one["spec"]["groups"] == prometheus_rule(RULES)["spec"]["groups"], "run `make deploy-rules`"


def test_the_file_is_what_the_program_writes() -> None:
    assert yaml.safe_load(WRITTEN.read_text(encoding="utf-8")) == prometheus_rule(RULES), "run `make deploy-rules`"


def test_groups_of_all_files_come_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name in ("b", "a"):
        group = {"name": name, "rules": [{"record": f"headwater:{name}", "expr": "1"}]}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump({"groups": [group]}))
    (tmp_path / "notes.txt").write_text("no rules")
    assert [group["name"] for group in prometheus_rule(tmp_path)["spec"]["groups"]] == ["a", "b"]

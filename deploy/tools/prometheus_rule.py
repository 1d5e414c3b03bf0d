"""Write the rules of deploy/observability/rules as a PrometheusRule, which the Prometheus Operator takes.

python -m deploy.tools.prometheus_rule

kustomize cannot put one file into a field of another, so what comes out is kept in git, and a test holds it against its
sources.
"""

from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).parents[1]
RULES = DEPLOY / "observability" / "rules"
WRITTEN = DEPLOY / "kubernetes" / "components" / "prometheus-operator" / "rules.yaml"
HEAD = "# Made by `make deploy-rules` from deploy/observability/rules: change it there.\n"


def prometheus_rule(rules: Path) -> dict[str, Any]:
    """The PrometheusRule with the groups of all files of a directory, in the order of their names."""
    groups = []
    for path in sorted(rules.glob("*.y*ml")):
        groups += yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "headwater", "labels": {"app.kubernetes.io/name": "headwater"}},
        "spec": {"groups": groups},
    }


class _Dumper(yaml.SafeDumper):
    """Texts of several lines stay on lines of their own."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def main() -> None:
    """Write the file."""
    text = yaml.dump(prometheus_rule(RULES), Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)
    WRITTEN.write_text(HEAD + text, encoding="utf-8")
    print(f"wrote {WRITTEN.relative_to(DEPLOY.parent)}")


if __name__ == "__main__":
    main()

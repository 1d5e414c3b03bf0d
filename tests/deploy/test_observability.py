"""Rules, alerts and dashboard ask for what the service really tells, and each alert leads to a page that helps."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from model.checkpoint.initialise import initialise
from tests.deploy.observability import (
    ROOT,
    alerts,
    dashboard,
    dashboard_queries,
    recorded,
    rules,
    scenarios,
)
from tests.deploy.promql import Asked, Expression, read
from tests.server import serving

SMALLEST = {"n_layers": 1, "d_model": 8, "n_heads": 1, "d_ff": 8, "vocab_size": 11, "max_positions": 7}
TARGET_LABELS = {"job", "instance", "namespace"}  # Prometheus adds them to what it scrapes
OF_PROMETHEUS = {"up": TARGET_LABELS}


@dataclass
class Told:
    """What a metric has: its labels, and the values of each that were seen."""

    values: dict[str, set[str]] = field(default_factory=dict)


Live = dict[str, Told]


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Live:
    """The series of a server that has answered each kind of call, by name; a metric without series has no labels."""
    directory = tmp_path_factory.mktemp("watched") / "tiny"
    initialise(directory, seed=11, **SMALLEST)
    with serving(directory, "--threads", "1") as server, server.client() as client:
        infer = {"inputs": [{"name": "tokens", "shape": [2], "datatype": "INT64", "data": [1, 2]}]}
        assert client.post("/forward", json={"tokens": [1]}).status_code == 200
        assert client.post("/v2/models/tiny/infer", json=infer).status_code == 200
        assert client.post("/v2/models/tiny/versions/1/infer", json=infer).status_code == 200
        text = client.get("/metrics").text
    found: Live = {}
    for family in text_string_to_metric_families(text):
        if not family.samples:
            found[family.name] = Told()
        for sample in family.samples:
            told = found.setdefault(sample.name, Told())
            for label, value in sample.labels.items():
                told.values.setdefault(label, set()).add(value)
    return found


def queries() -> Iterator[tuple[str, str]]:
    for rule in rules():
        yield rule.get("alert") or rule["record"], rule["expr"]
    yield from dashboard_queries()


EVERY_QUERY = [pytest.param(query, id=f"{at}-{where}") for at, (where, query) in enumerate(queries())]


def labels_of_record(name: str) -> set[str]:
    """What a recorded series may have: what its expression groups by, or else all of its target; its own labels."""
    found: set[str] = set()
    for rule in recorded()[name]:
        found |= TARGET_LABELS if name.startswith("instance:") else read(rule["expr"]).grouping - {"le"}
        found |= set(rule.get("labels", ()))
    return found


def faults_of(asked: Asked, live: Live) -> list[str]:
    """What a selector asks for that is not there."""
    if asked.metric in recorded():
        known = labels_of_record(asked.metric)
        return [f"{asked.metric} has no {label}" for label, *_ in asked.matchers if label not in known]
    if asked.metric in OF_PROMETHEUS:
        known = OF_PROMETHEUS[asked.metric]
        return [f"{asked.metric} has no {label}" for label, *_ in asked.matchers if label not in known]
    told = live.get(asked.metric)
    if told is None:
        return [f"there is no metric {asked.metric}"]
    faults = []
    for label, operator, value in asked.matchers:
        if label in TARGET_LABELS:
            continue
        if label not in told.values:
            faults.append(f"{asked.metric} has no label {label}")
        elif operator in ("=", "=~") and not any(
            seen == value if operator == "=" else re.fullmatch(value, seen) for seen in told.values[label]
        ):
            faults.append(f"{asked.metric} has no {label} {value}")
    return faults


def faults_in(expression: Expression, live: Live) -> list[str]:
    faults = [fault for asked in expression.selectors for fault in faults_of(asked, live)]
    known = set(TARGET_LABELS)
    for asked in expression.selectors:
        if asked.metric in recorded():
            known |= labels_of_record(asked.metric)
        elif asked.metric in live:
            known |= set(live[asked.metric].values)
    return faults + [f"nothing has a label {label} to group by" for label in expression.grouping - known]


@pytest.mark.parametrize("query", EVERY_QUERY)
def test_every_query_asks_for_metrics_labels_and_values_that_the_service_tells(query: str, live: Live) -> None:
    expression = read(query)
    assert expression.selectors, query
    assert not faults_in(expression, live)


@pytest.mark.parametrize(
    ("query", "fault"),
    [
        ("headwater_queue_depth", "no metric headwater_queue_depth"),
        ("rate(headwater_requests[5m])", "no metric headwater_requests"),
        ("headwater_requests_total{code='429'}", "no label code"),
        ('headwater_requests_total{status="418"}', "no status 418"),
        ('headwater_requests_total{route=~"/v2/.+/generate"}', "no route"),
        ("sum by (shard) (headwater_queue_tokens)", "no label shard|label shard"),
        ("job:headwater_latency:p99", "no metric job:headwater_latency:p99"),
        ('instance:headwater_admission:used_ratio{code="x"}', "has no code"),
        ('up{pod="a"}', "has no pod"),
    ],
)
def test_a_query_for_what_is_not_there_is_found(query: str, fault: str, live: Live) -> None:
    (found,) = faults_in(read(query), live)
    assert re.search(fault, found)


def test_an_expression_is_read_to_its_selectors_and_labels() -> None:
    expression = read(
        'topk(3, sum by (le, job) (rate(a:b_total{x="1", y!~"2|}"}[5m] offset 1h))) # no {comment}\n'
        "/ on (job) group_left (name) (c > bool 1e3) and d{} unless 5m"
    )
    assert [(one.metric, one.matchers) for one in expression.selectors] == [
        ("a:b_total", [("x", "=", "1"), ("y", "!~", "2|}")]),
        ("c", []),
        ("d", []),
    ]
    assert expression.grouping == {"le", "job", "name"}
    with pytest.raises(ValueError, match="what is"):
        read("a ? b")
    with pytest.raises(KeyError, match="without a name"):
        read('{job="a"}')


# --- alerts


def anchors(page: Path) -> set[str]:
    """What the headings of a Markdown page are called in links."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


RUNBOOK = ROOT / "docs" / "runbook.md"


def test_every_alert_links_to_one_page_by_an_absolute_address() -> None:
    """So that one replacement leads all of them to where the page is published."""
    (page,) = {rule["annotations"]["runbook_url"].partition("#")[0] for rule in alerts().values()}
    assert re.fullmatch(r"https://[^/]+/.+", page)
    assert f"`{page}`" in (ROOT / "docs" / "observability.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", alerts())
def test_every_alert_says_how_bad_it_is_what_is_wrong_and_which_section_of_the_runbook_helps(name: str) -> None:
    rule = alerts()[name]
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    assert all(len(text) > 10 for text in rule["annotations"].values())
    anchor = rule["annotations"]["runbook_url"].partition("#")[2]
    assert anchor == name.lower()
    assert anchor in anchors(RUNBOOK)


def test_every_section_of_the_runbook_is_of_an_alert_and_says_what_to_do() -> None:
    text = RUNBOOK.read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## (\w+)\n(.+?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    assert set(sections) == set(alerts())
    for name, section in sections.items():
        assert re.search(r"^- Look", section, re.MULTILINE), name
        assert re.search(r"^- (Do:|Look and do:)", section, re.MULTILINE), name
    for link in re.findall(r"\]\(#(\w+)\)", text):
        assert link in anchors(RUNBOOK)
    metrics = set(re.findall(r"`(headwater_\w+)`", text))
    documented = (ROOT / "docs" / "observability.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in documented for name in metrics)


def test_options_that_the_runbook_names_exist() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    text = RUNBOOK.read_text(encoding="utf-8")
    named = set(re.findall(r"`(--[a-z-]+)`", text))
    assert named
    assert all(f"| `{option}` |" in readme for option in named)


def test_every_alert_fires_in_a_scenario_and_is_silent_in_one_where_all_is_well() -> None:
    fired = set()
    quiet = False
    for scenario in scenarios():
        fired |= {one["alertname"] for one in scenario.get("alert_rule_test", ()) if one["exp_alerts"]}
        for one in scenario.get("promql_expr_test", ()):
            quiet = quiet or ("firing" in one["expr"] and "over_time" in one["expr"] and not one["exp_samples"])
    assert fired == set(alerts())
    assert quiet


def test_the_ratios_of_all_windows_are_the_same_but_for_the_window() -> None:
    shapes = set()
    windows = set()
    for name, (rule, *_) in recorded().items():
        if match := re.fullmatch(r"job:headwater_calls_failed:ratio_rate(\w+)", name):
            windows.add(match[1])
            assert set(re.findall(r"\[(\w+)\]", rule["expr"])) == {match[1]}
            shapes.add(rule["expr"].replace(f"[{match[1]}]", "[]"))
    assert windows == {"5m", "30m", "1h", "2h", "6h", "1d", "3d"}
    assert len(shapes) == 1


def test_the_queries_of_the_autoscaler_are_among_those_that_are_tested() -> None:
    tested = {one["expr"] for scenario in scenarios() for one in scenario.get("promql_expr_test", ())}
    assert any("job:headwater_queue_tokens:per_ready_replica" in expression for expression in tested)
    manifests = ROOT / "deploy" / "kubernetes"
    if not manifests.exists():
        pytest.skip("there is no deploy/kubernetes here")
    asked = {
        trigger["metadata"]["query"]
        for path in manifests.rglob("*.y*ml")
        for one in yaml.safe_load_all(path.read_text(encoding="utf-8"))
        if isinstance(one, dict) and one.get("kind") == "ScaledObject"
        for trigger in one["spec"]["triggers"]
    }
    assert asked
    assert asked <= tested


# --- the dashboard


def test_every_panel_asks_the_chosen_prometheus_for_the_chosen_replicas() -> None:
    found = dashboard()
    variables = {one["name"]: one for one in found["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    panels = [panel for panel in found["panels"] if panel["type"] != "row"]
    assert len(panels) >= 20
    for panel in panels:
        assert panel["title"]
        assert panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        for target in panel["targets"]:
            assert target["datasource"] == panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            for asked in read(re.sub(r"\$__\w+", "5m", target["expr"])).selectors:
                assert ("job", "=~", "$job") in asked.matchers, target["expr"]
                assert ("instance", "=~", "$instance") in asked.matchers, target["expr"]


def test_panels_have_numbers_of_their_own_and_do_not_lie_upon_each_other() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells


def test_what_an_alert_looks_at_can_be_seen_on_the_dashboard() -> None:
    def metrics(query: str) -> set[str]:
        return {
            name
            for asked in read(query).selectors
            for name in (
                {found for rule in recorded()[asked.metric] for found in metrics(rule["expr"])}
                if asked.metric in recorded()
                else {asked.metric}
            )
        }

    shown = {name for _, query in dashboard_queries() for name in metrics(query)}
    watched = {name for rule in rules() if "alert" in rule for name in metrics(rule["expr"])}
    assert watched - {"up"} <= shown | {"headwater_running_tokens"}

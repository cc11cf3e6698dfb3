"""Dashboard and rules name only what the server exports, and promtool accepts the rules where it is installed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

import covey

DOCKER = Path(covey.__file__).parents[2] / "docker"
DASHBOARD = DOCKER / "grafana" / "dashboards" / "covey.json"
RULES = DOCKER / "prometheus" / "rules.yml"
TRITON = {  # of those that release 24.10 exports for any model, and with a GPU
    "nv_inference_count",
    "nv_inference_request_success",
    "nv_inference_request_duration_us",
    "nv_inference_request_failure",
    "nv_cpu_utilization",
    "nv_cpu_memory_used_bytes",
    "nv_cpu_memory_total_bytes",
    "nv_gpu_utilization",
    "nv_gpu_memory_used_bytes",
    "nv_gpu_memory_total_bytes",
}
LABELS = {
    "needs",
    "stage",
    "why",
    *("model", "le", "outcome", "phase", "state", "drafter", "position", "depth", "to", "instance", "reason", "job"),
    *("at_most", "slo_class", "of", "origin", "part", "operation"),
}
ZERO = r' or on \(\) 0 \* max\(up{job="covey"} == 1\)$'
NAMED_ZERO = r' or on \(\) label_replace\(0 \* max\(up{{job="covey"}} == 1\), "{}", "none( yet)?", "", ""\)$'

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")


@pytest.fixture
def metrics(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", ModuleType("triton_python_backend_utils"))
    from covey.tritonio import metrics

    return metrics


def dashboard() -> Any:
    return json.loads(DASHBOARD.read_text(encoding="utf-8"))


def queries() -> list[str]:
    return [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", ())]


def rules() -> list[Any]:
    return [rule for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]]


def exported(metrics: ModuleType) -> set[str]:
    parts = {f"{name}_{part}" for name in metrics.HISTOGRAMS for part in ("bucket", "sum", "count")}
    return {*metrics.COUNTERS, *metrics.GAUGES, *metrics.DRAFT_COUNTERS, *metrics.DRAFT_GAUGES} | parts | TRITON


def named(expression: str) -> set[str]:
    """The metrics in an expression; recording rules have a colon and are not among them."""
    bare = re.sub(r'"[^"]*"', '""', expression)
    return set(re.findall(r"(?<![:\w])(?:covey|nv)_\w+(?![:\w])", bare))


def labels(expression: str) -> set[str]:
    matchers = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", expression)
    grouped = re.findall(r"(?:by|on|group_left)\s*\(([^)]*)\)", expression)
    return {*matchers, *(name.strip() for names in grouped for name in names.split(",") if name.strip())}


def test_dashboard_and_rules_name_only_exported_metrics(metrics: ModuleType) -> None:
    for expression in (*queries(), *(rule["expr"] for rule in rules())):
        assert named(expression) <= exported(metrics), expression
        assert labels(expression) <= LABELS, expression


def test_metrics_are_named_as_promtool_wants_them(metrics: ModuleType) -> None:
    """As `promtool check metrics` judges names by types, and that all have a help text."""
    counters = metrics.COUNTERS | metrics.DRAFT_COUNTERS
    others = metrics.GAUGES | metrics.DRAFT_GAUGES | {name: text for name, (text, _) in metrics.HISTOGRAMS.items()}
    assert all(name.endswith("_total") for name in counters)
    for name, text in {**counters, **others}.items():
        assert text
        assert not name.endswith(("_bucket", "_sum", "_count")), f"{name}: reserved for histograms"
        assert not re.search(r"_(counter|gauge|histogram|summary|ms|us|ns|sec|kb|mb|gb)(_|$)", name), name
        assert name in counters or not name.endswith("_total"), name


def test_the_dashboard_shows_everything_that_is_exported(metrics: ModuleType) -> None:
    shown = set().union(*map(named, queries()))
    of_drafters = (*metrics.DRAFT_COUNTERS, *metrics.DRAFT_GAUGES)
    for name in (*metrics.COUNTERS, *metrics.GAUGES, *metrics.HISTOGRAMS, *of_drafters):
        assert name == "covey_target_info" or shown & {name, f"{name}_bucket"}, name  # the info says no number


def test_what_has_not_happened_yet_is_zero_while_the_server_answers() -> None:
    """A counter with labels has no series before its first event, and an empty panel looks like a broken one."""
    counted = [each for each in queries() if re.match(r"sum.*\b(rate|increase)\(", each) and "/" not in each]
    assert len(counted) > 20
    for expression in counted:
        by = re.match(r"sum by \((\w+)", expression)  # the zero of a group needs a name in the legend
        assert re.search(NAMED_ZERO.format(by[1]) if by else ZERO, expression), expression


def test_rules_use_recording_rules_that_exist() -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    for rule in rules():
        assert set(re.findall(r"covey:[\w:]+", rule["expr"])) <= recorded


def test_alerts_say_what_is_wrong_and_what_to_do() -> None:
    for rule in rules():
        if "alert" in rule:
            assert set(rule["annotations"]) == {"summary", "description"}
            assert rule["labels"]["severity"] in ("critical", "warning")


@needs_promtool
def test_promtool_reads_every_query_of_the_dashboard(tmp_path: Path) -> None:
    filled = [query.replace("$__rate_interval", "1m").replace("$model", ".*") for query in queries()]
    written = [{"record": f"query:{index}", "expr": query} for index, query in enumerate(filled)]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": written}]}))
    words = ["promtool", "check", "rules", "--lint=none", str(tmp_path / "rules.yml")]
    ran = subprocess.run(words, check=False, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@needs_promtool
def test_promtool_accepts_rules_and_configuration() -> None:
    for words in (
        ["check", "rules", "rules.yml"],
        ["check", "config", "prometheus.yml"],
        ["test", "rules", "rules_test.yml"],
    ):
        ran = subprocess.run(
            ["promtool", *words], cwd=RULES.parent, check=False, capture_output=True, text=True, timeout=60
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr

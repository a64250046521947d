"""Dashboards, alerts and the runbook agree with the code."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from runtime import metrics

ROOT = Path(__file__).resolve().parents[2]
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
DASHBOARDS = sorted((ROOT / "deploy" / "grafana").glob("*.json"))
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool comes with Debian's prometheus")
_SUFFIXES = ("_total", "_bucket", "_sum", "_count")


def alerts() -> list[dict[str, Any]]:
    """All rules."""
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def expressions() -> list[str]:
    """Everything that is asked of Prometheus."""
    asked = [str(rule["expr"]) for rule in alerts()]
    for file in DASHBOARDS:
        panels = json.loads(file.read_text())["panels"]
        asked += [target["expr"] for panel in panels for target in panel["targets"]]
    return asked


def family(name: str) -> str:
    """A sample's metric."""
    return next((name.removesuffix(suffix) for suffix in _SUFFIXES if name.endswith(suffix)), name)


def known() -> dict[str, tuple[str, ...]]:
    """The code's metrics with their labels."""
    return {
        family(str(metric._name)): tuple(metric._labelnames)
        for metric in vars(metrics).values()
        if hasattr(metric, "_labelnames") and hasattr(metric, "_name")
    }


def test_what_is_shown_or_alerted_on_is_what_the_code_counts_and_back() -> None:
    asked = {family(name) for text in expressions() for name in re.findall(r"headrace_[a-z0-9_]+", text)}
    assert asked - known().keys() == set(), "no such metric"
    assert known().keys() - asked == set(), "on no dashboard and in no alert"


def test_labels_that_are_asked_for_exist() -> None:
    wrong = []
    for text in expressions():
        for name, selector in re.findall(r"(headrace_[a-z0-9_]+)\{([^}]*)\}", text):
            labels = set(re.findall(r"([a-z_]+)\s*(?:=|!=)~?", selector))
            if not labels <= {*known()[family(name)], "instance", "le"}:
                wrong.append((name, labels))
    assert wrong == []


def test_every_metric_is_counted_somewhere() -> None:
    names = [name for name, value in vars(metrics).items() if hasattr(value, "_labelnames")]
    code = "\n".join(
        file.read_text()
        for room in ("api", "control", "workers", "runtime")
        for file in (ROOT / room).rglob("*.py")
    )
    assert [name for name in names if len(re.findall(rf"\b{name}\b", code)) < 2] == []


def test_names_say_their_unit_and_labels_are_bounded() -> None:
    for name, labels in known().items():
        assert name.startswith("headrace_")
        assert not {"tenant", "tenant_id", "task", "task_id", "key", "key_id", "worker", "url"} & set(
            labels
        ), name


def test_every_alert_has_its_section_in_the_runbook_and_its_two_tests() -> None:
    sections = re.findall(r"^## (\w+)$", (ROOT / "docs" / "runbook.md").read_text(), re.MULTILINE)
    names = [rule["alert"] for rule in alerts()]
    assert sections == names
    assert [rule["annotations"]["runbook"] for rule in alerts()] == [
        f"docs/runbook.md#{name.lower()}" for name in names
    ]
    tests = yaml.safe_load((ROOT / "tests" / "observability" / "alerts_test.yml").read_text())["tests"]
    wanted = {f"{name} {what}" for name in names for what in ("fires", "is silent")}
    assert {test["name"] for test in tests} == wanted


def test_thresholds_are_bounds_of_buckets() -> None:
    for text in (str(rule["expr"]) for rule in alerts()):
        for name, limit in re.findall(r"(headrace_\w+)_bucket.* > ([\d.]+)$", text):
            metric = next(one for one in vars(metrics).values() if getattr(one, "_name", "") == name)
            assert float(limit) in metric._upper_bounds, (name, limit)


@needs_promtool
@pytest.mark.parametrize(
    "words",
    [
        ("check", "rules", str(ALERTS)),
        ("check", "config", "--syntax-only", str(ALERTS.with_name("prometheus.yml"))),
        ("test", "rules", str(Path(__file__).with_name("alerts_test.yml"))),
    ],
    ids=["rules", "config", "firing"],
)
def test_promtool_finds_the_rules_right_and_each_fires_when_it_should(words: tuple[str, ...]) -> None:
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *words], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_promtool_finds_nothing_wrong_with_what_a_process_serves() -> None:
    assert PROMTOOL is not None
    text, _ = metrics.render()
    done = subprocess.run(
        [PROMTOOL, "check", "metrics"], input=text, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr).decode()

"""The alerts of examples/monitoring: Prometheus takes them, each fires when it should, and the series exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.monitoring.promtool import EXAMPLES, labels_of, promtool

FOLDER = EXAMPLES / "monitoring"
RULES: dict[str, Any] = yaml.safe_load((FOLDER / "alerts.yml").read_text(encoding="utf-8"))
TESTS: dict[str, Any] = yaml.safe_load((FOLDER / "alerts_test.yml").read_text(encoding="utf-8"))
ALERTS: list[dict[str, Any]] = [rule for group in RULES["groups"] for rule in group["rules"]]


def test_prometheus_takes_the_rules_and_the_configuration() -> None:
    promtool("check", "rules", FOLDER / "alerts.yml")
    promtool("check", "config", FOLDER / "prometheus.yml")


def test_each_alert_fires_when_it_should_and_not_before() -> None:
    promtool("test", "rules", FOLDER / "alerts_test.yml")


def test_a_changed_threshold_fails_the_rule_tests(tmp_path: Path) -> None:
    """They would notice."""
    rules = (FOLDER / "alerts.yml").read_text(encoding="utf-8")
    (tmp_path / "alerts.yml").write_text(rules.replace("age_seconds) > 60", "age_seconds) > 600"), encoding="utf-8")
    (tmp_path / "alerts_test.yml").write_text(
        (FOLDER / "alerts_test.yml").read_text(encoding="utf-8"), encoding="utf-8"
    )
    with pytest.raises(AssertionError, match="DelayqOverdue"):
        promtool("test", "rules", tmp_path / "alerts_test.yml")


def test_each_alert_has_a_test_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    cases = [case for test in TESTS["tests"] for case in test["alert_rule_test"]]
    names = {alert["alert"] for alert in ALERTS}
    assert {case["alertname"] for case in cases if case.get("exp_alerts")} == names
    assert {case["alertname"] for case in cases if not case.get("exp_alerts")} == names


def test_the_rule_tests_have_only_series_that_the_endpoint_has() -> None:
    known = labels_of()
    for test in TESTS["tests"]:
        for one in test["input_series"]:
            name, _, labels = one["series"].partition("{")
            assert set(re.findall(r"(\w+)=\"", labels)) == known[name], one


def test_alerts_use_only_metrics_that_the_endpoint_has_and_that_are_tested() -> None:
    tested = {one["series"].partition("{")[0] for test in TESTS["tests"] for one in test["input_series"]}
    used = {name for alert in ALERTS for name in re.findall(r"\bdelayq_\w+", alert["expr"])}
    assert used <= labels_of().keys()
    assert used | {"up"} == tested


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_says_how_bad_it_is_and_the_readme_what_to_do(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in ("critical", "warning")
    assert alert["annotations"].keys() == {"summary", "description"}
    assert f"`{alert['alert']}`" in (FOLDER / "README.md").read_text(encoding="utf-8")

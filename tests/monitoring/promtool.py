"""promtool, which comes with Prometheus: it checks configurations, and runs rules and queries on made-up series."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path

import yaml

from celery_delayq.metrics.collector import registry_of
from celery_delayq.metrics.snapshot import Snapshot
from celery_delayq.queue.measuring import Measured
from celery_delayq.schedule.periodic_task import PeriodicTask
from tests.support import missing

EXAMPLES = Path(__file__).parents[2] / "examples"

#: What Prometheus adds to each series.
OF_SCRAPES = {"job": "delayq", "instance": "metrics:9808"}


def promtool(*args: str | Path) -> str:
    """Run promtool and return what it printed. Without it, skip the test; but CI must not lack it unnoticed."""
    command = shutil.which("promtool")
    if command is None:
        missing("no promtool: it comes with Prometheus (apt-get install prometheus)")
    done = subprocess.run([command, *map(str, args)], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def samples() -> list[tuple[str, dict[str, str]]]:
    """Return names and labels of all that the endpoint can show, with those that Prometheus adds."""
    queue = Measured(0, head_due_ms=1, punctual="host:1:2", leases={"one": 1.0})
    now = datetime.now(timezone.utc)
    entry = PeriodicTask("report", "shop.report", 60.0, queue="celery", next_run=now, last_run=now)
    snapshot = Snapshot({"celery": [queue]}, set(), {"127.0.0.1:7000": True}, [entry], frozenset({"celery"}), 0.001)
    return [
        (sample.name, {**OF_SCRAPES, **sample.labels})
        for family in registry_of(snapshot).collect()
        for sample in family.samples
    ]


def labels_of() -> dict[str, set[str]]:
    """Return the names of the labels of each metric, `up` included."""
    return {"up": set(OF_SCRAPES), **{name: set(labels) for name, labels in samples()}}


def series(name: str, labels: Mapping[str, str]) -> str:
    """Return how PromQL writes a series."""
    inner = ", ".join(f'{label}="{value}"' for label, value in labels.items())
    return f"{name}{{{inner}}}"


def check_results(expressions: Iterable[str], folder: Path) -> None:
    """Fail if a query has no result, while each series of the endpoint grows by 1 with each scrape."""
    tests = [
        {"expr": f"count({expression}) > bool 0", "eval_time": "8m", "exp_samples": [{"labels": "{}", "value": 1}]}
        for expression in expressions
    ]
    inputs = [{"series": series(name, labels), "values": "0+1x40"} for name, labels in samples()]
    path = folder / "queries_test.yml"
    case = {"interval": "15s", "input_series": inputs, "promql_expr_test": tests}
    path.write_text(yaml.safe_dump({"tests": [case]}), encoding="utf-8")
    promtool("test", "rules", path)

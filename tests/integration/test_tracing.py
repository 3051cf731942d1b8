"""A trace of OpenTelemetry goes on after the wait, and the span of a delayed task says how late it began."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from tests.clocks import clock_from
from tests.ledger import Ledger
from tests.support import wait_until
from tests.workers import Worker

pytest.importorskip("opentelemetry.instrumentation.celery", reason="not installed (dependency group `test`)")

from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Tracer

pytestmark = pytest.mark.on_cluster

LATENESS = "delayq.lateness"


@pytest.fixture
def tracer() -> Iterator[Tracer]:
    """Traces what this process publishes."""
    provider = TracerProvider(shutdown_on_exit=False)
    CeleryInstrumentor().instrument(tracer_provider=provider)
    yield provider.get_tracer("tests")
    CeleryInstrumentor().uninstrument()


class Traced:
    """A worker that is traced, and its spans."""

    def __init__(
        self, folder: Path, broker: str, ledger: Ledger, *, instrument: str, links: bool, **options: Any
    ) -> None:
        self._file = folder / "spans"
        env = {"SPANS": str(self._file), "INSTRUMENT": instrument, "LINKS": str(int(links)), **options.pop("env", {})}
        self.worker = Worker(app="tests.integration.traced_app", broker=broker, ledger=ledger.url, env=env, **options)

    def spans(self) -> list[dict[str, Any]]:
        """All spans, of tasks that have ended."""
        text = self._file.read_text() if self._file.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def span_of(self, task_id: str) -> dict[str, Any]:
        """The span in which a task ran."""

        def found() -> list[dict[str, Any]]:
            return [it for it in self.spans() if it["attributes"].get("messaging.message.id", "") == task_id]

        (span,) = wait_until(found, "the span", 30)
        assert span["name"] == "run/note"
        return dict(span)


@pytest.mark.parametrize(
    ("pool", "instrument", "links"),
    [
        pytest.param("solo", "import", True, marks=pytest.mark.one_server("receivers have nothing to do with nodes")),
        ("prefork", "process", True),
        pytest.param("threads", "import", False, marks=pytest.mark.one_server("nor have parents")),
    ],
)
def test_a_trace_survives_the_wait(
    app: Celery,
    broker_url: str,
    ledger: Ledger,
    tracer: Tracer,
    tmp_path: Path,
    pool: str,
    instrument: str,
    links: bool,
) -> None:
    note = app.tasks["note"]
    traced = Traced(tmp_path, broker_url, ledger, instrument=instrument, links=links, pool=pool)
    with traced.worker:
        with tracer.start_as_current_span("checkout") as checkout:
            trace_id = f"0x{checkout.get_span_context().trace_id:032x}"
            at_once = note.delay()
            delayed = [note.apply_async(countdown=1)]
            delayed += app.delayq.apply_async_many(note.s(number).set(countdown=1) for number in range(2))
            moved = note.apply_async(countdown=3600)
        assert app.delayq.reschedule(moved.id, countdown=1)
        for result in [at_once, *delayed, moved]:
            span = traced.span_of(result.id)
            came_from = [link["context"] for link in span["links"]] if links else [span["context"]]
            assert [context["trace_id"] for context in came_from] == [trace_id]
            if links:
                assert span["parent_id"] is None
                assert span["context"]["trace_id"] != trace_id, "no trace of days"
            if result is at_once:
                assert LATENESS not in span["attributes"]
            else:
                assert isinstance(span["attributes"][LATENESS], float)
                assert -0.01 <= span["attributes"][LATENESS] < 30
        assert {span["name"] for span in traced.spans()} == {"run/note"}, "no spans but those of tasks"


@pytest.mark.usefixtures("faketime")
@pytest.mark.one_server("a clock has nothing to do with nodes")
@pytest.mark.parametrize("pool", ["solo", "prefork"])
def test_lateness_is_measured_by_the_servers_clock(
    app: Celery, broker_url: str, ledger: Ledger, tmp_path: Path, pool: str
) -> None:
    ahead = clock_from(datetime.now(timezone.utc) + timedelta(seconds=300))
    traced = Traced(tmp_path, broker_url, ledger, instrument="process", links=True, pool=pool, env=ahead)
    with traced.worker:
        result = app.tasks["note"].apply_async(countdown=1, headers={"mine": "1"})
        assert -0.01 <= traced.span_of(result.id)["attributes"][LATENESS] < 30


@pytest.mark.one_server("a retry has nothing to do with nodes")
def test_nothing_of_it_is_sent_on_with_a_retry(app: Celery, broker_url: str, ledger: Ledger, tmp_path: Path) -> None:
    traced = Traced(tmp_path, broker_url, ledger, instrument="import", links=True)
    with traced.worker:
        result = app.tasks["try_again"].apply_async((1, 3600), countdown=0.5)
        again = wait_until(lambda: (it := app.delayq.get(result.id)) and it.retries and it, "the retry waits", 30)
    assert [name for name in again.headers if "delayq" in name] == []
    assert app.delayq.cancel(result.id)


@pytest.mark.one_server("about imports")
def test_without_opentelemetry_nothing_is_connected() -> None:
    code = """
import importlib.util
from celery import signals
from celery_delayq.worker import bootsteps, lateness

find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name: None
lateness.trace_lateness()
print(len(signals.task_prerun.receivers), len(signals.task_postrun.receivers))
importlib.util.find_spec = find_spec
lateness.trace_lateness()
lateness.trace_lateness()
print(len(signals.task_prerun.receivers), len(signals.task_postrun.receivers))
"""
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.splitlines() == ["0 0", "1 1"]

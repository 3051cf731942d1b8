"""What the message of a periodic task meets: times that count from now, and unique keys. With real workers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

import pytest
import redis
from celery import Celery
from dateutil.parser import isoparse

from celery_delayq import KeyHeld
from tests.integration.commands import delayq
from tests.integration.long_tasks import open_gate
from tests.integration.periodic_app import APP, KEY, add_periodic_tasks
from tests.ledger import Ledger
from tests.support import wait_until
from tests.worker_app import publisher
from tests.workers import Worker

pytestmark = pytest.mark.on_cluster


@pytest.fixture
def app(broker_url: str, broker_client: redis.Redis, ledger: Ledger) -> Iterator[Celery]:
    broker_client.flushall()
    with publisher(broker_url, ledger.url) as app:
        yield add_periodic_tasks(app, ledger)


@pytest.fixture(autouse=True)
def worker(app: Celery, broker_url: str, ledger: Ledger) -> Iterator[Worker]:
    """A worker that plans; at the end of the test the gate opens."""
    with Worker(broker=broker_url, ledger=ledger.url, app=APP, conf={"beat_scheduler": "delayq"}) as worker:
        yield worker
        open_gate(ledger)


def in_a_row(ledger: Ledger, every_s: float) -> bool:
    """Whether runs of `note_eta` follow each other without a gap."""
    times = sorted(isoparse(run.note).timestamp() for run in ledger.runs())
    return any(later - earlier == pytest.approx(every_s) for earlier, later in itertools.pairwise(times))


@pytest.mark.parametrize("task", ["expires", "impatient"])
def test_a_task_that_expires_sooner_than_it_is_planned_runs(app: Celery, ledger: Ledger, task: str) -> None:
    app.delayq.schedule.add("a", f"note_eta {task}", 1.5)
    wait_until(lambda: len(ledger.runs()) >= 2, "it runs")


@pytest.mark.parametrize("for_", ["waiting", "until_start", "until_done"])
def test_each_run_of_a_unique_task_that_ends_before_the_next_is_sent(app: Celery, ledger: Ledger, for_: str) -> None:
    app.delayq.schedule.add("a", f"note_eta {for_}", 1)
    wait_until(lambda: in_a_row(ledger, 1), "two in a row ran", 60)


@pytest.mark.parametrize("for_", ["waiting", "until_start", "until_done", "period"])
def test_a_unique_task_retries(app: Celery, ledger: Ledger, worker: Worker, for_: str) -> None:
    app.delayq.schedule.add("a", f"retry_once {for_}", 1.5)
    wait_until(lambda: [run.note for run in ledger.runs()].count(1) >= 2, "two have retried")
    assert "KeyHeld" not in worker.log


def test_an_occurrence_within_the_period_of_another_is_left_out(app: Celery, ledger: Ledger) -> None:
    app.delayq.schedule.add("a", "note_eta period", 1)
    wait_until(lambda: len(ledger.runs()) >= 3, "three ran", 60)
    times = sorted(isoparse(run.note).timestamp() for run in ledger.runs())
    assert min(later - earlier for earlier, later in itertools.pairwise(times)) > 1.5


def test_runs_that_are_left_out_while_one_is_under_way_do_not_count(app: Celery, ledger: Ledger) -> None:
    app.delayq.schedule.add("a", "gated until_done", 0.3)
    entry = wait_until(lambda: (it := app.delayq.schedule.get("a")).runs and it, "the first is sent")
    wait_until(lambda: (app.delayq.schedule.get("a").next_run - entry.next_run).total_seconds() > 1, "it goes on")
    shown = app.delayq.schedule.get("a")
    assert (shown.runs, shown.last_run, len(ledger.runs())) == (1, entry.last_run, 1)
    open_gate(ledger)
    wait_until(lambda: app.delayq.schedule.get("a").runs >= 2, "others are sent")
    wait_until(lambda: len(ledger.runs()) >= 2, "others run")


class TestRunNow:
    """What was planned does not stand in the way; what runs does, and the caller hears of it."""

    def test_says_whether_it_was_sent(self, app: Celery, ledger: Ledger) -> None:
        app.delayq.schedule.add("a", "gated until_done", 3600)
        wait_until(lambda: app.delayq.schedule.get("a").next_run, "it is planned")
        first = app.delayq.schedule.run_now("a")
        assert app.delayq.was_new(first)
        wait_until(lambda: ledger.runs(), "it runs")
        second = app.delayq.schedule.run_now("a")
        assert not app.delayq.was_new(second)
        assert second.id == first.id

    def test_raises_if_the_task_wants_that(self, app: Celery) -> None:
        app.delayq.schedule.add("a", "gated raise", 3600)
        first = app.delayq.schedule.run_now("a")
        with pytest.raises(KeyHeld, match=first.id):
            app.delayq.schedule.run_now("a")
        result = delayq(app, "schedule", "run-now", "a")
        assert (result.exit_code, f"task {first.id} holds the unique key {KEY!r}" in result.output) == (1, True)

    def test_says_so_on_the_command_line(self, app: Celery) -> None:
        app.delayq.schedule.add("a", "gated until_done", 3600)
        sent = delayq(app, "schedule", "run-now", "a")
        assert (sent.exit_code, sent.output) == (0, "a sent.\n")
        held = delayq(app, "schedule", "run-now", "a")
        assert held.exit_code == 1
        assert "Error: a was not sent: task " in held.output


def test_an_occurrence_of_a_throttled_task_takes_no_turn(app: Celery, ledger: Ledger) -> None:
    app.delayq.schedule.add("a", "note_eta throttled", 1)
    wait_until(lambda: in_a_row(ledger, 1), "it runs at its times")


def test_run_now_of_a_throttled_task_takes_a_turn(app: Celery, ledger: Ledger) -> None:
    app.delayq.schedule.add("a", "note_eta throttled", 7200)
    first, second = (app.delayq.schedule.run_now("a") for _ in range(2))
    wait_until(lambda: [run.task_id for run in ledger.runs()] == [first.id], "the first runs")
    (waiting,) = app.delayq.scheduled(due_before=datetime.now(timezone.utc) + timedelta(hours=1, minutes=1)).tasks
    assert waiting.id == second.id

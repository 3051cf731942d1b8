"""Revoking where workers take part: those that are told, and those that have the task already."""

from __future__ import annotations

import pytest
import redis
from celery import Celery

from celery_delayq import DelayedQueue
from tests.integration.monitoring import task_events
from tests.integration.racing import TASKS, take_back_when_due
from tests.ledger import ALL_WELL, Ledger
from tests.support import wait_until
from tests.workers import Worker

#: Half a year, in s.
MONTHS = 180 * 86400

# The ledger empties the result backend.
pytestmark = [pytest.mark.usefixtures("ledger"), pytest.mark.on_cluster]


@pytest.mark.one_server("such a producer cannot use a cluster")
def test_a_producer_without_this_package_is_enough(
    app: Celery, waiting: DelayedQueue, broker_url: str, ledger_url: str, broker_client: redis.Redis
) -> None:
    result = app.tasks["note"].apply_async(countdown=MONTHS)
    plain = Celery("flower", broker=broker_url.replace("delayq", "redis"), set_as_current=False)
    with (
        Worker("-E", broker=broker_url, ledger=ledger_url) as one,
        Worker("-E", broker=broker_url, ledger=ledger_url) as two,
        task_events(app, broker_client, "task-revoked") as events,
    ):
        wait_until(lambda: len(plain.control.ping(timeout=0.5)) == 2, "both workers listen")
        plain.control.revoke(result.id)
        for worker in (one, two):
            worker.wait_for_log(f"Tasks flagged as revoked: {result.id}")
        wait_until(lambda: events, "the event")
        (event,) = events
        assert event["uuid"] == result.id
        assert "@" in event["hostname"]
        assert not event["hostname"].startswith("delayq@")
        logs = one.log + two.log
    plain.close()
    assert logs.count(f"Revoked task note[{result.id}], which was waiting") == 1
    assert result.state == "REVOKED"
    assert waiting.size() == 0


@pytest.mark.usefixtures("waiting")
def test_a_ready_task_is_revoked_as_ever(app: Celery, broker_url: str, ledger: Ledger) -> None:
    one_by_one = {"worker_prefetch_multiplier": 1}
    with Worker(pool="threads", concurrency=1, broker=broker_url, ledger=ledger.url, conf=one_by_one) as worker:
        app.tasks["work_late"].apply_async((3,))
        wait_until(ledger.executions, "the worker is busy")
        behind = app.tasks["note"].delay()
        assert app.control.revoke(behind.id, reply=True, timeout=10, limit=1)
        worker.wait_for_log(f"Discarding revoked task: note[{behind.id}]")
        wait_until(lambda: behind.state == "REVOKED", "the state")
    assert ledger.runs() == []


@pytest.mark.thorough
def test_at_the_very_moment_of_the_transfer_it_is_revoked_or_runs(
    app: Celery, waiting: DelayedQueue, broker_url: str, ledger: Ledger
) -> None:
    with Worker(broker=broker_url, ledger=ledger.url):
        due_ms = take_back_when_due(app, app.control.revoke, latest_s=0.15)
        states = {"SUCCESS", "REVOKED"}
        wait_until(lambda: {app.AsyncResult(one).state for one in due_ms} == states, "all are done", 60)
    revoked = {one for one in due_ms if app.AsyncResult(one).state == "REVOKED"}
    promised = {one: due for one, due in due_ms.items() if one not in revoked}
    assert ledger.verdict(promised) == ALL_WELL
    assert {run.task_id for run in ledger.runs()} == promised.keys()
    assert waiting.size() == 0
    assert 30 < len(revoked) < TASKS - 30, "the race did not happen"

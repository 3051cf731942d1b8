"""In which order messages run, by who transferred them: docs/redisson.md tells it, this pins it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone

import pytest
import redis
from celery import Celery

from celery_delayq import DelayedQueue
from celery_delayq.basics.times import to_datetime
from tests.interop.redisson import Redisson
from tests.ledger import Ledger
from tests.state import now_ms
from tests.support import wait_until
from tests.worker_app import publisher
from tests.workers import Worker

pytestmark = pytest.mark.on_cluster

#: Time between two due times, in ms: each is transferred by a call of its own.
APART_MS = 100


@pytest.fixture
def app(broker_client: redis.Redis, broker_url: str, ledger: Ledger) -> Iterator[Celery]:
    """An app to publish with."""
    with publisher(broker_url, ledger.url) as app:
        yield app


@pytest.fixture
def celery_queue(broker_client: redis.Redis) -> DelayedQueue:
    """The delayed queue in front of Celery's default queue."""
    return DelayedQueue(broker_client, "celery")


def delay(app: Celery, celery_queue: DelayedQueue, values: list[str]) -> None:
    """Publish tasks that are due soon, one after the other, in this order."""
    start_ms = now_ms(celery_queue.client) + 3000
    for at, value in enumerate(values):
        eta = datetime.fromtimestamp((start_ms + at * APART_MS) / 1000, timezone.utc)
        app.tasks["note"].apply_async((value,), eta=eta)
    assert celery_queue.size() == len(values), "too slow: one of them was due already"


def transferred(celery_queue: DelayedQueue, count: int) -> None:
    """Wait until so many messages are ready, and nobody has taken one."""
    wait_until(lambda: celery_queue.client.llen(celery_queue.name) == count, f"{count} messages are ready")


def ran(ledger: Ledger, broker_url: str, count: int) -> list[str]:
    """Start a worker; return the values in the order in which their tasks ran."""
    with Worker(broker=broker_url, ledger=ledger.url):
        wait_until(lambda: len(ledger.runs()) == count, f"{count} tasks ran")
    return [run.note for run in ledger.runs()]


def test_what_java_transfers_runs_last_in_first_out_and_before_what_was_ready(
    newest: Redisson, app: Celery, celery_queue: DelayedQueue, broker_url: str, ledger: Ledger
) -> None:
    """Redisson appends on the right, and kombu takes from the right."""
    for value in ("ready 1", "ready 2"):
        app.tasks["note"].apply_async((value,))
    newest.call("transfer", "celery")
    delay(app, celery_queue, ["due 1", "due 2", "due 3"])
    transferred(celery_queue, 5)
    assert ran(ledger, broker_url, 5) == ["due 3", "due 2", "due 1", "ready 1", "ready 2"]


def test_what_python_transfers_runs_first_in_first_out_and_after_what_was_ready(
    app: Celery, celery_queue: DelayedQueue, broker_url: str, ledger: Ledger
) -> None:
    app.tasks["note"].apply_async(("ready",))
    delay(app, celery_queue, ["due 1", "due 2", "due 3"])
    wait_until(lambda: celery_queue.transfer() and celery_queue.size() == 0, "all is transferred")
    assert ran(ledger, broker_url, 4) == ["ready", "due 1", "due 2", "due 3"]


def test_java_takes_in_due_order_what_java_transferred(newest: Redisson, jobs: DelayedQueue) -> None:
    for at in range(3):
        newest.offer("jobs", b"due %d" % at, delay_ms=500 + at * APART_MS)
    transferred(jobs, 3)
    assert [newest.value("poll_ready", "jobs", 0) for _ in range(3)] == [b"due 0", b"due 1", b"due 2"]


def test_java_takes_last_in_first_out_what_python_transferred(newest: Redisson, jobs: DelayedQueue) -> None:
    """Java's take() is from the left; RBlockingDeque.takeLast() is from the right, as kombu's."""
    for at in range(3):
        jobs.offer(b"due %d" % at, eta=to_datetime(1000 + at))
    jobs.transfer()
    assert newest.value("poll_ready", "jobs", 0) == b"due 2"
    assert newest.value("poll_last", "jobs") == b"due 0"

"""Unique keys of tasks that workers run: how long each is held, and what becomes of it if something breaks."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis
from celery import Celery

from celery_delayq import Unique
from tests.brokers import list_for
from tests.integration.long_tasks import add_long_tasks, long_worker, open_gate
from tests.ledger import Ledger
from tests.support import wait_until
from tests.worker_app import publisher
from tests.workers import Worker

pytestmark = pytest.mark.on_cluster

KEY = "rebuild:7"

POOLS = ["prefork", "threads", "solo"]
LATE = pytest.mark.parametrize("task", ["gated", "gated_late"])


@pytest.fixture(scope="module")
def app(broker_url: str, ledger_url: str) -> Iterator[Celery]:
    with publisher(broker_url, ledger_url) as app:
        yield add_long_tasks(app, Ledger(ledger_url))


@pytest.fixture(autouse=True)
def clean(broker_client: redis.Redis) -> None:
    broker_client.flushall()


@pytest.fixture
def start(broker_url: str, ledger: Ledger) -> Iterator[Any]:
    """Starts workers; at the end of the test the gate opens, and they stop."""
    with ExitStack() as stack:

        def start(**kwargs: Any) -> Worker:
            return stack.enter_context(long_worker(broker=broker_url, ledger=ledger, **kwargs))

        yield start
        open_gate(ledger)


def unique(for_: Any, **more: Any) -> Unique:
    return Unique(key=KEY, for_=for_, **more)


def is_free(app: Celery, for_: Any) -> bool:
    """Whether a task may hold the key now. If so, nothing is left of that task."""
    result = app.tasks["note"].apply_async(countdown=600, unique=unique(for_))
    if app.delayq.was_new(result):
        assert app.delayq.cancel(result)
    return bool(app.delayq.was_new(result))


@LATE
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("countdown", [None, 0.2])
def test_until_it_is_done(
    app: Celery, start: Any, ledger: Ledger, pool: str, task: str, countdown: float | None
) -> None:
    first = app.tasks[task].apply_async(countdown=countdown, unique=unique("until_done"))
    start(pool=pool, concurrency=1)
    wait_until(lambda: ledger.runs(), "it runs")
    assert not is_free(app, "until_done")
    assert app.tasks["note"].apply_async(countdown=600, unique=unique("until_done")).id == first.id
    open_gate(ledger)
    first.get(timeout=20)
    wait_until(lambda: is_free(app, "until_done"), "it is done")


@LATE
@pytest.mark.parametrize("pool", POOLS)
def test_until_it_starts(app: Celery, start: Any, ledger: Ledger, pool: str, task: str) -> None:
    """The next one has to wait for the only process, and holds the key meanwhile."""
    app.tasks[task].apply_async(countdown=0.2, unique=unique("until_start"))
    assert not is_free(app, "until_start")
    start(pool=pool, concurrency=1)
    wait_until(lambda: ledger.runs(), "it runs")
    wait_until(lambda: is_free(app, "until_start"), "it has started")
    if pool != "solo":
        second = app.tasks["note"].apply_async(unique=unique("until_start"))
        assert app.delayq.was_new(second)
        assert not is_free(app, "until_start")
    open_gate(ledger)


def test_until_it_is_due(app: Celery, start: Any, ledger: Ledger) -> None:
    app.tasks["gated"].apply_async(countdown=0.2, unique=unique("waiting"))
    start(pool="solo")
    wait_until(lambda: ledger.runs(), "it runs")
    assert is_free(app, "waiting")


def test_a_killed_workers_task_comes_back_with_its_key(app: Celery, start: Any, ledger: Ledger) -> None:
    first = app.tasks["gated_late"].apply_async(countdown=0.2, unique=unique("until_done"))
    worker = start(pool="prefork", concurrency=1, transport={"lease": 2})
    wait_until(lambda: ledger.runs(), "it runs")
    worker.kill()
    assert not is_free(app, "until_done")
    start(pool="prefork", concurrency=1, transport={"lease": 2})
    wait_until(lambda: len(ledger.runs()) == 2, "it runs again")
    assert not is_free(app, "until_done")
    open_gate(ledger)
    first.get(timeout=20)
    wait_until(lambda: is_free(app, "until_done"), "it is done")


def test_a_killed_workers_task_that_was_acknowledged_early(app: Celery, start: Any, ledger: Ledger) -> None:
    """It is lost, as Celery says. Its key outlives it by its ttl."""
    app.tasks["gated"].apply_async(countdown=0.2, unique=unique("until_done", ttl=3))
    worker = start(pool="solo")
    wait_until(lambda: ledger.runs(), "it runs")
    worker.kill()
    assert not is_free(app, "until_done")
    wait_until(lambda: is_free(app, "until_done"), "its key has its end")


@pytest.mark.thorough
@LATE
def test_a_worker_that_has_a_task_renews_its_key(
    app: Celery, start: Any, ledger: Ledger, broker_client: Any, task: str
) -> None:
    """For longer than the ttl, also if the task is acknowledged as it starts."""
    app.tasks[task].apply_async(unique=unique("until_done", ttl=5))
    start(pool="prefork", concurrency=1, transport={"lease": 2})
    wait_until(lambda: ledger.runs(), "it runs")
    begun = broker_client.time()[0]
    wait_until(
        lambda: is_free(app, "until_done") or broker_client.time()[0] > begun + 11, "it is free, or 11 s have passed"
    )
    assert not is_free(app, "until_done")


@pytest.mark.thorough
def test_a_connection_is_lost_while_a_task_runs(
    app: Celery, start: Any, ledger: Ledger, broker_client: redis.Redis
) -> None:
    """It was acknowledged as it started: its key is renewed, and given up, on the next connection."""
    app.tasks["gated"].apply_async(unique=unique("until_done", ttl=3))
    worker = start(pool="prefork", concurrency=1, transport={"lease": 2})
    wait_until(lambda: ledger.runs(), "it runs")
    for kind in ("normal", "pubsub"):
        for client in (broker_client,) if not hasattr(broker_client, "masters") else ():
            client.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
    wait_until(lambda: worker.log.count("Connected to") > 1 or worker.log.count("connected.") > 3, "it is back")
    begun = time.monotonic()
    while time.monotonic() < begun + 6:
        assert not is_free(app, "until_done")
    open_gate(ledger)
    wait_until(lambda: is_free(app, "until_done"), "it is done")


@pytest.mark.parametrize("late", [False, True])
def test_a_retry_holds_it_on(app: Celery, start: Any, ledger: Ledger, late: bool) -> None:
    """While it waits, and again while it runs."""
    start(pool="prefork", concurrency=1, conf={"task_acks_late": late})
    result = app.tasks["try_again"].apply_async((3, 0.3), unique=unique("until_done"))
    wait_until(lambda: len(ledger.runs()) == 1, "it has run once")
    while not result.ready():
        assert not is_free(app, "until_done") or result.ready()
    wait_until(lambda: is_free(app, "until_done"), "it is done")


@pytest.mark.parametrize("on_conflict", ["ignore", "extend", "raise"])
def test_a_retry_whose_key_another_task_holds_is_a_failure(
    app: Celery, start: Any, ledger: Ledger, on_conflict: Any
) -> None:
    """Nobody else would tell those who wait for it."""
    mine = unique("waiting", on_conflict=on_conflict)
    result = app.tasks["try_again"].apply_async((1, 0.2), unique=mine)
    other = app.tasks["note"].apply_async(countdown=600, unique=mine)
    assert app.delayq.was_new(other)
    start(pool="prefork", concurrency=1)
    wait_until(result.ready, "it fails")
    assert result.state == "FAILURE"
    assert f"KeyHeld({KEY!r}, {other.id!r})" in repr(result.result)


@pytest.mark.parametrize("on_conflict", ["ignore", "extend", "raise", "replace"])
def test_a_retry_that_waits_already_is_no_conflict(
    app: Celery, start: Any, ledger: Ledger, broker_client: redis.Redis, on_conflict: Any
) -> None:
    """A task that runs again, because its worker was killed, retries again."""
    result = app.tasks["try_again"].apply_async((1, 600), unique=unique("until_done", on_conflict=on_conflict))
    name = list_for(broker_client, "celery")
    (message,) = broker_client.lrange(name, 0, -1)
    start(pool="prefork", concurrency=1)
    wait_until(lambda: app.delayq.get(result), "its retry waits")
    broker_client.lpush(name, message)
    after = app.tasks["note"].delay()
    after.get(timeout=20)
    assert len(ledger.runs()) == 3
    assert result.state == "RETRY"
    assert app.delayq.get(result)


def test_an_occurrence_is_left_out_while_another_task_has_its_key(app: Celery, start: Any, ledger: Ledger) -> None:
    other = app.tasks["note"].apply_async(countdown=3600, unique=KEY, priority=3)
    entry = {"task": "note", "schedule": 0.3, "args": ["periodic"], "options": {"unique": KEY}}
    start(pool="prefork", concurrency=1, conf={"beat_scheduler": "delayq", "beat_schedule": {"a": entry}})
    app.tasks["note"].apply_async(("five occurrences later",), countdown=1.5)
    wait_until(lambda: ledger.runs(), "the worker works")
    assert [run.note for run in ledger.runs()] == ["five occurrences later"]
    assert app.delayq.cancel(other)
    wait_until(lambda: len([run for run in ledger.runs() if run.note == "periodic"]) >= 3, "it runs")


@pytest.mark.parametrize(("task", "options"), [("note", {"expires": 0.05}), ("rejecting", {})])
@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_a_task_that_expired_or_was_rejected(
    app: Celery, start: Any, ledger: Ledger, pool: str, task: str, options: dict[str, Any]
) -> None:
    app.tasks[task].apply_async(unique=unique("until_done"), **options)
    assert not is_free(app, "until_done")
    start(pool=pool, concurrency=1)
    wait_until(lambda: is_free(app, "until_done"), "it is gone")


def test_a_task_that_fails(app: Celery, start: Any, ledger: Ledger) -> None:
    start(pool="prefork", concurrency=1)
    app.send_task("nowhere_to_be_found", unique=unique("until_done"))
    wait_until(lambda: is_free(app, "until_done"), "nobody knows the task, so it is discarded")


@pytest.mark.parametrize("for_", ["until_start", "until_done"])
def test_a_revoked_task(app: Celery, start: Any, ledger: Ledger, for_: str) -> None:
    first = app.tasks["gated"].apply_async(unique=unique(for_))
    worker = start(pool="prefork", concurrency=1)
    wait_until(lambda: ledger.runs(), "it runs")
    app.control.revoke(first.id, terminate=True, signal="SIGKILL")
    wait_until(lambda: is_free(app, for_), "it is done")
    assert not worker.has_ended


def test_a_warm_shutdown_puts_it_back_with_its_key(app: Celery, start: Any, ledger: Ledger) -> None:
    """Two tasks are reserved beside one that runs."""
    app.tasks["gated"].apply_async()
    worker = start(pool="prefork", concurrency=1)
    wait_until(lambda: ledger.runs(), "it runs")
    app.tasks["gated"].apply_async(unique=unique("until_start"))
    worker.send_signal(signal.SIGTERM)
    open_gate(ledger)
    assert worker.wait() == 0
    if len(ledger.runs()) == 1:
        assert not is_free(app, "until_start")
        start(pool="prefork", concurrency=1)
    wait_until(lambda: is_free(app, "until_start"), "it has started")

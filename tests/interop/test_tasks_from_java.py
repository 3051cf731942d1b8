"""Java offers, Celery runs: tasks that CeleryMessage.java builds."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
import redis

from celery_delayq import DelayedQueue
from tests.brokers import list_for
from tests.interop.conftest import NOT_LATE_MS, StartRedisson
from tests.interop.redisson import CURRENT, NEWEST, OLD, Redisson
from tests.ledger import ALL_WELL, Ledger
from tests.state import now_ms
from tests.support import wait_until
from tests.worker_app import publisher
from tests.workers import Worker

pytestmark = pytest.mark.on_cluster


def offer_task(redisson: Redisson, task: str, *args: Any, queue: str = "celery", **options: Any) -> tuple[str, int]:
    """Let Java offer a task; return its id and when it is due, unix time in ms."""
    task_id = str(uuid.uuid4())
    return task_id, redisson.call("task", queue, {"id": task_id, "task": task, "args": args, **options})


@pytest.fixture
def worker_urls(broker_url: str, ledger: Ledger) -> dict[str, str]:
    """The arguments of a worker that name its broker and its ledger."""
    return {"broker": broker_url, "ledger": ledger.url}


@pytest.mark.parametrize(
    ("version", "codec"),
    [
        (NEWEST, "string"),
        pytest.param(NEWEST, "bytes", marks=pytest.mark.one_server("the other codec and the old version do")),
        pytest.param(CURRENT, "string", marks=pytest.mark.one_server("see test_cluster.py")),
        (OLD, "bytes"),
    ],
)
def test_a_task_of_java_runs_on_time_with_its_arguments(
    start_redisson: StartRedisson,
    broker_client: redis.Redis,
    ledger: Ledger,
    worker_urls: dict[str, str],
    version: str,
    codec: str,
) -> None:
    redisson = start_redisson(version, codec)
    note = {"text": "grün \u2028 \x06", "none": None, "list": [1, 2.5, True, []], "map": {}}
    with Worker(**worker_urls):
        eta_ms = now_ms(broker_client) + 1500
        task_id, due_ms = offer_task(redisson, "note", eta_ms=eta_ms, kwargs={"value": note})
        assert due_ms == eta_ms
        wait_until(lambda: ledger.has([task_id]), "the task ran")
    assert ledger.verdict({task_id: due_ms}) == ALL_WELL
    run = ledger.run_of(task_id)
    assert run.note == note
    assert run.at_ms - due_ms < NOT_LATE_MS


def test_the_task_sees_its_eta_and_priority(newest: Redisson, ledger: Ledger, worker_urls: dict[str, str]) -> None:
    with Worker(**worker_urls):
        task_id, _ = offer_task(newest, "note_request", eta_ms=900_000_000_123, priority=3)
        wait_until(lambda: ledger.has([task_id]), "the task ran")
    assert ledger.run_of(task_id).note == {"eta": "1998-07-09T16:00:00.123000+00:00", "priority": 3}


def test_the_priority_decides_the_list(newest: Redisson, broker_client: redis.Redis) -> None:
    for priority in range(10):
        offer_task(newest, "note", queue="q", priority=priority, eta_ms=now_ms(broker_client) + 3_600_000)
    names = [list_for(broker_client, "q", step) for step in (0, 3, 6, 9)]
    assert [DelayedQueue(broker_client, name).size() for name in names] == [3, 3, 3, 1]


def test_an_expired_task_of_java_does_not_run(
    newest: Redisson, broker_client: redis.Redis, ledger: Ledger, worker_urls: dict[str, str]
) -> None:
    now = now_ms(broker_client)
    expired, _ = offer_task(newest, "note", eta_ms=now + 1000, expires_ms=now + 10)
    valid, _ = offer_task(newest, "note", eta_ms=now + 1500, expires_ms=now + 600_000)
    with Worker(**worker_urls):
        wait_until(lambda: ledger.has([valid]), "the task that is valid ran")
    assert not ledger.has([expired])


def test_the_result_of_a_task_of_java_is_found_by_its_id(
    newest: Redisson, ledger: Ledger, worker_urls: dict[str, str]
) -> None:
    with Worker(**worker_urls):
        task_id, _ = offer_task(newest, "add", 40, 2)
        wait_until(lambda: ledger.client.exists(f"celery-task-meta-{task_id}"), "its result is stored")
    assert b'"result": 42' in ledger.client.get(f"celery-task-meta-{task_id}")


def test_java_takes_back_what_java_offered_and_cancel_does_not_find_it(
    newest: Redisson, broker_client: redis.Redis, broker_url: str, ledger: Ledger
) -> None:
    """Redisson writes no index."""
    task_id, _ = offer_task(newest, "note", eta_ms=now_ms(broker_client) + 3_600_000)
    queue = DelayedQueue(broker_client, "celery")
    (entry,) = queue.peek()
    with publisher(broker_url, ledger.url) as app:
        assert not app.delayq.cancel(task_id)
    assert newest.call("remove", "celery", entry.payload)
    assert queue.size() == 0

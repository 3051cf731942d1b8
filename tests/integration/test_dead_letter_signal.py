"""The signal `dead_letter`: a worker tells of each message that is set aside, and of each failed task that is kept."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from celery import Celery

from celery_delayq.queue.keys import QueueKeys
from tests.brokers import list_for
from tests.integration.long_tasks import long_worker, told
from tests.ledger import Ledger
from tests.support import wait_until

pytestmark = [pytest.mark.on_cluster, pytest.mark.usefixtures("long_tasks", "empty_broker")]


def wait_until_told(ledger: Ledger) -> dict[str, Any]:
    wait_until(lambda: told(ledger), "it is told")
    (it,) = told(ledger)
    return it


def start(broker_url: str, ledger: Ledger, *, kept: bool = False) -> Any:
    conf = {"delayq_keep_failed": kept}
    return long_worker(broker=broker_url, ledger=ledger, concurrency=1, conf=conf, transport={"requeue_limit": 1})


def test_of_a_failed_task(app: Celery, broker_url: str, ledger: Ledger) -> None:
    with start(broker_url, ledger, kept=True):
        result = app.send_task("failing")
        it = wait_until_told(ledger)
    assert "Traceback" in it.pop("traceback")
    assert it == {
        "app": app.main,
        "queue": "celery",
        "reason": "failed",
        "task": "failing",
        "task_id": result.id,
        "error": "ValueError: no such order",
        "message": True,
    }


@pytest.mark.parametrize(
    ("task", "headers", "reason", "error"),
    [
        ("rejecting_again", {}, "delivery-limit", "its task has rejected its message 1 time"),
        ("note", {"timelimit": "soon"}, "invalid-task", "its timelimit must be two numbers, not 'soon'"),
    ],
)
def test_of_a_dead_letter(
    app: Celery, broker_url: str, ledger: Ledger, task: str, headers: dict[str, str], reason: str, error: str
) -> None:
    with start(broker_url, ledger):
        result = app.send_task(task, headers=headers)
        it = wait_until_told(ledger)
    assert it == {
        "app": app.main,
        "queue": "celery",
        "reason": reason,
        "task": task,
        "task_id": result.id,
        "error": error,
        "traceback": None,
        "message": True,
    }


def test_of_what_is_no_message_and_no_entry(
    app: Celery, broker_url: str, broker_client: redis.Redis, ledger: Ledger
) -> None:
    name = list_for(broker_client, "celery")
    with start(broker_url, ledger):
        broker_client.lpush(name, b"garbage")
        broker_client.zadd(QueueKeys.of(name).timeout_set, {b"garbage": 1})
        broker_client.publish(QueueKeys.of(name).channel, "1")
        wait_until(lambda: len(told(ledger)) == 2, "both are told", 20)
    assert {it["reason"]: it["message"] for it in told(ledger)} == {"not-a-message": True, "not-an-entry": False}

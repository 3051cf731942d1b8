"""Workers and Redisson transfer one Celery queue, with tasks from both sides, and either is killed in the middle."""

from __future__ import annotations

import uuid
from datetime import datetime, timezone

import pytest
import redis

from celery_delayq import DelayedQueue
from tests.interop.conftest import StartRedisson
from tests.interop.redisson import Redisson
from tests.ledger import Ledger
from tests.state import now_ms
from tests.support import wait_until
from tests.worker_app import publisher
from tests.workers import Worker

pytestmark = pytest.mark.on_cluster

one_is_enough = pytest.mark.one_server("it takes long; test_both_transfer.py kills Python's side of a cluster, too")

#: Tasks from each side, and when they are due, in ms from now.
COUNT, FIRST_MS, SPREAD_MS = 150, 8000, 2000


def publish_from_both(redisson: Redisson, client: redis.Redis, broker_url: str, ledger_url: str) -> dict[str, int]:
    """Publish tasks from both sides, in turns in due order; return task id -> due, unix time in ms."""
    start_ms = now_ms(client) + FIRST_MS
    promised = {}
    with publisher(broker_url, ledger_url) as app:
        for at in range(COUNT):
            due_ms = start_ms + SPREAD_MS * at // COUNT
            of_java, of_python = str(uuid.uuid4()), str(uuid.uuid4())
            redisson.ask("task", "celery", {"task": "late_ack", "id": of_java, "args": [], "eta_ms": due_ms})
            eta = datetime.fromtimestamp(due_ms / 1000, timezone.utc)
            app.tasks["late_ack"].apply_async(eta=eta, task_id=of_python)
            promised.update({of_java: due_ms, of_python: due_ms})
    for _ in range(COUNT):
        redisson.answer()
    assert now_ms(client) < start_ms, "too slow: something was due before all was published"
    return promised


@pytest.mark.parametrize(
    "killed", [pytest.param("nobody", marks=one_is_enough), "java", pytest.param("worker", marks=one_is_enough)]
)
def test_every_task_runs(
    start_redisson: StartRedisson, broker_client: redis.Redis, broker_url: str, ledger: Ledger, killed: str
) -> None:
    """Once, unless its worker was killed while it ran: late acknowledgement is at-least-once."""
    redisson = start_redisson()
    worker = {"broker": broker_url, "ledger": ledger.url, "conf": {"task_ignore_result": True}}
    with Worker(**worker) as first, Worker(**worker):
        promised = publish_from_both(redisson, broker_client, broker_url, ledger.url)
        wait_until(lambda: len(ledger.runs()) >= COUNT // 2, "it is in the middle", 30)
        {"nobody": lambda: None, "java": redisson.kill, "worker": first.kill}[killed]()
        if killed != "nobody":
            assert len(ledger.runs()) < 2 * COUNT, "too late: all had run"
        wait_until(lambda: ledger.has(promised), "all tasks ran", 60)
        wait_until(lambda: not broker_client.exists("celery"), "no message is left")
    verdict = ledger.verdict(promised)
    assert not verdict.lost
    assert not verdict.early
    assert killed == "worker" or not verdict.twice
    assert DelayedQueue(broker_client, "celery").size() == 0

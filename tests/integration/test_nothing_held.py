"""Workers hold no delayed task: not in memory, not as prefetched, not as scheduled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from celery import Celery

from celery_delayq import DelayedQueue
from tests.ledger import ALL_WELL, Ledger
from tests.support import wait_until
from tests.workers import Worker

pytestmark = pytest.mark.on_cluster

PENDING = 500


@pytest.fixture(scope="module")
def worker(broker_url: str, ledger_url: str) -> Iterator[Worker]:
    held_only = {"delayq_inspect_limit": 0}  # `inspect scheduled` shows what waits in Redis, too
    with Worker(pool="prefork", broker=broker_url, ledger=ledger_url, conf=held_only) as worker:
        yield worker


def ask(app: Celery, what: str) -> Any:
    """What the only worker answers to `celery inspect`."""
    replies = wait_until(lambda: getattr(app.control.inspect(timeout=2, limit=1), what)(), what)
    (answer,) = replies.values()
    return answer


def test_a_worker_holds_none_of_the_pending_tasks(
    broker_client: redis.Redis, app: Celery, worker: Worker, ledger: Ledger
) -> None:
    prefetch_count = ask(app, "stats")["prefetch_count"]
    pending = [app.tasks["note"].apply_async(countdown=600).id for _ in range(PENDING)]
    promised = {app.tasks["note"].apply_async(countdown=0.5).id: 0.0 for _ in range(20)}
    wait_until(lambda: ledger.has(promised), "those that are due ran", 20)
    app.tasks["note"].delay().get(timeout=20)

    assert ask(app, "scheduled") == []
    assert ask(app, "reserved") == []
    assert ask(app, "active") == []
    assert ask(app, "stats")["prefetch_count"] == prefetch_count
    assert broker_client.exists("celery", "unacked", "unacked_index") == 0
    assert DelayedQueue(broker_client, "celery").size() == PENDING
    assert all(app.delayq.cancel(task_id) for task_id in pending)
    assert ledger.verdict(promised) == ALL_WELL

"""A solo worker runs its tasks in the thread that also fetches and acknowledges."""

from __future__ import annotations

import json

import pytest
import redis
from celery import Celery

from tests.brokers import list_for
from tests.integration.long_tasks import in_flight, long_worker, message_of, node_of, open_gate, waits
from tests.ledger import Ledger
from tests.support import wait_until

pytestmark = pytest.mark.on_cluster


@pytest.fixture(autouse=True)
def clean(broker_client: redis.Redis) -> None:
    """An empty broker."""
    broker_client.flushall()


@pytest.mark.parametrize("task", ["gated_after", "gated_after_late"])
def test_a_task_is_acknowledged_before_the_next_one_begins(
    app: Celery, broker_url: str, broker_client: redis.Redis, ledger: Ledger, task: str
) -> None:
    """Also if their messages come at once, so that both begin in one turn of the event loop."""
    messages = [message_of(app, broker_client, task)[1] for _ in range(2)]
    with long_worker("-Qcelery,{celery}2", broker=broker_url, ledger=ledger) as worker:
        lists = [list_for(broker_client, name) for name in ("celery", "{celery}2")]
        wait_until(lambda: waits(broker_client, lists[0]) == 2, "it waits for messages of both queues")
        with node_of(broker_client, lists[0]).pipeline(transaction=True) as pipe:
            for name, message in zip(lists, messages, strict=True):
                pipe.lpush(name, message)
            pipe.execute()
        wait_until(lambda: len(ledger.runs()) == 2, "the second has begun")
        worker.kill()
    _, second = (run.task_id for run in ledger.runs())
    held = [raw for key in broker_client.scan_iter("delayq:inflight:*") for raw in broker_client.lrange(key, 0, -1)]
    assert [json.loads(raw)["headers"]["id"] for raw in held] == [second]
    open_gate(ledger)
    with long_worker("-Qcelery,{celery}2", broker=broker_url, ledger=ledger):
        wait_until(lambda: len(ledger.runs()) == 3 and in_flight(broker_client) == 0, "the second has run again")

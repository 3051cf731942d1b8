"""Broadcast queues: kombu's fanout is untouched, and what it delivers is acknowledged like all else."""

from __future__ import annotations

import pytest
import redis

from tests.integration.broadcast_app import APP, QUEUES, broadcast
from tests.integration.long_tasks import in_flight
from tests.integration.ready_app import APP as READY_APP
from tests.ledger import Ledger
from tests.support import wait_until
from tests.worker_app import publisher
from tests.workers import Worker

pytestmark = pytest.mark.on_cluster


def listeners(client: redis.Redis) -> int:
    """Return how many connections subscribe to patterns: two of each worker, for the queue and for remote control.

    A worker of stock Celery is ready a moment before it has them. What is broadcast then does not reach it.
    """
    return sum(connection["psub"] != "0" for connection in client.client_list())


@pytest.mark.parametrize("pool", ["solo", "prefork", "threads"])
def test_a_worker_that_is_ready_hears_what_is_broadcast(
    broker_url: str, broker_client: redis.Redis, ledger: Ledger, pool: str
) -> None:
    with Worker(broker=broker_url, ledger=ledger.url, app=READY_APP, pool=pool) as worker:
        worker.wait_for_log("New rate limit for tasks of type add: 7/m.")
        wait_until(ledger.runs, "the broadcast task runs")


@pytest.mark.parametrize("scheme", [pytest.param("redis", marks=pytest.mark.one_server("stock")), "delayq"])
def test_each_worker_runs_each_task_of_a_broadcast_queue_once(
    broker_url: str, ledger_url: str, broker_client: redis.Redis, ledger: Ledger, scheme: str
) -> None:
    conf = {"worker_prefetch_multiplier": 1}
    other = broker_url.replace("delayq", scheme)
    with (
        Worker(broker=broker_url, ledger=ledger.url, app=APP, conf=conf),
        Worker(broker=broker_url, ledger=ledger.url, app=APP, conf={**conf, "task_acks_late": True}),
        Worker(broker=other, ledger=ledger.url, app=APP, conf=conf),
        publisher(broker_url, ledger_url, **QUEUES) as app,
    ):
        wait_until(lambda: listeners(broker_client) == 3 * 2, "all listen")
        ids = broadcast(app, 20)
        ids += [app.tasks["process_id"].apply_async().id for _ in range(5)]
        wait_until(lambda: len(ledger.runs()) >= 3 * 20 + 5, "all run in all workers")
        runs = ledger.runs()
        of_each = {task_id: [run.note for run in runs if run.task_id == task_id] for task_id in ids}
        assert [len(pids) for pids in of_each.values()] == [3] * 20 + [1] * 5
        assert all(len(set(pids)) == len(pids) for pids in of_each.values())
        wait_until(lambda: in_flight(broker_client) == 0, "all are acknowledged")

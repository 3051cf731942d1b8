"""A killed worker costs one grace period of lateness; nothing that waits is lost, run twice or early."""

from __future__ import annotations

import time

import pytest
import redis

from celery_delayq import DelayedQueue
from tests.brokers import Server
from tests.conftest import nothing_astray
from tests.ledger import ALL_WELL, Ledger
from tests.support import wait_until
from tests.worker_app import publisher
from tests.workers import Worker

__all__ = ["nothing_astray"]

pytestmark = pytest.mark.on_cluster


@pytest.fixture
def broker(steady_broker: Server) -> Server:
    """Workers are killed, the broker is not."""
    return steady_broker


def punctual(client: redis.Redis) -> str:
    """The id of the loop that transfers `celery` punctually."""
    recorded = client.get(DelayedQueue(client, "celery").keys.transferrer)
    return recorded.decode() if isinstance(recorded, bytes) else ""


@pytest.mark.thorough
def test_the_punctual_worker_is_killed_while_tasks_become_due(broker: Server, broker_url: str, ledger: Ledger) -> None:
    """It consumes another queue, so that what stock BRPOP may lose plays no part."""
    conf = {"delayq_transfer_grace": 2}  # on a busy machine, the other one would take over while it lives
    with (
        publisher(broker_url, ledger.url) as app,
        broker.client() as client,
        Worker("-Q", "other", broker=broker_url, ledger=ledger.url, conf=conf) as victim,
    ):
        app.tasks["note"].apply_async(countdown=2, task_id="first")
        wait_until(lambda: f":{victim.pid}:" in punctual(client), "it is the punctual one")
        with Worker(broker=broker_url, ledger=ledger.url, conf=conf) as survivor:
            start = time.time()
            promised: dict[str, float] = {"first": 0}
            for number in range(300):
                countdown = 1 + number / 100
                result = app.tasks["note"].apply_async(countdown=countdown)
                promised[result.id] = (start + countdown) * 1000
            wait_until(lambda: len(ledger.runs()) > 50, "some ran", 20)
            assert f":{victim.pid}:" in punctual(client)
            victim.kill()
            wait_until(lambda: ledger.has(promised), "all ran", 20)
            assert f":{survivor.pid}:" in punctual(client)
    assert ledger.verdict(promised) == ALL_WELL


def test_the_only_worker_is_killed_and_the_next_one_runs_what_waited(
    broker: Server, broker_url: str, ledger: Ledger
) -> None:
    with publisher(broker_url, ledger.url) as app, broker.client() as client:
        with Worker(pool="prefork", broker=broker_url, ledger=ledger.url) as victim:
            app.tasks["note"].apply_async(countdown=0.2).get(timeout=20)
            wait_until(lambda: not client.exists("unacked"), "it is acknowledged")
            ledger.clear()
            due = time.time() + 1.5
            promised = {app.tasks["note"].apply_async(countdown=1.5).id: due * 1000 for _ in range(50)}
            victim.kill()
        assert DelayedQueue(client, "celery").size() == 50
        with Worker(pool="prefork", broker=broker_url, ledger=ledger.url):
            wait_until(lambda: ledger.has(promised), "all ran", 20)
    assert ledger.verdict(promised) == ALL_WELL

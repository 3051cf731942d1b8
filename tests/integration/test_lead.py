"""Tasks reach a worker before they are due. It holds a few of them, and runs none early."""

from __future__ import annotations

import time

import pytest
from celery import Celery

from celery_delayq import DelayedQueue
from tests.integration.long_tasks import in_flight
from tests.ledger import ALL_WELL, Ledger
from tests.workers import Worker

pytestmark = pytest.mark.on_cluster

#: As many as a worker with one process fetches.
PREFETCH = 4

#: Longest lead, in seconds.
LEAD_S = 0.1


def test_a_worker_holds_no_more_than_its_prefetch_limit(
    app: Celery, waiting: DelayedQueue, broker_url: str, ledger: Ledger
) -> None:
    conf = {"delayq_transfer_lead": LEAD_S, "worker_prefetch_multiplier": PREFETCH}
    promised: dict[str, float] = {}
    most = 0
    with Worker(broker=broker_url, ledger=ledger.url, conf=conf, pool="prefork", concurrency=1) as worker:
        worker.wait_for_log("Transfer of delayed messages: connected")
        while most < PREFETCH:  # on a busy machine, we may look too late
            due = time.time() + 1
            for _ in range(20):
                promised[app.tasks["note"].apply_async(countdown=due - time.time()).id] = due * 1000
            while time.time() < due - 0.005:
                held = in_flight(waiting.client)
                if time.time() < due:
                    most = max(most, held)
                assert most <= PREFETCH
        while not ledger.has(promised):
            time.sleep(0.05)
    assert ledger.verdict(promised) == ALL_WELL

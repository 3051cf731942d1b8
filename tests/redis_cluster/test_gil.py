"""A task that keeps the GIL for longer than the lease of its worker, while the slot of its queue moves."""

from __future__ import annotations

import sys

import pytest

from tests.integration.long_tasks import in_flight, long_worker, open_gate
from tests.ledger import Ledger
from tests.redis_cluster.routing import other_than
from tests.redis_cluster.servers import Cluster, slot_of
from tests.support import wait_until
from tests.worker_app import publisher

LEASE = {"lease": 2}
GIL_S = 7


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells which processes run")
def test_it_runs_once(cluster: Cluster, ledger: Ledger) -> None:
    """Its consumer is subscribed at the node that had the slot."""
    with (
        publisher(cluster.url(), ledger.url) as app,
        long_worker(pool="solo", broker=cluster.url(), ledger=ledger, transport=LEASE),
    ):
        task_id = app.send_task("hold_gil", (GIL_S,)).id
        wait_until(lambda: ledger.has([task_id]), "it runs")
        there = other_than(cluster, cluster.owner("celery"))
        cluster.move(slot_of("celery"), there)
        with long_worker(broker=cluster.url(), ledger=ledger, transport=LEASE):
            open_gate(ledger)
            wait_until(lambda: in_flight(there.client) == 0, "it is acknowledged")
    assert [run.task_id for run in ledger.runs()] == [task_id]

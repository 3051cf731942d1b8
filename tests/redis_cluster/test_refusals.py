"""A node that refuses something for now holds up its own queues only, and ends no worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from celery import Celery

from celery_delayq.queue.keys import registry
from tests.integration.long_tasks import in_flight, long_worker, open_gate
from tests.ledger import Ledger
from tests.redis_cluster.servers import Cluster, ClusterNode
from tests.refusing import refusing
from tests.support import wait_until
from tests.worker_app import publisher
from tests.workers import Worker

#: Seconds. Refusals last longer than a lease.
LEASE_S = 2.0


@pytest.fixture
def app(cluster: Cluster, ledger: Ledger) -> Iterator[Celery]:
    with publisher(cluster.url(3), ledger.url) as app:
        yield app


@pytest.fixture(params=["bindings", "registry", "first"])
def refuser(cluster: Cluster, request: pytest.FixtureRequest) -> ClusterNode:
    """The node that refuses: that of kombu's bindings, that of the registry, or the one where workers subscribe."""
    keys = {"bindings": "{_kombu.binding}", "registry": registry("")}
    return cluster.owner(keys[request.param]) if request.param in keys else cluster.nodes[0]


def worker_for(cluster: Cluster, ledger: Ledger, queues: list[str], pool: str = "prefork") -> Worker:
    return long_worker(
        *("-Q", ",".join(queues)),
        broker=cluster.url(3),
        ledger=ledger,
        pool=pool,
        concurrency=4,
        gossip=True,
        transport={"lease": LEASE_S},
    )


@pytest.mark.parametrize("word", ["NOREPLICAS", "OOM"])
def test_under_running_and_starting_workers(
    cluster: Cluster, app: Celery, ledger: Ledger, refuser: ClusterNode, word: str
) -> None:
    queues = [cluster.key_of(node) for node in cluster.nodes]
    held, *others = sorted(queues, key=lambda queue: cluster.owner(queue) is not refuser)
    with worker_for(cluster, ledger, queues, "threads") as running:
        began = app.send_task("gated_late", queue=held).id
        wait_until(lambda: ledger.runs(), "it runs")
        with refusing(refuser.client, word, 1.5 * LEASE_S):
            there = [app.tasks["note"].apply_async(queue=q, countdown=at).id for q in others for at in (None, 1)]
            with worker_for(cluster, ledger, queues) as starting:
                wait_until(lambda: ledger.has(there), "the queues of other nodes go on")
                open_gate(ledger)
                last = app.tasks["note"].apply_async(queue=others[0]).id
                wait_until(lambda: ledger.has([last]), "they still do")
                check(starting, running)
        after = app.tasks["note"].apply_async(queue=held).id
        wait_until(lambda: ledger.has([after]), "its queues go on afterwards")
        wait_until(lambda: sum(in_flight(node.client) for node in cluster.nodes) == 0, "all are acknowledged")
        assert len([run for run in ledger.runs() if run.task_id == began]) == 1
        said = running.log.count(f"Redis node {refuser.address} refuses some commands for now: {word} ")
        assert said == 1 or (said == 0 and word == "OOM"), "what waits already takes no memory"
        check(running)


def check(*workers: Worker) -> None:
    """Nothing disturbed them."""
    for worker in workers:
        for complaint in ("Traceback", "Connection to broker lost", "Its queues wait"):
            assert complaint not in worker.log

"""A node that has no connection left: the worker says so, and goes on with those that it has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import redis
from kombu import pools

from celery_delayq.transport.known import known
from tests.ledger import Ledger
from tests.redis_cluster import servers
from tests.redis_cluster.servers import Cluster, ClusterNode
from tests.support import wait_until
from tests.worker_app import publisher
from tests.workers import Worker

REACHED = "has no connection left for this worker"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """One of its own: no connection of another test comes or goes."""
    with servers.cluster() as cluster:
        yield cluster


def connections(node: ClusterNode) -> int:
    """How many count for the limit: those of clients, and two for each other node."""
    return len(node.client.client_list()) + 2 * (len(node.rows()) - 1)


@contextmanager
def limited(node: ClusterNode, limit: int) -> Iterator[None]:
    """Let a node have so many connections at most while the block lasts; those that there are stay."""
    before = node.client.config_get("maxclients")["maxclients"]
    node.client.config_set("maxclients", limit)
    try:
        yield
    finally:
        node.client.config_set("maxclients", before)


def wanted(cluster: Cluster, node: ClusterNode, ledger: Ledger) -> int:
    """How many connections to a node a worker opens if it may. One of them may be due to chance."""
    before = connections(node)
    ledger.clear()
    with Worker(broker=cluster.url(3), ledger=ledger.url) as worker, publisher(cluster.url(3), ledger.url) as app:
        worker.wait_for_log("Transfer of delayed messages: connected", times=len(cluster.masters()))
        worker.wait_for_log("Lease renewal of consumer")
        ids = [app.tasks["note"].apply_async(countdown=countdown).id for countdown in (None, 1.0)]
        wait_until(lambda: ledger.has(ids), "it has all that it needs")
        pools.reset()  # the publisher's connections
        wait_until(lambda: has_all(node), "it waits on the list of its queue, and listens for the other lists")
        found = connections(node) - before
    wait_until(lambda: connections(node) == before, "its connections are gone")
    return found


def has_all(node: ClusterNode) -> bool:
    """Whether a worker has the connections to a node that it opens last."""
    clients = node.client.info("clients")
    return bool(clients["blocked_clients"] == clients["tracking_clients"] == 1)


def log_of_a_worker(cluster: Cluster, node: ClusterNode, ledger: Ledger, count: int) -> str:
    """Let a worker have so many connections to a node; return its log when all tasks have run."""
    ledger.clear()
    with publisher(cluster.url(3), ledger.url) as app:
        note = app.tasks["note"]
        first = note.apply_async().id
        before = connections(node)
        with (
            limited(node, before + count),
            Worker(broker=cluster.url(3), ledger=ledger.url) as worker,
        ):
            wait_until(lambda: ledger.has([first]), "the first has run")
            ids = [note.apply_async(countdown=countdown).id for countdown in (None, 0.2, None, 1.0)]
            wait_until(lambda: ledger.has(ids), "all have run")
            wait_until(lambda: REACHED in worker.log or has_all(node), "it lacks a connection, or has them all")
            log = worker.log
        wait_until(lambda: connections(node) <= before, "its connections are gone")
        return log


def test_a_worker_goes_on_with_the_connections_that_it_has(cluster: Cluster, ledger: Ledger) -> None:
    node = cluster.owner("celery")
    most = wanted(cluster, node, ledger)
    logs = (log_of_a_worker(cluster, node, ledger, count) for count in (most - 1, most - 2))
    log = next((log for log in logs if REACHED in log), "")
    assert log.count(REACHED) == 1
    assert "Traceback" not in log
    assert log.count("is lost: ") < 3, "it does not begin anew again and again"


def test_the_queues_of_other_nodes_go_on_while_one_is_full(cluster: Cluster, ledger: Ledger) -> None:
    """Whether or not the worker consumes from the full one."""
    queues = {cluster.owner(name): name for name in map("q{}".format, range(50))}
    full = cluster.masters()[0]
    others = [queue for node, queue in queues.items() if node is not full]
    url = ";".join(f"delayq+cluster://{node.address}" for node in queues if node is not full)
    with (
        publisher(cluster.url(3), ledger.url) as app,
        limited(full, connections(full)),
        Worker("-Q", ",".join(queues.values()), broker=url, ledger=ledger.url) as worker,
    ):
        ids = [app.tasks["note"].apply_async(queue=queue, countdown=c).id for queue in others for c in (None, 0.5)]
        wait_until(lambda: ledger.has(ids), "all of the others run", 20)
        worker.wait_for_log(f"Redis node {full.address} has no connection left")
        assert worker.log.count("has no connection left") == 1


def test_a_node_that_is_full_is_not_taken_for_one_that_refuses_a_command(cluster: Cluster) -> None:
    """redis-py knows what a single server says, and reads over what a node says while it connects."""
    node = cluster.nodes[0]
    connection = known(redis.Connection)(host="127.0.0.1", port=node.port)
    with limited(node, 1), pytest.raises(redis.ConnectionError, match="max number of clients"):
        connection.connect()
    connection.disconnect()

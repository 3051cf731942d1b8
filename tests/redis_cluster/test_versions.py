"""Tasks on clusters of each kind of Redis on this machine, while slots move and masters change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import redis
from kombu.exceptions import OperationalError

from examples.private_redis import PrivateRedis
from tests.ledger import Ledger
from tests.redis_cluster import servers
from tests.redis_cluster.publishing import Publishing
from tests.redis_cluster.servers import Cluster, slot_of
from tests.support import servers as available
from tests.support import wait_until
from tests.worker_app import publisher
from tests.workers import Worker

SERVERS = available()

#: On all nodes.
QUEUES = [f"q{number}" for number in range(6)]

_ENDPOINT = "--cluster-preferred-endpoint-type"

#: What makes nodes announce themselves otherwise than by address, and which host they say then.
ENDPOINTS = {
    "unknown": ((_ENDPOINT, "unknown-endpoint"), None),
    "hostname": ((_ENDPOINT, "hostname", "--cluster-announce-hostname", "localhost"), b"localhost"),
}


@contextmanager
def worker_on(url: str, ledger: Ledger) -> Iterator[tuple[Any, Worker]]:
    """An app that publishes, and a worker; their results are in the cluster, too."""
    conf = {"result_backend": url}
    with (
        publisher(url, ledger.url, **conf) as app,
        Worker("-Q", ",".join(QUEUES), pool="threads", broker=url, ledger=ledger.url, conf=conf) as worker,
    ):
        yield app, worker


def other_than(cluster: Cluster, key: str) -> servers.ClusterNode:
    """Return a master that does not have a key."""
    return next(node for node in cluster.masters() if node is not cluster.owner(key))


@pytest.mark.parametrize("server", SERVERS)
def test_a_slot_moves_and_masters_change(server: str, ledger: Ledger) -> None:
    settings = ("--cluster-node-timeout", "3000")
    with (
        servers.cluster(replicas=1, server=SERVERS[server], settings=settings) as cluster,
        worker_on(cluster.url(6), ledger) as (app, worker),
    ):
        with Publishing(app, ledger, QUEUES) as published:
            cluster.move(slot_of("q0"), other_than(cluster, "q0"))
            published.go_on()
            cluster.failover(cluster.owner("q1"))
            published.go_on()
        published.all_ran_once()
        # Without load, since what a replica did not get yet is lost with its master.
        victim = cluster.owner("q2")
        assert victim.client.wait(1, 20_000) == 1
        victim.kill()

        def publish() -> Any:
            # It is also the node of some results.
            with suppress(OperationalError, redis.ConnectionError):
                return app.tasks["add"].apply_async((1, 2), queue="q2").get(timeout=30)
            return None

        assert wait_until(publish, "the replica takes over", 60) == 3
        assert "Traceback" not in worker.log


@pytest.mark.parametrize("server", SERVERS)
def test_a_slot_moves_to_and_fro_at_once(server: str, ledger: Ledger) -> None:
    """Some servers move a slot with all its keys in one step: no command meets half of them."""
    with servers.cluster(server=SERVERS[server], settings=("--cluster-node-timeout", "15000")) as cluster:
        if not cluster.moves_at_once:
            pytest.skip(f"{SERVERS[server]} cannot")
        with worker_on(cluster.url(3), ledger) as (app, worker):
            with Publishing(app, ledger, QUEUES[:2]) as published:
                for number in range(6):
                    cluster.move_at_once(slot_of(QUEUES[number % 2]), other_than(cluster, QUEUES[number % 2]))
                    published.go_on()
            published.all_ran_once()
            assert "Traceback" not in worker.log


@pytest.fixture(params=ENDPOINTS)
def cloud(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster whose nodes say no address, or a host name."""
    settings, said = ENDPOINTS[request.param]
    try:
        with PrivateRedis(*settings):
            pass
    except RuntimeError as error:
        pytest.skip(f"this server is older than 7.0: {error}")
    with servers.cluster(settings=("--cluster-node-timeout", "15000", *settings)) as cluster:
        assert {row[2][0] for row in cluster.nodes[0].client.execute_command("CLUSTER", "SLOTS")} == {said}
        yield cluster


def test_nodes_need_not_say_their_addresses(cloud: Cluster, ledger: Ledger) -> None:
    """As in clouds, where a host name leads to any of the nodes."""
    with worker_on(f"delayq+cluster://localhost:{cloud.nodes[1].port}", ledger) as (app, worker):
        with Publishing(app, ledger, QUEUES) as published:
            cloud.move(slot_of("q0"), other_than(cloud, "q0"))
            published.go_on()
        published.all_ran_once()
        assert app.tasks["add"].apply_async((1, 2), queue="q0").get(timeout=30) == 3
        assert "Traceback" not in worker.log


def test_a_large_queue_moves(cluster: Cluster, ledger: Ledger) -> None:
    """With ready and delayed tasks, while more are published and a worker runs them."""
    queue, count = "q0", 3000
    conf = {"task_ignore_result": True}
    with publisher(cluster.url(3), ledger.url, **conf) as app:
        note = app.tasks["note"]

        def fill(countdown: float | None) -> list[str]:
            many = (note.s("x" * 100).set(queue=queue, countdown=countdown) for _ in range(count))
            return [result.id for result in app.delayq.apply_async_many(many)]

        delayed, ready = fill(3600), fill(None)
        with Worker("-Q", queue, pool="threads", broker=cluster.url(3), ledger=ledger.url, conf=conf):
            with Publishing(app, ledger, [queue]) as published:
                for _ in range(3):
                    cluster.move(slot_of(queue), other_than(cluster, queue))
                    published.go_on()
            published.all_ran_once(*ready)
        assert sorted(task.id for task in app.delayq.iter_scheduled()) == sorted(delayed)

"""What happens to one node concerns only its own queues: with real workers, and a real failover."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from celery.result import AsyncResult
from kombu.exceptions import OperationalError

from celery_delayq.cluster.topology import Topology
from celery_delayq.queue.keys import QueueKeys
from celery_delayq.queue.orphans import Orphan
from examples.private_redis import PrivateRedis
from tests.brokers import ClusterServer
from tests.ledger import Ledger
from tests.redis_cluster import servers
from tests.redis_cluster.routing import addresses_of, pool_for
from tests.redis_cluster.servers import Cluster
from tests.support import wait_until
from tests.worker_app import publisher
from tests.workers import Worker

#: On all nodes.
QUEUES = [f"q{number}" for number in range(6)]


class Tasks:
    """Tasks that were published, and those that ran."""

    def __init__(self, app: Any, ledger: Ledger) -> None:
        self._app, self._ledger = app, ledger
        self._confirmed: set[str] = set()

    def publish(self, queues: list[str]) -> None:
        """Publish two tasks to each queue: one for now, and one for a second later."""
        for queue in queues:
            for countdown in (None, 1):
                self._confirmed.add(self._app.tasks["note"].apply_async(queue=queue, countdown=countdown).id)

    def is_published(self, queues: list[str]) -> bool:
        """Publish, and return whether that was possible."""
        with suppress(OperationalError):
            self.publish(queues)
            return True
        return False

    def wait(self, description: str) -> None:
        """Wait until all that was confirmed ran."""
        wait_until(lambda: {run.task_id for run in self._ledger.runs()} >= self._confirmed, description)

    def check_once(self) -> None:
        """None may have run twice."""
        ran = [run.task_id for run in self._ledger.runs()]
        assert len(ran) == len(set(ran)), "none ran twice"


@contextmanager
def cluster_with_replicas(redis_server: PrivateRedis) -> Iterator[tuple[Cluster, Ledger]]:
    """A cluster whose replicas take over 3 to 6 s after their master died, and an empty ledger."""
    ledger = Ledger(f"redis://127.0.0.1:{redis_server.port}/9")
    ledger.clear()
    with servers.cluster(replicas=1, settings=("--cluster-node-timeout", "3000")) as cluster:
        yield cluster, ledger
    ledger.client.close()


def check_quiet(worker: Worker) -> None:
    """The worker lost a node, but not its connection as a whole."""
    assert "Connection to broker lost" not in worker.log
    assert "Traceback" not in worker.log


@pytest.mark.parametrize(
    ("pool", "key"),
    [("solo", "q0"), ("threads", "q0"), ("solo", "{_kombu.binding}"), ("prefork", "{_kombu.binding}")],
    ids=["solo-registry", "threads-registry", "solo-bindings", "prefork-bindings"],
)
def test_a_master_dies_and_its_replica_takes_over(redis_server: PrivateRedis, pool: str, key: str) -> None:
    with cluster_with_replicas(redis_server) as (cluster, ledger), publisher(cluster.url(3), ledger.url) as app:
        victim = cluster.owner(key)
        others = [queue for queue in QUEUES if cluster.owner(queue) is not victim]
        tasks = Tasks(app, ledger)
        with Worker("-Q", ",".join(QUEUES), pool=pool, broker=cluster.url(3), ledger=ledger.url) as worker:
            tasks.publish(others)
            victim.kill()
            tasks.publish(others)  # the other nodes go on
            tasks.wait("the tasks of the other nodes ran")
            wait_until(lambda: tasks.is_published(QUEUES), "the replica takes over")
            tasks.wait("all tasks ran")
            tasks.check_once()
            check_quiet(worker)


@pytest.mark.parametrize("key", ["q0", "{_kombu.binding}"], ids=["registry", "bindings"])
def test_a_worker_starts_while_a_node_is_away(redis_server: PrivateRedis, key: str) -> None:
    with cluster_with_replicas(redis_server) as (cluster, ledger), publisher(cluster.url(3), ledger.url) as app:
        victim = cluster.owner(key)
        others = [queue for queue in QUEUES if cluster.owner(queue) is not victim]
        victim.kill()
        tasks = Tasks(app, ledger)
        with Worker("-Q", ",".join(QUEUES), broker=cluster.url(3), ledger=ledger.url) as worker:
            tasks.publish(others)
            tasks.wait("the tasks of the other nodes ran")
            wait_until(lambda: tasks.is_published(QUEUES), "the replica takes over")
            tasks.wait("all tasks ran")
            # What could not be bound at the start is bound now: messages are routed by topic.
            exchange = app.amqp.queues["q0"].exchange.name
            with app.connection_for_write() as connection:
                wait_until(
                    lambda: {row[2] for row in connection.default_channel.get_table(exchange)} >= {"q0"},
                    "the bindings were written",
                )
            tasks.check_once()
            check_quiet(worker)


_COMPUTES = """
from gevent import monkey; monkey.patch_all()
import os, socket, sys
from contextlib import suppress
from celery import Celery
from celery_delayq import DelayQ

app = Celery(broker=sys.argv[1])
DelayQ(app)
with app.connection_for_read() as connection, app.amqp.TaskConsumer(connection.default_channel):
    while not os.path.exists(sys.argv[2]):
        with suppress(socket.timeout):
            connection.drain_events(timeout=0.1)
    print("computes", flush=True)
    sys.stdin.read()  # gives way to no greenlet
"""


def test_a_process_leaves_a_former_master_while_a_greenlet_computes(redis_server: PrivateRedis, tmp_path: Path) -> None:
    with cluster_with_replicas(redis_server) as (cluster, _):
        master = cluster.owner("celery")

        def connected() -> set[str]:
            return {one["id"] for one in master.client.client_list(_type="normal")} - others

        others: set[str] = set()
        others = connected()
        consumes = tmp_path / "consumes"
        program = [sys.executable, "-c", _COMPUTES, cluster.url(3), str(consumes)]
        with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            try:
                wait_until(lambda: len(connected()) > 3, "it waits for messages")
                consumes.touch()
                assert process.stdout
                assert process.stdout.readline() == b"computes\n"
                before = connected()
                cluster.failover(master)
                wait_until(lambda: not before & connected(), "it has left the former master")
            finally:
                process.kill()


def test_tasks_of_other_nodes_can_be_changed_while_one_is_lost(redis_server: PrivateRedis) -> None:
    ledger = f"redis://127.0.0.1:{redis_server.port}/9"
    with servers.cluster() as cluster, publisher(cluster.url(3), ledger) as app:
        note = app.tasks["note"]
        ids = {queue: note.apply_async(queue=queue, countdown=3600).id for queue in QUEUES}
        registry = cluster.owner("delayq:queues")
        lost = next(node for node in map(cluster.owner, QUEUES) if node is not registry)
        there = [queue for queue in QUEUES if cluster.owner(queue) is lost]
        lost.kill()
        for queue in QUEUES:
            if queue in there:
                with pytest.raises(OperationalError):
                    app.delayq.cancel(ids[queue])
            else:
                assert app.delayq.cancel(ids[queue])
        with pytest.raises(OperationalError):
            app.control.revoke(ids[there[0]])


def test_a_lost_node_hears_no_application() -> None:
    """Those of other nodes are heard all the same."""
    with servers.cluster() as cluster, ClusterServer(cluster).client() as client:
        keys = QueueKeys.of("jobs")
        home = cluster.owner("jobs")
        with home.client.pubsub() as pubsub:
            pubsub.subscribe(keys.channel)
            pubsub.get_message(timeout=5)
            client.get("jobs")  # it knows the nodes
            next(node for node in cluster.masters() if node is not home).kill()
            assert Orphan.look(client, "jobs").listeners == 1


@contextmanager
def awaited(result: AsyncResult) -> Iterator[list[Any]]:
    """Await a result in another thread, which has begun to wait before the block; give the list that it comes to."""
    got: list[Any] = []
    is_waiting = threading.Event()
    waiting = threading.Thread(target=lambda: got.append(result.get(timeout=60, on_interval=is_waiting.set)))
    waiting.start()
    assert is_waiting.wait(30)
    yield got
    waiting.join(90)


@pytest.mark.parametrize("pool", ["solo", "threads"])
def test_a_result_arrives_though_its_node_dies(redis_server: PrivateRedis, pool: str) -> None:
    """The node has the result, and it is awaited there. The task runs before a replica takes over."""
    with cluster_with_replicas(redis_server) as (cluster, ledger):
        conf = {"result_backend": cluster.url(3)}
        with (
            publisher(cluster.url(3), ledger.url, **conf) as app,
            Worker("-Q", ",".join(QUEUES), pool=pool, broker=cluster.url(3), ledger=ledger.url, conf=conf),
        ):
            add = app.tasks["add"]
            assert add.apply_async((1, 1), queue="q0").get(timeout=30) == 2
            home = app.backend.client.router.node_for(None).address
            victim = next(node for node in cluster.nodes if node.port == home.port)
            queue = next(queue for queue in QUEUES if cluster.owner(queue) is not victim)
            ids = (str(uuid4()) for _ in range(1000))
            task_id = next(it for it in ids if cluster.owner(app.backend.get_key_for_task(it)) is victim)
            result = add.apply_async((2, 2), queue=queue, task_id=task_id, countdown=3)
            with awaited(result) as got:
                victim.kill()
            assert got == [4]


def test_results_are_awaited_at_another_node_if_one_hangs(redis_server: PrivateRedis) -> None:
    """Its connection is not ended, so nothing tells but the others."""
    with cluster_with_replicas(redis_server) as (cluster, ledger):
        conf = {"result_backend": cluster.url(3)}
        with (
            publisher(cluster.url(3), ledger.url, **conf) as app,
            publisher(cluster.url(3), ledger.url, **conf) as other,
        ):
            home = app.backend.client.router.node_for(None).address
            victim = next(node for node in cluster.nodes if node.port == home.port)
            ids = (str(uuid4()) for _ in range(1000))
            task_id = next(it for it in ids if cluster.owner(app.backend.get_key_for_task(it)) is not victim)
            with awaited(AsyncResult(task_id, app=app)) as got:
                victim.suspend()
                wait_until(lambda: len(cluster.masters()) == 3, "a replica takes over")
                other.backend.store_result(task_id, 4, "SUCCESS")
            assert got == [4]
            victim.resume()


def test_all_nodes_of_the_url_are_dead() -> None:
    """A process that has known the others finds them, also with a new connection."""
    with servers.cluster() as own:
        seeds = addresses_of(own)[:1]
        with closing(Topology(seeds, pool_for)) as topology:
            topology.masters()
        own.nodes[0].kill()
        with closing(Topology(seeds, pool_for)) as topology:
            assert {node.address for node in topology.masters()} >= set(addresses_of(own)[1:])


def test_a_paused_queue_whose_master_is_replaced_is_resumed(redis_server: PrivateRedis) -> None:
    """A worker that consumes nothing else still hears of it, at the successor."""
    with cluster_with_replicas(redis_server) as (cluster, ledger), publisher(cluster.url(3), ledger.url) as app:
        elsewhere = cluster.owner("delayq:paused")
        queue = next(name for name in QUEUES if cluster.owner(name) is not elsewhere)
        with Worker("-Q", queue, broker=cluster.url(3), ledger=ledger.url) as worker:
            app.tasks["note"].apply_async(queue=queue)
            wait_until(ledger.runs, "it runs")
            app.delayq.pause(queue)
            worker.wait_for_log(f"Queue {queue!r} is paused")
            cluster.failover(cluster.owner(queue))
            wait_until(
                lambda: any(queue in it.queues for it in app.delayq.consumers(partial=True).consumers),
                "it has leases at the successor",
            )
            sent = app.tasks["note"].apply_async(queue=queue)
            app.delayq.resume(queue)
            wait_until(lambda: ledger.has([sent.id]), "it runs")

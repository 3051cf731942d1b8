"""A node that hangs holds up nothing of the other nodes. Its connections stay open, but it does not answer.

Timeouts of connections are so long here that whoever waits for the node fails the test.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import kombu
import pytest

import celery_delayq
from celery_delayq import DelayedQueue
from examples.private_redis import PrivateRedis
from tests.fetching.reading import Reader, queue
from tests.fetching.test_expiring_queues import kombu_5_7
from tests.integration.publishing import LATER
from tests.ledger import Ledger
from tests.redis_cluster import servers
from tests.redis_cluster.servers import Cluster, ClusterNode
from tests.support import wait_until
from tests.worker_app import publisher
from tests.workers import Worker

#: On all nodes.
QUEUES = [f"q{number}" for number in range(6)]

CONF = {"broker_transport_options": {"socket_timeout": 300}}


@contextmanager
def patient_cluster(redis_server: PrivateRedis) -> Iterator[tuple[Cluster, Ledger]]:
    """A cluster in which no node is taken for dead, and an empty ledger."""
    ledger = Ledger(f"redis://127.0.0.1:{redis_server.port}/9")
    ledger.clear()
    with servers.cluster(settings=("--cluster-node-timeout", "300000")) as cluster:
        yield cluster, ledger
    ledger.client.close()


@contextmanager
def suspended(node: ClusterNode) -> Iterator[None]:
    node.suspend()
    try:
        yield
    finally:
        node.resume()


def publish(app: Any, queues: list[str], times: int = 1) -> set[str]:
    """Publish tasks to each queue: for now, and for a second later."""
    note = app.tasks["note"]
    return {
        note.apply_async(queue=queue, countdown=countdown).id
        for queue in queues
        for countdown in (None, 1)
        for _ in range(times)
    }


def ran(ledger: Ledger) -> list[str]:
    return [run.task_id for run in ledger.runs()]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("pool", "key"),
    [
        pytest.param("threads", "q0", id="threads-registry"),
        pytest.param("solo", "q0", id="solo-registry"),
        pytest.param("prefork", "q0", id="prefork-registry"),
        pytest.param("threads", "{_kombu.binding}", id="threads-bindings"),
        pytest.param("solo", "q5", id="solo-neither"),
    ],
)
def test_a_worker_goes_on_with_the_queues_of_other_nodes(redis_server: PrivateRedis, pool: str, key: str) -> None:
    with patient_cluster(redis_server) as (cluster, ledger), publisher(cluster.url(3), ledger.url, **CONF) as app:
        victim = cluster.owner(key)
        others = [queue for queue in QUEUES if cluster.owner(queue) is not victim]
        there = [queue for queue in QUEUES if queue not in others]
        assert others
        assert there
        publish(app, QUEUES)  # the publisher knows all queues
        with Worker("-Q", ",".join(QUEUES), pool=pool, broker=cluster.url(3), ledger=ledger.url, conf=CONF) as worker:
            wait_until(lambda: ran(ledger), "it runs tasks")
            waiting = publish(app, there, times=100)  # it is busy with the node that is about to hang
            with suspended(victim):
                for _ in range(3):
                    ids = publish(app, others, times=5)
                    wait_until(lambda ids=ids: ids <= set(ran(ledger)), "the tasks of other nodes ran")
            wait_until(lambda: waiting <= set(ran(ledger)), "the tasks of the node ran")
            assert len(ran(ledger)) == len(set(ran(ledger))), "none ran twice"
            assert "Connection to broker lost" not in worker.log
            assert "Traceback" not in worker.log


@pytest.mark.parametrize("key", ["delayq:queues", "{_kombu.binding}"], ids=["registry", "bindings"])
def test_publishing_to_other_nodes_goes_on(redis_server: PrivateRedis, key: str) -> None:
    with patient_cluster(redis_server) as (cluster, ledger), publisher(cluster.url(3), ledger.url, **CONF) as app:
        victim = cluster.owner(key)
        others = [f"q{number}" for number in range(20) if cluster.owner(f"q{number}") is not victim]
        publish(app, others[:1])  # the bindings of the exchange are known
        stuck = threading.Thread(target=publish, args=(app, [cluster.key_of(victim)]), daemon=True)
        with suspended(victim):
            stuck.start()
            found: set[str] = set()
            free = threading.Thread(target=lambda: found.update(publish(app, others)), daemon=True)
            free.start()
            wait_until(lambda: not free.is_alive(), "it has published to all other nodes")
            assert len(found) == 2 * len(others)
            assert stuck.is_alive()
        stuck.join()
        with Worker("-Q", ",".join(others), broker=cluster.url(3), ledger=ledger.url):
            wait_until(lambda: found <= set(ran(ledger)), "all were stored")


@kombu_5_7
@pytest.mark.parametrize("how", ["hangs", "is gone"])
def test_queues_of_other_nodes_that_expire_go_on(how: str) -> None:
    """The TTL of all of them is renewed several times a second."""
    celery_delayq.register()
    with (
        servers.cluster(settings=("--cluster-node-timeout", "300000")) as cluster,
        kombu.Connection(cluster.url(3), transport_options=CONF["broker_transport_options"]) as connection,
        ExitStack() as stack,
    ):
        victim = cluster.owner("q1")  # neither the registry nor the bindings are there
        other = next(name for name in QUEUES if cluster.owner(name) is not victim)
        client = cluster.owner(other).client
        reader = Reader(connection.default_channel, *(queue(name, expires=2) for name in ("q1", other)))
        connection.Producer().publish("body", routing_key=other)
        (message,) = client.lrange(other, 0, -1)
        assert reader.drain(1) == ["body"]
        if how == "hangs":
            stack.enter_context(suspended(victim))
        else:
            victim.kill()
        for count in range(2, 8):
            client.lpush(other, message)
            reader.drain(count)
            reader.wait(1.0)
        client.lpush(other, message)
        wait_until(lambda: reader.wait(0.1) and len(reader.messages) == 8, "it goes on")


def test_a_task_with_a_distant_eta_whose_node_hangs_holds_up_no_others() -> None:
    """It is fetched with a message before it, and should go to its delayed queue when its node hangs."""
    celery_delayq.register()
    with (
        servers.cluster(settings=("--cluster-node-timeout", "300000")) as cluster,
        kombu.Connection(cluster.url(3), transport_options=CONF["broker_transport_options"]) as connection,
    ):
        victim = cluster.owner("q1")  # neither the registry nor the bindings are there
        other = next(name for name in QUEUES if cluster.owner(name) is not victim)
        connection.transport.program.may_wait = lambda headers: True  # as in a worker
        channel = connection.default_channel
        for name in ("q1", other):
            queue(name)(channel).declare()
        producer = connection.Producer(channel)
        producer.publish("first", routing_key="q1")
        producer.publish("eta", routing_key="q1", headers={"task": "note", "id": "the-id"})
        raw = json.loads(victim.client.lpop("q1"))
        raw["headers"]["eta"] = LATER.isoformat()
        victim.client.lpush("q1", json.dumps(raw))
        reader = Reader(channel, "q1", prefetch=10)
        reader.consumer.on_message = lambda message: (victim.suspend(), reader.messages.append(message))
        try:
            reader.drain(1)
            second = Reader(channel, other)
            producer.publish("other", routing_key=other)
            assert second.drain(1) == ["other"]
        finally:
            victim.resume()
        assert reader.bodies == ["first"]
        wait_until(
            lambda: second.wait(0.1) and DelayedQueue(victim.client, "q1").size() == 1,
            "the task is in its delayed queue",
        )


def test_a_consumer_that_had_no_answer_in_time_does_not_wait_for_one_again(caplog: pytest.LogCaptureFixture) -> None:
    celery_delayq.register()
    with (
        servers.cluster(settings=("--cluster-node-timeout", "300000")) as cluster,
        kombu.Connection(cluster.url(3)) as connection,
        connection.SimpleQueue("q0") as queue,
    ):
        victim = cluster.owner("q0")
        queue.put("before")
        message = queue.get(timeout=30)

        def is_lost() -> bool:
            with suppress(queue.Empty):
                queue.get(timeout=0.1)
            return "is lost" in caplog.text

        waits = lambda: not is_lost() and victim.client.info("clients")["blocked_clients"]  # noqa: E731
        wait_until(waits, "it waits for the next message, so that nothing is asked")
        with suspended(victim):
            message.ack()
            wait_until(is_lost, "it notices")
            # Not "Timeout", as of a new connection. A list of another priority may have been asked meanwhile.
            assert re.search(rf"{victim.address} is lost: (a reply .* )?Redis does not answer\. Its", caplog.text)
        queue.put("after")
        assert queue.get(timeout=30).payload == "after"

"""In which order messages come from several nodes: they are asked in turn, whatever the order of the queues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import pytest
from kombu import Connection, Consumer
from kombu.message import Message

from celery_delayq.fetching.wire import Wire
from tests.brokers import ClusterServer
from tests.fetching.reading import publish, queue, reader, with_options
from tests.integration.publishing import Broker
from tests.redis_cluster.servers import Cluster
from tests.support import wait_until


@contextmanager
def all_waited_for(ours: Broker, names: Sequence[str], on_message: Callable[[Message], object]) -> Iterator[Connection]:
    """A connection that consumes one message at a time, and waits for messages of queues on several nodes."""
    with ours.connection.clone() as connection:
        consumer = Consumer(connection.default_channel, list(map(queue, names)), on_message=on_message)
        consumer.qos(prefetch_count=1)
        consumer.consume()

        def all_wait() -> bool:
            with suppress(TimeoutError):
                connection.drain_events(timeout=0.05)
            return all(waits_at(ours, name) for name in names)

        wait_until(all_wait, "it waits for all of them")
        yield connection


def waits_at(ours: Broker, name: str) -> int:
    """How many connections wait at the node of a queue."""
    node = ours.channel.plain_client.node_of(name)
    return int(node.client.info("clients")["blocked_clients"])


@pytest.mark.parametrize("first", [0, 1, 2])
def test_while_a_task_blocks_the_thread_other_nodes_keep_their_messages(cluster: Cluster, first: int) -> None:
    names = [cluster.key_of(node, prefix="queue") for node in cluster.nodes]
    here, *elsewhere = names[first:] + names[:first]
    left = {}

    def work(message: Message) -> None:
        if message.payload == "long":
            for name in elsewhere:
                publish(ours, name, "later")
                left[name] = ours.client.llen(name)
        received.append(message.payload)
        message.ack()

    received: list[str] = []
    with with_options(ClusterServer(cluster)) as ours, all_waited_for(ours, names, work) as connection:
        publish(ours, here, "long")
        wait_until(lambda: connection.drain_events(timeout=5) or len(received) == 3, "all have come")
    assert left == dict.fromkeys(elsewhere, 1)


@pytest.mark.parametrize("prefetch", [1, 4, 0])
@pytest.mark.parametrize("strategy", ["round_robin", "priority", "sorted"])
def test_no_queue_starves_beside_those_of_other_nodes(cluster: Cluster, strategy: str, prefetch: int) -> None:
    queues = [cluster.key_of(node, prefix="queue") for node in cluster.nodes]
    with with_options(ClusterServer(cluster), queue_order_strategy=strategy) as ours:
        for queue in queues:
            publish(ours, queue, *[queue] * 150)
        with reader(ours, *queues, prefetch=prefetch) as it:
            received = Counter(it.drain(450, timeout=30)[:300])
    assert set(received) == set(queues)
    assert min(received.values()) >= 50, received


def test_a_node_whose_answer_was_late_once_is_asked_beside_the_others(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = [cluster.key_of(node, prefix="queue") for node in cluster.nodes]
    has_reply, late = Wire.has_reply, []

    def once_late(wire: Wire, wait_s: float) -> bool:
        if not late:
            late.append(wire)
            return False
        return has_reply(wire, wait_s)

    with with_options(ClusterServer(cluster)) as ours:
        for queue in queues:
            publish(ours, queue, *[queue] * 50)
        monkeypatch.setattr(Wire, "has_reply", once_late)
        with reader(ours, *queues, prefetch=1) as it:
            assert set(it.drain(150, timeout=30)[:90]) == set(queues)
    assert late


@pytest.mark.parametrize("prefetch", [1, 4])
def test_queues_of_one_node_are_in_order(cluster: Cluster, prefetch: int) -> None:
    node = cluster.nodes[0]
    first, then = cluster.key_of(node, prefix="first"), cluster.key_of(node, prefix="then")
    with with_options(ClusterServer(cluster), queue_order_strategy="priority") as ours:
        publish(ours, then, *["then"] * 20)
        publish(ours, first, *["first"] * 20)
        with reader(ours, first, then, prefetch=prefetch) as it:
            assert it.drain(40) == ["first"] * 20 + ["then"] * 20

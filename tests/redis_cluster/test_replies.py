"""Queues that are consumed without acknowledgement, as replies are, when their slot moves or their node is lost."""

from __future__ import annotations

import socket
from contextlib import suppress

import pytest
import redis
from kombu import Connection, Consumer, Exchange, Queue

from celery_delayq.schemes import register
from celery_delayq.transport import replies
from tests.brokers import ClusterServer
from tests.fetching.reading import publish, reader, with_options
from tests.redis_cluster.routing import errors_at, other_than
from tests.redis_cluster.servers import Cluster, slot_of
from tests.support import wait_until


def test_its_messages_wait_until_the_slot_has_moved(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    register()
    source = cluster.owner("replies")
    bodies: list[int] = []

    def drain() -> None:
        with suppress(socket.timeout):
            connection.drain_events(timeout=0.1)

    with (
        Connection(cluster.url()) as connection,
        Connection(cluster.url()) as other,
        Consumer(connection, [Queue("replies")], no_ack=True, on_message=lambda it: bodies.append(it.payload)),
    ):
        with cluster.moving(slot_of("replies"), other_than(cluster, source)):
            cluster.reset_counts()
            wait_until(lambda: drain() or errors_at(source, "ASK") > 2, "it is refused again and again")
            # From now on, it pauses for longer than the test takes to get there. Nothing else wakes it then.
            monkeypatch.setattr(replies, "_MOVING_S", 2)
            refused = errors_at(source, "ASK")
            wait_until(lambda: drain() or errors_at(source, "ASK") > refused, "it is refused once more")
        other.SimpleQueue("replies").put(1)
        connection.drain_events(timeout=20)
    assert bodies == [1]


def cut(cluster: Cluster, queue: str) -> None:
    """End all connections to the node of a queue."""
    with redis.Redis(port=cluster.owner(queue).port) as client:
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


def test_who_waits_for_replies_hears_that_the_node_is_lost(cluster: Cluster) -> None:
    with with_options(ClusterServer(cluster)) as ours, reader(ours, "replies", no_ack=True) as it:
        assert it.wait() == []
        cut(cluster, "replies")
        with pytest.raises(redis.ConnectionError):
            it.wait(20)


def test_that_a_queue_is_no_longer_consumed_is_no_error(cluster: Cluster) -> None:
    with with_options(ClusterServer(cluster)) as ours, reader(ours, "replies", no_ack=True) as it:
        assert it.wait() == []
        it.consumer.cancel()
        cut(cluster, "replies")
        assert it.wait() == []


def test_who_consumes_tasks_goes_on(cluster: Cluster) -> None:
    other = cluster.key_of(next(node for node in cluster.nodes if node is not cluster.owner("replies")))
    with with_options(ClusterServer(cluster)) as ours, reader(ours, other) as tasks:
        answers = type(tasks)(tasks.channel, "replies", no_ack=True)
        assert tasks.wait() == []
        cut(cluster, "replies")
        publish(ours, other, "task")
        assert tasks.drain(1) == ["task"]
        publish(ours, "replies", "reply")
        assert answers.drain(1) == ["reply"]


@pytest.mark.thorough
def test_who_only_waits_for_replies_has_its_queue_bound_after_the_node_of_the_bindings_hung(cluster: Cluster) -> None:
    """So that a program that only asks workers gets answers again. Each time that it asks, it declares the queue."""
    bindings = "{_kombu.binding}.answers"
    owner = cluster.owner(bindings)
    elsewhere = cluster.key_of(other_than(cluster, owner))
    with Connection(cluster.url()) as connection:
        channel = connection.default_channel
        queue = Queue(elsewhere, Exchange("answers"), "mine", durable=False)(channel)

        def is_bound() -> bool:
            queue.declare()
            return bool(owner.client.exists(bindings))

        owner.suspend()
        queue.declare()
        owner.resume()
        wait_until(is_bound, "it is bound")
        owner.suspend()
        channel.after_reply_message_received(elsewhere)
        owner.resume()
        owner.client.delete(bindings)
        wait_until(is_bound, "it is bound again")

"""Queues that are consumed without acknowledgement, as replies are, when their node is lost."""

from __future__ import annotations

import pytest
import redis

from tests.brokers import ClusterServer
from tests.fetching.reading import publish, reader, with_options
from tests.redis_cluster.servers import Cluster


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
        replies = type(tasks)(tasks.channel, "replies", no_ack=True)
        assert tasks.wait() == []
        cut(cluster, "replies")
        publish(ours, other, "task")
        assert tasks.drain(1) == ["task"]
        publish(ours, "replies", "reply")
        assert replies.drain(1) == ["reply"]

"""What the tests of routing share: connections, counts, and a slot that is half moved."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_delayq.cluster.node import Address
from celery_delayq.cluster.topology import Topology, View
from tests.redis_cluster.servers import Cluster, ClusterNode, slot_of

#: Adds 1 to the first key, and reads the second one.
ADD = "redis.call('GET', KEYS[2]); return redis.call('INCR', KEYS[1])"


def pool_for(address: Address) -> redis.ConnectionPool:
    """A pool that would send again, if redis-py was asked to send."""
    again = Retry(NoBackoff(), 3)
    return redis.ConnectionPool(
        host=address.host, port=address.port, socket_timeout=30, retry=again, retry_on_error=[redis.ConnectionError]
    )


def addresses_of(cluster: Cluster) -> list[Address]:
    return [Address("127.0.0.1", node.port) for node in cluster.nodes]


def other_than(cluster: Cluster, node: ClusterNode) -> ClusterNode:
    return next(other for other in cluster.nodes if other is not node)


def errors_at(node: ClusterNode, code: str) -> int:
    """Return how many errors of a kind a node has sent since CONFIG RESETSTAT."""
    return int(node.client.info("errorstats").get(f"errorstat_{code}", {"count": 0})["count"])


def calls(cluster: Cluster, name: str) -> list[int]:
    """Return how often each node got a command."""
    return [node.counts().get(name, 0) for node in cluster.nodes]


def know_only_slot_0(topology: Topology) -> None:
    """Let a node say that nobody serves the other slots."""
    node = topology.masters()[0]
    topology.learn(View(time.monotonic(), node.address, ((0, 0, node.address, node.id),)))


@contextmanager
def half_moved(cluster: Cluster, tag: str) -> Iterator[tuple[ClusterNode, ClusterNode]]:
    """Give source and target of a slot; of ten keys, `{tag}0` to `{tag}9`, each has five."""
    source = cluster.owner(tag)
    target = other_than(cluster, source)
    for number in range(10):
        source.client.set(f"{{{tag}}}{number}", number)
    with cluster.moving(slot_of(tag), target):
        cluster.reset_counts()
        yield source, target

"""Orphans on a cluster: where their applications listen, and how they are handed over to another hash slot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery_delayq import DelayedQueue
from celery_delayq.queue import codec
from celery_delayq.queue.entry import Entry
from celery_delayq.queue.keys import QueueKeys
from celery_delayq.queue.orphans import Orphan
from tests.brokers import ClusterServer
from tests.redis_cluster.servers import Cluster
from tests.state import FAR, seed

PAYLOADS = [b"%d" % number for number in range(150)]


def push_to(name: str) -> Callable[[Entry], tuple[Any, ...]]:
    return lambda entry: ("RPUSH", name, entry.payload)


def leave(queue: DelayedQueue) -> None:
    seed(queue, {codec.pack(b"%08d" % at, payload): FAR + at for at, payload in enumerate(PAYLOADS)})


def test_an_application_is_heard_where_it_listens(cluster: Cluster) -> None:
    """That is at the node of its channel."""
    with ClusterServer(cluster).client() as client:
        for node in cluster.masters():
            name = cluster.key_of(node)
            with node.client.pubsub() as pubsub:
                pubsub.subscribe(QueueKeys.of(name).channel)
                pubsub.get_message(timeout=5)
                assert Orphan.look(client, name).listeners == 1


def test_an_application_is_heard_at_other_nodes_too(cluster: Cluster) -> None:
    """For some seconds after a slot has moved, Redisson still listens at the node that had it."""
    with ClusterServer(cluster).client() as client:
        elsewhere = next(node for node in cluster.masters() if node is not cluster.owner("jobs"))
        with elsewhere.client.pubsub() as pubsub:
            pubsub.subscribe(QueueKeys.of("jobs").channel)
            pubsub.get_message(timeout=5)
            assert Orphan.look(client, "jobs").listeners == 1

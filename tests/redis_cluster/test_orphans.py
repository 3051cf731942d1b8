"""Orphans on a cluster: where their applications listen, and how they are handed over to another hash slot."""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from celery_delayq import DelayedQueue
from celery_delayq.queue import codec, orphans, scripts
from celery_delayq.queue.attempt import Attempt
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


def die(*args: object) -> None:
    raise KeyboardInterrupt


def test_what_dies_between_two_steps_loses_nothing(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    with ClusterServer(cluster).client() as client:
        queue = DelayedQueue(client, "jobs")
        leave(queue)
        handing_over = Orphan.look(client, "jobs").hand_over(client, push_to("taken"))
        with monkeypatch.context() as patched:
            patched.setattr(orphans, "_remove", lambda *args: die() if client.exists("taken") else None)
            with pytest.raises(KeyboardInterrupt):
                next(handing_over)
        assert queue.size() == 150
        list(Orphan.look(client, "jobs").hand_over(client, push_to("taken")))
        times = Counter(client.lrange("taken", 0, -1))
        assert [times[payload] for payload in PAYLOADS] == [2] * 16 + [1] * 134
        assert queue.size() == 0


def test_what_is_published_as_an_attempt_is_replaced_once_also_if_it_dies_between_two_steps(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ClusterServer(cluster).client() as client:
        queue, taken = DelayedQueue(client, "jobs"), DelayedQueue(client, "taken")
        leave(queue)

        def offer(entry: Entry) -> tuple[Any, ...]:
            token = hashlib.blake2b(entry.raw, digest_size=16).digest()
            call = scripts.offer(
                taken.keys,
                due_ms=entry.due_ms,
                message_key=secrets.token_bytes(16),
                payload=entry.payload,
                mirrored=False,
                attempt=Attempt("orphans", token),
            )
            return call.by_text()

        handing_over = Orphan.look(client, "jobs").hand_over(client, offer)
        next(handing_over)
        with monkeypatch.context() as patched:
            patched.setattr(orphans, "_remove", die)
            with pytest.raises(KeyboardInterrupt):
                next(handing_over)
        assert (queue.size(), taken.size()) == (150 - 16, 32)
        list(Orphan.look(client, "jobs").hand_over(client, offer))
        assert [entry.payload for entry in taken.peek(1000)] == PAYLOADS
        assert queue.size() == 0


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


def test_within_one_slot_it_is_a_transaction(cluster: Cluster) -> None:
    with ClusterServer(cluster).client() as client:
        queue = DelayedQueue(client, "{shop}:jobs")
        leave(queue)
        cluster.reset_counts()
        list(Orphan.look(client, "{shop}:jobs").hand_over(client, push_to("{shop}:taken")))
        assert client.lrange("{shop}:taken", 0, -1) == PAYLOADS
        assert queue.size() == 0
        assert cluster.counts()["exec"] == 2, "a transaction for each batch"
        assert cluster.counts()["zrem"] == 150

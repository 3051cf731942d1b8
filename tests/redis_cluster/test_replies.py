"""A queue that is consumed without acknowledgement is read although its slot moves."""

from __future__ import annotations

import socket
from contextlib import suppress

import pytest
from kombu import Connection, Consumer, Queue

from celery_delayq.transport import replies
from celery_delayq.transport.urls import register
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

"""Channels of one kombu connection share a consumer at each node."""

from __future__ import annotations

import kombu
import pytest
import redis

import celery_delayq
from celery_delayq.queue.keys import QueueKeys
from tests.fetching.reading import Reader, queue, waiting
from tests.integration.long_tasks import in_flight
from tests.redis_cluster.servers import Cluster
from tests.redis_cluster.test_half_moved import beside
from tests.support import wait_until


def lose_its_wait(reader: Reader, client: redis.Redis, caplog: pytest.LogCaptureFixture) -> None:
    """Close the connection on which a reader waits for messages; return when it has noticed."""
    wait_until(lambda: reader.wait(0.1) is not None and waiting(client), "it waits")
    for found in client.client_list():
        if "b" in found["flags"]:
            client.client_kill_filter(_id=found["id"])
    wait_until(lambda: reader.wait(0.1) is not None and "is lost" in caplog.text, "it has noticed")


def test_a_consumer_that_one_channel_has_lost_is_used_by_no_other_one(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    celery_delayq.register()
    client, keys = cluster.owner("q").client, QueueKeys.of("q")
    with kombu.Connection(cluster.url(3)) as connection:
        other = Reader(connection.channel(), "q", prefetch=1, ack=False)
        producer = connection.Producer()
        producer.publish(0, routing_key="q")
        assert other.drain(1) == [0]  # so it has no credit, and asks for nothing
        one = Reader(connection.channel(), beside(cluster, "q"))
        (former,) = client.zrange(keys.consumers, 0, -1)
        lose_its_wait(one, client, caplog)
        other.messages[0].ack()
        for number in range(1, 4):
            producer.publish(number, routing_key="q")
            assert other.drain(number + 1)[number] == number
            if number < 3:
                other.messages[number].ack()
        in_use = lambda: other.wait(0.1) and client.zrange(keys.consumers, 0, -1)  # noqa: E731
        wait_until(lambda: former not in in_use(), "the former consumer ends")
        assert len(in_use()) == 1
        assert other.bodies == [0, 1, 2, 3]


def test_nor_does_basic_get_use_it(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    celery_delayq.register()
    client, keys = cluster.owner("q").client, QueueKeys.of("q")
    with kombu.Connection(cluster.url(3)) as connection:
        got = queue("q")(connection.channel())
        got.declare()
        producer = connection.Producer()
        producer.publish(0, routing_key="q")
        got.get().ack()
        one = Reader(connection.channel(), beside(cluster, "q"))
        (former,) = client.zrange(keys.consumers, 0, -1)
        lose_its_wait(one, client, caplog)
        producer.publish(1, routing_key="q")
        with pytest.raises(connection.connection_errors):
            got.get()
        message = got.get()
        assert (message.payload, former in client.zrange(keys.consumers, 0, -1)) == (1, False)
        message.ack()
        wait_until(lambda: one.wait(0.1) is not None and not in_flight(client), "it is acknowledged")

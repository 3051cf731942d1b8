"""Queues that are declared with `expires`: kombu 5.7 gives their lists a TTL, and no message comes without one."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone

import pytest
from kombu.transport.redis import Channel as StockChannel

from examples.private_redis import PrivateRedis
from tests.consumer.conftest import Consumers, consumers
from tests.consumer.test_refused import refused
from tests.fetching.reading import DB, Reader, publish, queue
from tests.integration.long_tasks import in_flight
from tests.integration.publishing import Broker, broker
from tests.refusing import refusing
from tests.support import wait_until

pytestmark = pytest.mark.on_cluster

__all__ = ["consumers"]

kombu_5_7 = pytest.mark.skipif(not hasattr(StockChannel, "_get_queue_expire"), reason="x-expires came with kombu 5.7")

EXPIRING = queue("q", expires=100)


def has_full_ttl(ours: Broker, name: str = "q") -> bool:
    return 90_000 < ours.client.pttl(name) <= 100_000


@kombu_5_7
@pytest.mark.parametrize("scheme", ["redis", "delayq"])
def test_it_lives_for_as_long_as_it_is_used(redis_server: PrivateRedis, scheme: str) -> None:
    with broker(redis_server, scheme, DB) as either:
        for number in range(3):
            either.publish(number, to=EXPIRING)
        assert has_full_ttl(either)
        either.client.pexpire("q", 30_000)
        EXPIRING(either.channel).get().ack()
        assert has_full_ttl(either), "a get counts as a use"
        with either.connection.clone() as connection:
            assert Reader(connection.default_channel, EXPIRING).drain(2) == [1, 2]


def test_what_is_in_flight_does_not_expire(ours: Broker) -> None:
    ours.publish("body", to=EXPIRING)
    message = EXPIRING(ours.channel).get()
    (key,) = ours.client.scan_iter("delayq:inflight:*")
    assert ours.client.ttl(key) == -1
    message.ack()


@kombu_5_7
@pytest.mark.parametrize("how", ["requeue", "cancel", "close"])
def test_what_goes_back_to_an_empty_list_expires_with_it(ours: Broker, how: str) -> None:
    ours.publish("body", to=EXPIRING)
    ours.publish("more", to=EXPIRING)
    with ours.connection.clone() as connection:
        it = Reader(connection.default_channel, EXPIRING, ack=False, prefetch=2)
        connection.drain_events(timeout=5)
        assert not ours.client.exists("q"), "both are in flight"
        if how == "requeue":
            it.messages[0].requeue()
        elif how == "cancel":
            it.consumer.cancel()
        else:
            connection.close()
        assert has_full_ttl(ours)


@kombu_5_7
def test_it_does_not_expire_while_it_is_consumed(ours: Broker) -> None:
    """Although its consumer takes nothing from it for long."""
    expiring = queue("q", expires=1)
    with ours.connection.clone() as connection:
        it = Reader(connection.default_channel, expiring, ack=False, prefetch=1)
        for number in range(2):
            ours.publish(number, to=expiring, priority=9 * number)
        it.drain(1)
        until = time.monotonic() + 2.5
        wait_until(lambda: it.wait(0.1) and time.monotonic() > until, "it would have expired twice")
        assert 0 < ours.client.pttl(ours.channel.broker_list("q", 9)) <= 1000
        it.messages[0].ack()
        assert it.drain(2) == [0, 1]


@pytest.mark.thorough
@kombu_5_7
@pytest.mark.one_server("its only server refuses")
def test_it_is_renewed_soon_after_the_server_has_refused_that(ours: Broker) -> None:
    """Not only when a third of its time is over again."""
    expiring = queue("q", expires=12)
    with ours.connection.clone() as connection:
        it = Reader(connection.default_channel, expiring, ack=False, prefetch=1)
        for number in range(2):
            ours.publish(number, to=expiring)
        it.drain(1)

        def left_ms() -> int:
            it.wait(0.1)
            return int(ours.client.pttl("q"))

        with refusing(ours.client, "NOREPLICAS"):
            wait_until(lambda: left_ms() < 7_500, "a renewal was refused at 8 s")
        assert wait_until(lambda: not 5_000 < (left := left_ms()) < 7_500 and left, "it is renewed or not") > 7_500


@kombu_5_7
def test_a_delayed_task_waits_without_a_ttl_and_gets_one_where_its_queue_is_consumed(ours: Broker) -> None:
    ours.publish("body", to=EXPIRING)
    ours.client.pexpire("q", 30_000)
    later = (datetime.now(timezone.utc) + timedelta(hours=1)).isoformat()
    for number in range(2):
        ours.publish(number, to=EXPIRING, eta=later)
    assert has_full_ttl(ours), "to publish a delayed task is a use of its queue"
    ours.client.delete("q")
    assert ours.client.ttl("redisson_delay_queue_timeout:{q}") == -1
    ours.transfer_all()
    assert ours.client.ttl("q") == -1, "who transfers need not know"
    with ours.connection.clone() as connection:
        it = Reader(connection.default_channel, EXPIRING, ack=False, prefetch=1)
        it.drain(1)
        wait_until(lambda: it.wait(0.05) and has_full_ttl(ours), "who consumes does")
        assert in_flight(ours.client) == 1


@kombu_5_7
def test_one_that_is_declared_without_expires_is_kept(ours: Broker) -> None:
    with ours.connection.clone() as connection:
        EXPIRING(connection.default_channel).declare()
        publish(ours, "q", "body")
        it = Reader(connection.default_channel, "q", ack=False, prefetch=1)
        it.drain(1)
        it.messages[0].requeue()
        assert ours.client.ttl("q") == -1


@pytest.mark.one_server("its consumers know one")
def test_what_is_put_back_late_expires(consumers: Consumers) -> None:
    """By a watchdog, when the channel is gone that knew its queue."""
    consumer = consumers.make(expires_ms={"q": 100_000})
    tag, _ = consumers.take(consumer, b"1", b"2")
    with refused(consumers, "q"):
        consumer.requeue(tag)
        assert not consumer.close()
    assert consumers.client.exists("q") == 0
    consumer.settle()
    assert consumers.client.pttl("q") > 90_000
    consumers.client.persist("q")
    assert consumer.finish()
    assert consumers.client.pttl("q") > 90_000

"""Several channels and connections; messages that are got one by one."""

from __future__ import annotations

import os
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import kombu
import pytest
import redis
from kombu import Consumer, Exchange, Producer, Queue
from kombu.asynchronous import Hub
from kombu.utils import eventio

from celery_delayq.queue.keys import QueueKeys
from celery_delayq.transfer.settings import LONGEST_LEAD_S
from tests.fetching.reading import DB, Reader, bodies_on, publish, queue, reader, redelivered, size
from tests.integration.long_tasks import in_flight
from tests.integration.publishing import Broker
from tests.support import wait_until

pytestmark = pytest.mark.on_cluster


class Held(SimpleNamespace):
    """What can be a key, and be referred to weakly."""

    __hash__ = object.__hash__


# -- channels and connections


def test_each_channel_has_a_prefetch_count_of_its_own(ours: Broker) -> None:
    publish(ours, "a", *["a"] * 5)
    publish(ours, "b", *["b"] * 5)
    with ours.connection.clone() as connection:
        one = Reader(connection.channel(), "a", prefetch=1, ack=False)
        other = Reader(connection.channel(), "b", prefetch=3, ack=False)
        one.wait()
        assert (one.bodies, other.bodies) == (["a"], ["b"] * 3)
        one.channel.close()
        assert bodies_on(ours.client, "a") == ["a"] * 5
        assert size(ours, "b") == 2
        other.messages[0].ack()
        assert other.wait() == ["b"] * 4


def test_two_channels_that_consume_the_same_queue_acknowledge_all(ours: Broker) -> None:
    with ours.connection.clone() as connection:
        one = Reader(connection.channel(), "q", prefetch=2)
        other = Reader(connection.channel(), "q", prefetch=2)
        publish(ours, "q", *range(20))
        one.wait()
        assert sorted([*one.bodies, *other.bodies]) == list(range(20))
        wait_until(lambda: in_flight(ours.client) == 0, "all are acknowledged")


def test_many_connections_share_a_backlog(ours: Broker) -> None:
    publish(ours, "q", *range(100))
    with reader(ours, "q", prefetch=3) as one, reader(ours, "q", prefetch=3) as other:
        wait_until(lambda: len(one.wait(0.05)) + len(other.wait(0.05)) >= 100, "all are delivered")
        assert sorted(one.bodies + other.bodies) == list(range(100))
    assert in_flight(ours.client) == 0


def test_an_event_loop_goes_on_when_another_channel_is_opened(ours: Broker) -> None:
    """kombu 5.6 stops to poll when a connection that consumes is closed."""
    hub = Hub()
    try:
        with ours.connection.clone() as connection:
            reader = Reader(connection.default_channel, "q")
            connection.register_with_event_loop(hub)
            turns = hub.create_loop()
            connection.channel()
            publish(ours, "q", 1)
            wait_until(lambda: not next(turns) and reader.bodies == [1], "the message")
    finally:
        hub.close()


def test_what_is_held_ahead_does_not_stop_fetching_for_good(ours: Broker) -> None:
    """A task that is due need not begin: its rate may be limited."""
    hub, held = Hub(), Held()
    try:
        with ours.connection.clone() as connection:
            reader = Reader(connection.default_channel, "q")
            transport = connection.transport
            holding = iter([0.05])

            def most_ahead() -> int:
                for seconds in holding:  # from the first fetch on, however long it takes to get there
                    transport.ahead.hold(held, seconds)
                return 1

            transport.program.most_ahead = most_ahead
            connection.register_with_event_loop(hub)
            publish(ours, "q", 1)
            timeouts, poll = [], hub.poller.poll
            hub.poller.poll = lambda timeout: timeouts.append(timeout) or poll(timeout)
            turns = hub.create_loop()
            wait_until(lambda: not next(turns) and reader.bodies == [1], "the message")
            assert any(timeout <= LONGEST_LEAD_S for timeout in timeouts), "a timer has woken it"
    finally:
        hub.close()


class NotedPoller:
    """kombu's, and which file descriptors it polls. The one under gevent cannot forget those that were closed."""

    def __init__(self) -> None:
        self._poller = eventio.poll()
        self.poll, self.close = self._poller.poll, self._poller.close
        self.polled: set[int] = set()

    def register(self, fd: Any, events: int) -> None:
        self._poller.register(fd, events)
        self.polled.add(eventio.fileno(fd))

    def unregister(self, fd: Any) -> None:
        self.polled.discard(eventio.fileno(fd))
        self._poller.unregister(fd)


@pytest.mark.one_server("it looks at the connections of one server")
@pytest.mark.skipif(kombu.VERSION < (5, 7), reason="kombu 5.6 keeps the connection")
def test_a_connection_for_replies_is_closed_and_opened_again(ours: Broker) -> None:
    """A worker has one while it starts. What is polled is open: later, others may have that descriptor."""
    with ours.connection.clone() as connection:
        cycle = connection.transport.cycle
        cycle.poller = poller = NotedPoller()
        for number in range(2):
            replies = Reader(connection.default_channel, "replies", no_ack=True)
            publish(ours, "replies", number)
            assert replies.drain(1) == [number]
            brpop, fds = connections(ours.client, "brpop"), polled_for(cycle, "BRPOP")
            assert (len(brpop), len(fds)) == (1, 1)
            assert fds <= poller.polled
            replies.consumer.cancel()
            tasks = Reader(connection.default_channel, "q")
            there = brpop.copy()
            wait_until(
                lambda tasks=tasks, there=there: not tasks.wait(0.1) and not there & connections(ours.client),
                "it is closed",
            )
            for fd in poller.polled:
                os.fstat(fd)
            publish(ours, "q", number)
            assert tasks.drain(1) == [number]
            tasks.consumer.cancel()


def connections(client: redis.Redis, command: str | None = None) -> set[str]:
    """Return the ids of all connections of a server, or of those that ran this command last."""
    return {one["id"] for one in client.client_list() if command in (None, one["cmd"])}


def polled_for(cycle: Any, kind: str) -> set[int]:
    """Return the file descriptors that kombu polls for a command."""
    return {fd for fd, polled in cycle.fds.items() if isinstance(polled, tuple) and polled[1] == kind}


@pytest.mark.parametrize("noticed", [False, True])
@pytest.mark.one_server("it looks at the connections of one server")
def test_messages_are_put_back_although_a_connection_was_reset(
    ours: Broker, noticed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """redis-py disconnects what was reset, and its parser breaks when it is read again."""
    with reader(ours, "q", ack=False) as it:
        publish(ours, "q", *range(3))
        it.drain(3)
        it.wait()
        (waits,) = connections(ours.client, "blmove")
        ours.client.client_kill_filter(_id=waits)
        if noticed:
            with pytest.raises(it.channel.connection.client.connection_errors):
                it.wait()
        it.channel.connection.client.collect()
        wait_until(lambda: bodies_on(ours.client) == [0, 1, 2], "they are put back")
        assert in_flight(ours.client) == 0
    assert "Cannot put back" not in caplog.text


def test_a_consumer_joins_all_lists_of_its_queue_before_it_works_on_a_backlog(ours: Broker) -> None:
    """Otherwise nobody would see that others of these lists are gone."""
    publish(ours, "q", *range(50))
    with reader(ours, "q", ack=False, prefetch=10) as it:
        it.drain(10)
        leases = [ours.client.zcard(QueueKeys.of(name).consumers) for name in ours.channel.broker_lists("q")]
        assert leases == [1, 1, 1, 1]


def test_a_consumer_without_acknowledgements_holds_nothing(ours: Broker) -> None:
    publish(ours, "q", *range(10))
    with reader(ours, "q", no_ack=True, prefetch=1) as it:
        assert it.drain(10) == list(range(10))
        assert in_flight(ours.client) == 0
        assert ours.client.exists("q", "unacked", "unacked_index") == 0


def test_consumers_with_and_without_acknowledgements_on_one_channel(ours: Broker) -> None:
    with ours.connection.clone() as connection:
        channel = connection.default_channel
        certain = Reader(channel, "certain", prefetch=1, ack=False)
        loose = Reader(channel, "loose", no_ack=True, prefetch=1)
        publish(ours, "loose", "before")
        assert loose.drain(1) == ["before"]
        publish(ours, "certain", "first", "second")
        assert certain.drain(1) == ["first"]
        certain.messages[0].ack()
        assert certain.drain(2) == ["first", "second"]


# -- basic_get


def test_a_message_got_is_in_flight_until_it_is_acknowledged(ours: Broker) -> None:
    publish(ours, "q", "low", priority=9)
    publish(ours, "q", "high")
    message = queue("q")(ours.channel).get()
    assert message.payload == "high"
    assert (in_flight(ours.client), size(ours)) == (1, 1)
    message.ack()
    wait_until(lambda: in_flight(ours.client) == 0, "it is acknowledged")


def test_a_message_got_without_acknowledgement_is_nobodys(ours: Broker) -> None:
    publish(ours, "q", "body")
    assert queue("q")(ours.channel).get(no_ack=True).payload == "body"
    assert in_flight(ours.client) == 0
    assert size(ours) == 0


def test_a_message_got_and_not_acknowledged_comes_back(ours: Broker) -> None:
    publish(ours, "q", 1, 2, 3)
    with ours.connection.clone() as other:
        got = [queue("q")(other.default_channel).get().payload for _ in range(2)]
        assert got == [1, 2]
    assert bodies_on(ours.client) == [1, 2, 3]


def test_get_while_a_consumer_of_the_same_channel_waits(ours: Broker) -> None:
    with reader(ours, "q", prefetch=2, ack=False) as it:
        it.wait(0.1)
        publish(ours, "other", "other")
        assert queue("other")(it.channel).get().payload == "other"
        publish(ours, "q", "body", "too many")
        assert it.drain(1) == ["body"]
        assert it.wait() == ["body"], "the message that was got counts"


def test_simple_queue(ours: Broker) -> None:
    with ours.connection.clone() as connection, connection.SimpleQueue("simple") as simple:
        for number in range(3):
            simple.put(number)
        assert simple.qsize() == 3
        first = simple.get(timeout=5)
        assert first.payload == 0
        first.requeue()
        for number in (1, 2):
            message = simple.get(timeout=5)
            assert message.payload == number
            message.ack()
        again = simple.get(timeout=5)
        assert (again.payload, redelivered(again)) == (0, True)
        again.ack()
        with pytest.raises(simple.Empty):
            simple.get(timeout=0.2)
        with pytest.raises(simple.Empty):
            simple.get_nowait()


def test_simple_queue_gets_without_waiting_after_it_has_waited(ours: Broker) -> None:
    with ours.connection.clone() as connection, connection.SimpleQueue("simple", no_ack=False) as simple:
        for number in range(3):
            simple.put(number)
        received = [simple.get(timeout=5), simple.get_nowait(), simple.get_nowait()]
        assert [message.payload for message in received] == [0, 1, 2]


# -- what kombu does with a channel's connection for consuming


@pytest.mark.one_server("the name has the database")
def test_each_channel_broadcasts_to_the_same_topic(ours: Broker) -> None:
    with ours.connection.clone() as connection, closing(ours.client.pubsub()) as listener:
        listener.psubscribe("*.events")
        assert listener.get_message(timeout=10)
        for _ in range(3):
            Producer(connection.channel(), Exchange("events", "fanout")).publish({})
            assert listener.get_message(timeout=10)["channel"] == f"/{DB}.events".encode()


def test_the_bindings_of_a_broadcast_queue_go_with_its_channel(ours: Broker) -> None:
    exchange = Exchange("news", "fanout")
    with ours.connection.clone() as connection:
        channel = connection.channel()
        Consumer(channel, [Queue("mine", exchange, auto_delete=True)], no_ack=True).consume()
        assert ours.client.keys("*_kombu.binding*.news")
        channel.close()
        assert not ours.client.keys("*_kombu.binding*.news")

"""Acknowledged, rejected, requeued, recovered, or put back at the end."""

from __future__ import annotations

import os
import signal
import socket
import time
from contextlib import suppress
from typing import Any

import pytest
from kombu import Consumer
from kombu.message import Message

from celery_delayq.fetching.wire import Wire
from celery_delayq.transport.station import Station
from examples.private_redis import PrivateRedis
from tests.brokers import Server
from tests.fetching.reading import Reader, bodies_on, publish, queue, reader, redelivered
from tests.integration.long_tasks import in_flight
from tests.integration.publishing import Broker, broker
from tests.support import lasting_keys, wait_until

pytestmark = pytest.mark.on_cluster


def servers_of(broker: Server) -> list[str]:
    """Return what our transport calls the servers of a broker."""
    if isinstance(broker, PrivateRedis):
        return [""]
    return [f"127.0.0.1:{node.port}" for node in broker.cluster.nodes]


def test_a_rejected_message_is_gone(ours: Broker) -> None:
    publish(ours, "q", 1, 2)
    with reader(ours, "q", ack=False, prefetch=1) as it:
        it.drain(1)
        it.messages[0].reject()
        assert it.drain(2) == [1, 2]
        it.messages[1].ack()
    assert not ours.client.exists("q")
    assert in_flight(ours.client) == 0


def test_a_requeued_message_goes_to_the_back(ours: Broker) -> None:
    publish(ours, "q", 1, 2, 3)
    with reader(ours, "q", ack=False, prefetch=1) as it:
        it.drain(1)
        it.messages[0].requeue()
        for count in (2, 3, 4):
            it.drain(count)
            it.messages[-1].ack()
        assert it.bodies == [1, 2, 3, 1]
        assert [redelivered(message) for message in it.messages] == [False, False, False, True]


def test_recover_delivers_everything_again_in_order(ours: Broker) -> None:
    publish(ours, "q", 1, 2, 3)
    with reader(ours, "q", ack=False) as it:
        it.drain(3)
        it.consumer.recover(requeue=True)
        assert it.drain(6) == [1, 2, 3, 1, 2, 3]
        assert [redelivered(message) for message in it.messages] == [False] * 3 + [True] * 3
        for message in it.messages[3:]:
            message.ack()
    assert not ours.client.exists("q")


@pytest.mark.parametrize("what", ["channel", "connection"])
def test_what_was_not_acknowledged_goes_back_in_order_to_the_front(ours: Broker, what: str) -> None:
    publish(ours, "q", *range(10))
    publish(ours, "q", "low", priority=9)
    with ours.connection.clone() as connection:
        it = Reader(connection.channel(), "q", ack=False, prefetch=6)
        it.drain(6)
        it.messages[2].ack()
        (it.channel if what == "channel" else connection).close()
        assert bodies_on(ours.client) == [0, 1, 3, 4, 5, 6, 7, 8, 9]
        assert in_flight(ours.client) == 0
    with reader(ours, "q") as it:
        it.drain(10)
        assert [redelivered(message) for message in it.messages] == [True] * 5 + [False] * 5


def test_a_channel_is_closed_while_an_answer_is_late(ours: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not acknowledged goes back at once all the same."""
    publish(ours, "q", *range(10))
    with reader(ours, "q", ack=False, prefetch=6) as it:
        it.drain(6)
        it.messages[2].ack()
        has_reply = Wire.has_reply
        monkeypatch.setattr(Wire, "has_reply", lambda self, wait_s: wait_s > 0.5 and has_reply(self, wait_s))
        it.channel.close()
        monkeypatch.undo()
        assert bodies_on(ours.client) == [0, 1, 3, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("how", ["close", "retire"])
def test_what_a_pool_has_taken_is_held_all_the_time(
    any_broker: Server, ours: Broker, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread of the pool asks as it begins, perhaps just while the connection is closed or a node is left."""
    publish(ours, "q", 1)
    asked = []
    with ours.connection.clone() as connection:
        it = Reader(connection.channel(), "q", ack=False, prefetch=1)
        it.drain(1)
        message, transport = it.messages[0], connection.transport
        transport.program.running_tags = lambda: {message.delivery_tag}
        original = getattr(Station, how)

        def ask_meanwhile(station: Station, *args: Any) -> None:
            asked.append(it.channel.is_held(message.delivery_tag))
            original(station, *args)
            asked.append(it.channel.is_held(message.delivery_tag))

        monkeypatch.setattr(Station, how, ask_meanwhile)
        if how == "close":
            connection.close()
        else:
            consumer = transport.stations.holder(message.delivery_tag)
            for server in servers_of(any_broker):
                transport.stations.retire(server, consumer)
        assert asked
        assert all(asked)
        assert in_flight(ours.client) == 1
        message.ack()
        wait_until(lambda: in_flight(ours.client) == 0, "it is acknowledged")


@pytest.mark.parametrize("prefetch", [1, 5, 0])
def test_a_consumer_cancels_itself_in_its_callback(ours: Broker, prefetch: int) -> None:
    publish(ours, "q", *range(10))
    with ours.connection.clone() as connection:
        received: list[Any] = []

        def on_message(message: Message) -> None:
            received.append(message.payload)
            message.ack()
            consumer.cancel()

        consumer = Consumer(connection, [queue("q")], on_message=on_message, prefetch_count=prefetch)
        consumer.consume()
        connection.drain_events(timeout=5)
        with pytest.raises(socket.timeout):
            connection.drain_events(timeout=0.3)
        assert received == [0]
        assert bodies_on(ours.client) == list(range(1, 10))
        wait_until(lambda: in_flight(ours.client) == 0, "the acknowledgement has arrived")


@pytest.mark.one_server("it suspends the server")
@pytest.mark.parametrize("prefetch", [1, 2], ids=["waits for nothing", "waits for more"])
@pytest.mark.parametrize("channel", ["channel", "default_channel"])
def test_closing_waits_once_for_a_server_that_does_not_answer(channel: str, prefetch: int) -> None:
    """As kombu's own transport does. What was not acknowledged goes back when the server answers."""
    with PrivateRedis() as server, broker(server, "delayq", 0, socket_timeout=3) as ours:
        publish(ours, "q", 1)
        publish(ours, "p", 2)
        with ours.connection.clone() as connection:
            channels = (
                connection.channel(),
                connection.default_channel if channel == "default_channel" else connection.channel(),
            )
            for name, its in zip(("q", "p"), channels, strict=True):
                Reader(its, name, ack=False, prefetch=prefetch).drain(1)
            with suppress(socket.timeout):
                connection.drain_events(timeout=0.3)
            os.kill(server.pid, signal.SIGSTOP)
            try:
                began = time.monotonic()
                connection.close()
                took_s = time.monotonic() - began
            finally:
                os.kill(server.pid, signal.SIGCONT)
        assert took_s < 2 * 3
        wait_until(lambda: (bodies_on(ours.client, "q"), bodies_on(ours.client, "p")) == ([1], [2]), "they are back")


def test_one_of_two_queues_is_cancelled_and_consumed_again(ours: Broker) -> None:
    with reader(ours, "a", "b", prefetch=2) as it:
        it.wait(0.1)
        it.consumer.cancel_by_queue("a")
        publish(ours, "a", "a1")
        publish(ours, "b", "b1")
        assert it.drain(1) == ["b1"]
        assert it.wait() == ["b1"]
        assert bodies_on(ours.client, "a") == ["a1"]
        it.consumer.add_queue(queue("a")(it.channel))
        it.consumer.consume()
        assert it.drain(2) == ["b1", "a1"]


def test_nothing_is_left_after_a_clean_end(ours: Broker) -> None:
    publish(ours, "q", *range(10))
    with reader(ours, "q", prefetch=3) as it:
        it.drain(10)
    left = {key for key in lasting_keys(ours.client) if not key.startswith(("_kombu.", "{_kombu."))}
    assert left == {"delayq:queues"}


def test_the_channel_of_a_consumer_disappears_with_it(ours: Broker) -> None:
    channels = f"delayq:alive:*:{os.getpid()}:*"
    wait_until(lambda: not ours.client.pubsub_channels(channels), "those of other tests are gone", 40)
    with reader(ours, "q") as it:
        it.wait(0.1)
        wait_until(lambda: len(ours.client.pubsub_channels(channels)) == 1, "it is there")
    wait_until(lambda: not ours.client.pubsub_channels(channels), "it is gone")

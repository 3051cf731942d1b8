"""What kombu promises of every transport holds for ours: publish, get, consume, acknowledge, reject, purge, size."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest
from kombu import Connection, Consumer, Exchange, Queue
from kombu.message import Message
from kombu.transport.redis import Transport as StockTransport

from celery_delayq.transport import Transport
from examples.private_redis import PrivateRedis
from tests.integration.publishing import DIRECT, LATER, Broker, broker


@pytest.fixture
def ours(redis_server: PrivateRedis) -> Iterator[Broker]:
    with broker(redis_server, "delayq", 3) as ours:
        yield ours


def get(ours: Broker, no_ack: bool = False) -> Message | None:
    return DIRECT(ours.channel).get(no_ack=no_ack)


def test_it_presents_itself_as_a_redis_transport(ours: Broker) -> None:
    transport = ours.connection.transport
    assert isinstance(transport, Transport)
    assert (transport.driver_type, transport.driver_name) == ("redis", "redis")
    assert transport.implements == StockTransport.implements
    assert ours.connection.connection_errors == StockTransport.connection_errors
    assert ours.connection.channel_errors == StockTransport.channel_errors


def test_messages_come_out_in_the_order_in_which_they_went_in(ours: Broker) -> None:
    for number in range(3):
        ours.publish({"number": number})
    assert ours.channel._size("tasks") == 3
    received = [get(ours) for _ in range(3)]
    assert [message.payload["number"] for message in received] == [0, 1, 2]
    assert get(ours) is None
    for message in received:
        message.ack()
    assert not ours.client.exists("unacked", "unacked_index")


def test_higher_priority_comes_out_first(ours: Broker) -> None:
    for priority in (9, 0, 6):
        ours.publish({"priority": priority}, priority=priority)
    received = [get(ours, no_ack=True).payload["priority"] for _ in range(3)]
    assert received == [0, 6, 9]  # Redis: 0 is the highest


def test_a_requeued_message_comes_again_and_a_rejected_one_does_not(ours: Broker) -> None:
    ours.publish("body")
    first = get(ours)
    first.requeue()
    second = get(ours)
    assert second.payload == "body"
    assert second.delivery_info["redelivered"] is True
    second.reject()
    assert get(ours) is None
    assert not ours.client.exists("unacked", "unacked_index")


def test_a_transferred_message_is_requeued_for_now(ours: Broker) -> None:
    ours.publish("body", eta=LATER.isoformat())
    assert get(ours) is None
    ours.transfer_all()
    get(ours).requeue()
    message = get(ours)
    assert message.payload == "body"
    message.ack()
    assert ours.waiting() == {"tasks": []}


def test_unacknowledged_messages_come_back_when_their_connection_ends(
    redis_server: PrivateRedis,
) -> None:
    with broker(redis_server, "delayq", 3) as ours:
        ours.publish("body", eta=LATER.isoformat())
        ours.transfer_all()
        with ours.connection.clone() as other:
            assert DIRECT(other.default_channel).get().payload == "body"
            assert get(ours) is None
        assert get(ours).payload == "body"


def test_a_consumer_gets_direct_topic_and_fanout_messages(ours: Broker) -> None:
    received: list[object] = []

    def on_message(body: object, message: Message) -> None:
        received.append(body)
        message.ack()

    queues = [
        DIRECT,
        Queue("topic", Exchange("topic", "topic"), routing_key="a.*"),
        Queue("fanout", Exchange("fanout", "fanout")),
    ]
    patterns = ours.client.pubsub_numpat()
    with (
        ours.connection.clone() as connection,
        Consumer(connection, queues, callbacks=[on_message]),
    ):
        while ours.client.pubsub_numpat() == patterns:
            with suppress(socket.timeout):
                connection.drain_events(timeout=0.1)
        ours.publish("direct")
        ours.publish("topic", to=queues[1], routing_key="a.b")
        ours.publish("fanout", to=queues[2])
        while len(received) < 3:
            connection.drain_events(timeout=5)
    assert sorted(map(str, received)) == ["direct", "fanout", "topic"]


def test_a_consumer_that_is_not_celerys_gets_delayed_messages_when_they_are_due(
    ours: Broker,
) -> None:
    ours.publish("due", eta=LATER.isoformat())
    received: list[object] = []
    with ours.connection.clone() as connection:
        with Consumer(connection, [DIRECT], callbacks=[lambda body, _: received.append(body)]):
            with pytest.raises(socket.timeout):
                connection.drain_events(timeout=0.1)
            loop = connection.transport.transfer_loop
            assert loop is not None
            assert loop.is_alive()
            queue = ours.channel.delayed_queue("tasks")
            queue.client.zadd(queue.keys.timeout_set, {queue.peek()[0].raw: 1})
            queue.client.publish(queue.keys.channel, 1)
            connection.drain_events(timeout=5)
        assert received == ["due"]
    assert not loop.is_alive()


def test_a_publisher_runs_no_transfer_loop(ours: Broker) -> None:
    ours.publish("body", eta=LATER.isoformat())
    assert ours.connection.transport.transfer_loop is None


def test_purge_empties_the_lists_as_kombu_has_it(ours: Broker) -> None:
    for priority in (0, 9):
        ours.publish("body", priority=priority)
    assert DIRECT(ours.channel).purge() == 2
    assert ours.channel._size("tasks") == 0


def test_a_deleted_queue_is_gone(ours: Broker) -> None:
    ours.publish("body")
    DIRECT(ours.channel).delete()
    assert ours.client.keys("*") == []


def test_a_connection_that_was_collected_can_be_used_again(redis_server: PrivateRedis) -> None:
    with Connection(f"delayq://127.0.0.1:{redis_server.port}/3") as connection:
        DIRECT(connection.default_channel).declare()
        connection.collect()
        producer = connection.Producer()
        headers = {"task": "note", "id": "i", "eta": LATER.isoformat()}
        producer.publish("body", headers=headers, routing_key="tasks", exchange=DIRECT.exchange)
        assert connection.default_channel.delayed_queue("tasks").cancel("i") == 1

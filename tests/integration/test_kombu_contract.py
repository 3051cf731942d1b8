"""What kombu promises of every transport holds for ours: publish, get, consume, acknowledge, reject, purge, size."""

from __future__ import annotations

import inspect
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import kombu
import pytest
from kombu import Connection, Consumer, Exchange, Queue
from kombu.message import Message
from kombu.transport import redis as kombu_redis
from kombu.transport import virtual
from kombu.transport.redis import Transport as StockTransport
from kombu.utils import scheduling

from celery_delayq import NotReplicated
from celery_delayq.inspector.broker_lists import BrokerList, BrokerLists
from celery_delayq.queue.connections import connection_of
from celery_delayq.transport import SentinelTransport, Transport
from celery_delayq.transport.channel import DelayedChannel
from celery_delayq.transport.poller import Poller
from celery_delayq.transport.qos import FetchingQoS
from celery_delayq.transport.sentinel import DelayedSentinelChannel
from tests.brokers import Server, url_of
from tests.integration.publishing import DIRECT, LATER, Broker, broker

pytestmark = pytest.mark.on_cluster


@pytest.fixture
def ours(any_broker: Server) -> Iterator[Broker]:
    with broker(any_broker, "delayq", 3) as ours:
        yield ours


def get(ours: Broker, no_ack: bool = False) -> Message | None:
    return DIRECT(ours.channel).get(no_ack=no_ack)


def test_it_presents_itself_as_a_redis_transport(ours: Broker) -> None:
    transport = ours.connection.transport
    assert isinstance(transport, Transport)
    assert (transport.driver_type, transport.driver_name) == ("redis", "redis")
    assert transport.implements == StockTransport.implements
    assert set(StockTransport.connection_errors) <= set(ours.connection.connection_errors)
    assert ours.connection.channel_errors == (*StockTransport.channel_errors, NotReplicated)


def test_the_function_that_kombu_calls_in_each_turn_of_an_event_loop_does_what_ours_replaces() -> None:
    """`Poller.turn` stands in for it."""
    source = inspect.getsource(StockTransport.register_with_event_loop)
    assert source.count("loop.on_tick.add(") == 1
    theirs = source.partition("def on_poll_start():")[2].partition("loop.on_tick.add(on_poll_start)")[0]
    assert [line.strip() for line in theirs.splitlines() if line.strip()] == [
        "cycle_poll_start()",
        "[add_reader(fd, on_readable, fd) for fd in cycle.fds]",
    ]


def test_a_program_without_a_worker_gets_one_message_at_a_time(ours: Broker) -> None:
    received: list[object] = []

    def on_message(body: object, message: Message) -> None:
        received.append(body)
        message.ack()

    for number in range(3):
        ours.publish(number)
    with Consumer(ours.channel, [DIRECT], callbacks=[on_message], prefetch_count=10):
        for count in (1, 2, 3):
            ours.connection.drain_events(timeout=20)
            assert received == list(range(count))


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
    any_broker: Server,
) -> None:
    with broker(any_broker, "delayq", 3) as ours:
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
            loop = connection.transport.loops.of("tasks")
            assert loop is not None
            assert loop.is_alive()
            queue = ours.channel.delayed_queue("tasks")
            queue.client.zadd(queue.keys.timeout_set, {queue.peek()[0].raw: 1})
            queue.client.publish(queue.keys.channel, 1)
            connection.drain_events(timeout=5)
        assert received == ["due"]
    assert not loop.is_alive()


#: On a cluster, it is refused unless there is a key prefix.
ALL_BRACES = pytest.param("{tasks}", marks=pytest.mark.one_server("see test_names.py"))


@pytest.mark.parametrize("options", [{}, {"global_keyprefix": "shop:"}, {"sep": "::", "priority_steps": [0, 5]}])
@pytest.mark.parametrize("queue", ["tasks", "tasks.3", "shop:tasks", "a\x06\x16b", "{tasks}:a", ALL_BRACES])
def test_the_name_of_a_broker_list_says_queue_and_priority(
    any_broker: Server, options: dict[str, Any], queue: str
) -> None:
    with broker(any_broker, "delayq", 3, **options) as ours:
        for step in ours.channel.priority_steps:
            name = ours.channel.broker_list(queue, step)
            assert BrokerLists(ours.channel).parse(name) == BrokerList(name, queue, step)


def test_a_publisher_runs_no_transfer_loop(ours: Broker) -> None:
    ours.publish("body", eta=LATER.isoformat())
    assert ours.connection.transport.loops.of("tasks") is None


def test_purge_empties_the_lists_as_kombu_has_it(ours: Broker) -> None:
    for priority in (0, 9):
        ours.publish("body", priority=priority)
    assert DIRECT(ours.channel).purge() == 2
    assert ours.channel._size("tasks") == 0


def test_a_deleted_queue_is_gone(ours: Broker) -> None:
    ours.publish("body")
    DIRECT(ours.channel).delete()
    assert ours.dump().keys() == {"delayq:queues"}


def test_a_connection_that_was_collected_can_be_used_again(any_broker: Server) -> None:
    with Connection(url_of(any_broker, 3)) as connection:
        DIRECT(connection.default_channel).declare()
        connection.collect()
        producer = connection.Producer()
        headers = {"task": "note", "id": "i", "eta": LATER.isoformat()}
        producer.publish("body", headers=headers, routing_key="tasks", exchange=DIRECT.exchange)
        assert connection.default_channel.delayed_queue("tasks").cancel("i") == 1


#: Methods of kombu that ours override, and how kombu calls them: the same in all supported versions.
OVERRIDDEN: dict[tuple[type, type], dict[str, str]] = {
    (Transport, kombu_redis.Transport): {
        "__init__": "(self, *args, **kwargs)",
        "establish_connection": "(self)",
        "register_with_event_loop": "(self, connection, loop)",
        "drain_events": "(self, connection, timeout=None)",
        "_deliver": "(self, message, queue)",
        "close_connection": "(self, connection)",
    },
    (SentinelTransport, kombu_redis.Transport): {},
    (DelayedChannel, kombu_redis.Channel): {
        "__init__": "(self, *args, **kwargs)",
        "_new_queue": "(self, queue, auto_delete=False, **kwargs)",
        "basic_publish": "(self, message, exchange, routing_key, **kwargs)",
        "_put": "(self, queue, message, **kwargs)",
        "_put_fanout": "(self, exchange, message, routing_key, **kwargs)",
        "queue_declare": "(self, queue=None, passive=False, **kwargs)",
        "queue_purge": "(self, queue, **kwargs)",
        "queue_bind": "(self, queue, exchange=None, routing_key='', arguments=None, **kwargs)",
        "queue_delete": "(self, queue, if_unused=False, if_empty=False, **kwargs)",
        "_create_client": "(self, asynchronous=False)",
        "pool": "property",
        "basic_consume": "(self, queue, *args, **kwargs)",
        "_basic_cancel": "(self, consumer_tag)",
        "basic_get": "(self, queue, no_ack=False, **kwargs)",
        "active_queues": "property",
        "close": "(self)",
        "_connparams": "(self, asynchronous=False)",
        "_receive": "(self)",
        "_after_fork": "(self)",
        "_queue_bind": "(self, exchange, routing_key, pattern, queue)",
        "get_table": "(self, exchange)",
        "after_reply_message_received": "(self, queue)",
        **({"maybe_refresh_binding_expiry": "(self)"} if kombu.VERSION >= (5, 7) else {}),
    },
    (DelayedSentinelChannel, kombu_redis.SentinelChannel): {
        "_get_pool": "(self, asynchronous=False)",
        "_disconnect_pools": "(self)",
    },
    (Poller, kombu_redis.MultiChannelPoller): {
        "__init__": "(self)",
        "fds": "property",
        "on_poll_start": "(self)",
        "on_readable": "(self, fileno)",
        "handle_event": "(self, fileno, event)",
        "get": "(self, callback, timeout=None)",
        "maybe_restore_messages": "(self)",
        "_register": "(self, channel, client, type)",
        "_register_LISTEN": "(self, channel)",
        "_on_connection_disconnect": "(self, connection)",
        "close": "(self)",
    },
    (FetchingQoS, virtual.QoS): {
        "__init__": "(self, channel, prefetch_count=0)",
        "ack": "(self, delivery_tag)",
        "reject": "(self, delivery_tag, requeue=False)",
        "restore_unacked": "(self)",
        "restore_visible": "(self, *args, **kwargs)",
    },
}

#: Methods of kombu that ours call although they are private, or that decide what ours mean.
CALLED: dict[Any, dict[str, str]] = {
    kombu_redis.Transport: {
        "_deliver": "(self, message, queue)",
        "_reject_inbound_message": "(self, raw_message)",
        "close_channel": "(self, channel)",
    },
    kombu_redis.Channel: {
        "_q_for_pri": "(self, queue, pri)",
        "_get_message_priority": "(self, message, reverse=False)",
        "_get_publish_topic": "(self, exchange, routing_key)",
        "decode_body": "(self, body, encoding=None)",
        "pool": "property",
    },
    kombu_redis.QoS: {
        "__init__": "(self, *args, **kwargs)",
        "restore_visible": "(self, start=0, num=10, interval=10)",
    },
    virtual.QoS: {
        "__init__": "(self, channel, prefetch_count=0)",
        "_flush": "(self)",
        "append": "(self, message, delivery_tag)",
        "can_consume": "(self)",
        "can_consume_max_estimate": "(self)",
        "restore_unacked_once": "(self, stderr=None)",
    },
    scheduling: {"cycle_by_name": "(name)"},
    scheduling.round_robin_cycle: {
        "update": "(self, it)",
        "consume": "(self, n)",
        "rotate": "(self, last_used)",
    },
}


def signature(owner: Any, name: str) -> str:
    """How a method is called."""
    found = inspect.getattr_static(owner, name)
    return "property" if isinstance(found, property) else str(inspect.signature(found))


@pytest.mark.parametrize(
    ("owner", "name", "expected"),
    [
        pytest.param(owner, name, expected, id=f"{owner.__name__}.{name}")
        for owner, methods in [*((base, methods) for (_, base), methods in OVERRIDDEN.items()), *CALLED.items()]
        for name, expected in methods.items()
    ],
)
def test_kombu_has_the_methods_that_we_rely_on(owner: Any, name: str, expected: str) -> None:
    assert signature(owner, name) == expected


@pytest.mark.parametrize(("derived", "base"), OVERRIDDEN.keys())
def test_every_method_that_we_override_is_among_them(derived: type, base: type) -> None:
    others = [it for it, _ in OVERRIDDEN if it is not derived and issubclass(derived, it)]
    bases = [it for it in derived.__mro__[: derived.__mro__.index(base)] if not any(issubclass(o, it) for o in others)]
    members = [item for it in bases for item in vars(it).items()]
    ours = {name for name, value in members if inspect.isfunction(value) or isinstance(value, property)}
    of_kombu = {name for name in dir(base) if not hasattr(object, name)} | {"__init__"}
    assert ours & of_kombu == OVERRIDDEN[derived, base].keys()


@pytest.mark.one_server("it is about kombu")
def test_kombu_has_the_attributes_that_we_rely_on(ours: Broker) -> None:
    with ours.connection.clone() as connection:
        transport, channel = connection.transport, connection.default_channel
        assert channel in transport.channels
        assert transport._avail_channels == []
        assert transport.client is connection
        assert isinstance(transport.cycle, Poller)
        assert channel in transport.cycle._channels
        assert transport.cycle.eventflags
        assert hasattr(transport.cycle.poller, "register")
        assert isinstance(channel._fanout_queues, dict)
        assert channel.ack_emulation is True
        assert channel.priority_steps == [0, 3, 6, 9]
        assert channel.unacked_restore_limit is None
        assert channel.qos._delivered == {}
        assert hasattr(channel.qos._on_collect, "cancel")
        slot_connection = connection_of(channel.pool)
        assert all(hasattr(slot_connection, name) for name in ("connect", "send_command", "read_response"))
    assert kombu_redis.SentinelTransport.default_port == 26379

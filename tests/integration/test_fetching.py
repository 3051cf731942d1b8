"""What kombu promises of consuming holds for messages that are fetched: order, limits, acknowledgements, the end."""

from __future__ import annotations

import base64
import json
import os
import socket
import threading
import time
from bisect import bisect
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from kombu import Connection, Consumer, Exchange, Queue
from kombu.message import Message
from kombu.serialization import loads
from kombu.transport.redis import Channel as StockChannel

from celery_delayq import ConfigurationError
from celery_delayq.dead_letters import NOT_A_MESSAGE, DeadLetters
from examples.private_redis import PrivateRedis
from tests.integration.long_tasks import in_flight
from tests.integration.publishing import Broker, broker
from tests.support import lasting_keys, wait_until
from tests.worker_app import PASSWORD, USER

DB = 4


class Reader:
    """A consumer without an event loop, and what it received."""

    def __init__(self, channel: Any, *names: str, prefetch: int = 0, ack: bool = True, no_ack: bool = False) -> None:
        self.channel = channel
        self.messages: list[Message] = []
        self._ack = ack and not no_ack
        self.consumer = Consumer(channel, [queue(name) for name in names], no_ack=no_ack, on_message=self._on_message)
        self.consumer.qos(prefetch_count=prefetch)
        self.consumer.consume()

    def _on_message(self, message: Message) -> None:
        self.messages.append(message)
        if self._ack:
            message.ack()

    @property
    def bodies(self) -> list[Any]:
        """Everything received so far."""
        return [message.payload for message in self.messages]

    def drain(self, count: int, timeout: float = 10) -> list[Any]:
        """Receive so many messages in all, and return them."""

        def received() -> bool:
            if len(self.messages) < count:
                self.wait(0.1)
            return len(self.messages) >= count

        wait_until(received, f"{count} messages, has {self.bodies}", timeout)
        return self.bodies

    def acknowledge_all(self) -> None:
        """Acknowledge what was neither acknowledged, rejected nor requeued yet."""
        for message in self.messages:
            if not message.acknowledged:
                message.ack()

    def wait(self, timeout: float = 0.3) -> list[Any]:
        """Receive until nothing comes for so many seconds, and return everything received so far."""
        try:
            while True:
                self.channel.connection.client.drain_events(timeout=timeout)
        except TimeoutError:
            return self.bodies


def queue(name: str, **options: Any) -> Queue:
    return Queue(name, Exchange(name, "direct"), routing_key=name, **options)


def publish(ours: Broker, name: str, *bodies: Any, **options: Any) -> None:
    for body in bodies:
        ours.publish(body, to=queue(name), **options)


@contextmanager
def reader(ours: Broker, *names: str, **options: Any) -> Iterator[Reader]:
    """A reader on a connection of its own."""
    with ours.connection.clone() as connection:
        yield Reader(connection.default_channel, *names, **options)


def bodies_on(client: redis.Redis, name: str = "q") -> list[Any]:
    """What is on a broker list, the first to be delivered first."""
    messages = [json.loads(raw) for raw in reversed(client.lrange(name, 0, -1))]
    return [loads(base64.b64decode(m["body"]), m["content-type"], m["content-encoding"]) for m in messages]


def redelivered(message: Message) -> bool:
    return bool(message.delivery_info.get("redelivered"))


@pytest.fixture
def ours(redis_server: PrivateRedis) -> Iterator[Broker]:
    with broker(redis_server, "delayq", DB) as ours:
        yield ours


@contextmanager
def with_options(redis_server: PrivateRedis, **options: Any) -> Iterator[Broker]:
    with broker(redis_server, "delayq", DB, **options) as ours:
        yield ours


# -- order


@pytest.mark.parametrize("prefetch", [1, 4, 0])
@pytest.mark.parametrize(
    ("strategy", "expected"),
    [("priority", ["b"] * 40 + ["a"] * 40), ("sorted", ["a"] * 40 + ["b"] * 40)],
)
def test_a_queue_that_is_preferred_is_emptied_first(
    redis_server: PrivateRedis, strategy: str, expected: list[str], prefetch: int
) -> None:
    with with_options(redis_server, queue_order_strategy=strategy) as ours:
        publish(ours, "a", *["a"] * 40)
        publish(ours, "b", *["b"] * 40)
        with reader(ours, "b", "a", prefetch=prefetch) as it:
            assert it.drain(80) == expected


@pytest.mark.parametrize("prefetch", [1, 2, 4, 0])
def test_round_robin_gives_each_queue_its_share(redis_server: PrivateRedis, prefetch: int) -> None:
    with with_options(redis_server, queue_order_strategy="round_robin") as ours:
        publish(ours, "a", *["a"] * 60)
        publish(ours, "b", *["b"] * 60)
        with reader(ours, "a", "b", prefetch=prefetch) as it:
            received = it.drain(120)
    turn = max(prefetch, 2) if prefetch else 20
    assert all(Counter(received[at : at + turn]) == {"a": turn / 2, "b": turn / 2} for at in range(0, 120, turn))


@pytest.mark.parametrize("steps", [None, [0, 5], list(range(10))])
def test_a_higher_priority_comes_first(redis_server: PrivateRedis, steps: list[int] | None) -> None:
    with with_options(redis_server, **({"priority_steps": steps} if steps else {})) as ours:
        published = [9, 0, 5, 1, 9, 4, 0, 6]
        for priority in published:
            publish(ours, "q", priority, priority=priority)
        expected = sorted(published, key=lambda priority: bisect(steps or [0, 3, 6, 9], priority))
        with reader(ours, "q", prefetch=1) as it:
            assert it.drain(8) == expected


@pytest.mark.parametrize("prefetch", [1, 4, 0])
def test_a_higher_priority_overtakes_a_backlog_that_is_being_fetched(ours: Broker, prefetch: int) -> None:
    publish(ours, "q", *["low"] * 100, priority=9)
    with reader(ours, "q", prefetch=prefetch) as it:
        it.drain(10)
        already = len(it.messages)
        publish(ours, "q", "high", priority=0)
        received = it.drain(101)
    assert received.index("high") <= already + (prefetch or 20)


def test_a_priority_of_one_queue_overtakes_another_queue(ours: Broker) -> None:
    publish(ours, "a", *["low"] * 10, priority=9)
    publish(ours, "b", *["high"] * 10, priority=3)
    with reader(ours, "a", "b", prefetch=1) as it:
        assert it.drain(20) == ["high"] * 10 + ["low"] * 10


# -- how many


@pytest.mark.parametrize("prefetch", [1, 3])
@pytest.mark.parametrize("priorities", [(0,), (0, 9)])
def test_no_more_than_the_prefetch_count_is_taken_from_the_broker_lists(
    ours: Broker, prefetch: int, priorities: tuple[int, ...]
) -> None:
    with reader(ours, "q", prefetch=prefetch, ack=False) as it:
        assert it.wait(0.1) == []  # it waits on the server now, on every list
        for number in range(10):
            publish(ours, "q", number, priority=priorities[number % len(priorities)])
        it.drain(prefetch)
        assert len(it.wait()) == prefetch
        assert ours.channel._size("q") == 10 - prefetch
        assert in_flight(ours.client) == prefetch
        it.messages[0].ack()
        assert len(it.wait()) == prefetch + 1


def test_without_a_prefetch_count_everything_is_delivered(ours: Broker) -> None:
    publish(ours, "q", *range(100))
    with reader(ours, "q", prefetch=0, ack=False) as it:
        assert it.drain(100) == list(range(100))
        publish(ours, "q", *range(100, 200))
        assert it.drain(200) == list(range(200))


def test_the_prefetch_count_changes_at_run_time(ours: Broker) -> None:
    with reader(ours, "q", prefetch=2, ack=False) as it:
        publish(ours, "q", *range(20))
        assert len(it.wait()) == 2
        it.consumer.qos(prefetch_count=5)
        assert len(it.wait()) == 5
        it.consumer.qos(prefetch_count=3)
        for message in it.messages[:3]:
            message.ack()
        assert len(it.wait()) == 6
        assert ours.channel._size("q") == 14
        it.consumer.qos(prefetch_count=0)
        assert it.drain(20) == list(range(20))


def test_two_idle_consumers_of_one_message_each_share_a_burst(ours: Broker) -> None:
    with reader(ours, "q", prefetch=1, ack=False) as one, reader(ours, "q", prefetch=1, ack=False) as other:
        one.wait(0.1)
        other.wait(0.1)
        publish(ours, "q", 1, 2, priority=0)
        publish(ours, "q", 3, priority=9)
        one.drain(1)
        other.drain(1)
        assert len({*one.wait(), *other.wait()}) == 2
        assert ours.channel._size("q") == 1


# -- drain_events


def test_drain_events_delivers_one_message_a_call(ours: Broker) -> None:
    publish(ours, "q", *range(50))
    with reader(ours, "q", prefetch=0) as it:
        for number in range(50):
            it.channel.connection.client.drain_events(timeout=5)
            assert len(it.messages) == number + 1


@pytest.mark.parametrize("timeout", [0.05, 0.4, 1.7])
def test_drain_events_times_out_in_time(ours: Broker, timeout: float) -> None:
    with reader(ours, "q") as it:
        it.wait(0.1)
        begin = time.monotonic()
        with pytest.raises(socket.timeout):
            it.channel.connection.client.drain_events(timeout=timeout)
        assert timeout * 0.9 <= time.monotonic() - begin < timeout + 1.1


def test_drain_events_times_out_when_there_is_no_credit(ours: Broker) -> None:
    publish(ours, "q", 1, 2)
    with reader(ours, "q", prefetch=1, ack=False) as it:
        it.drain(1)
        with pytest.raises(socket.timeout):
            it.channel.connection.client.drain_events(timeout=0.2)
        assert it.bodies == [1]


def test_drain_events_without_a_timeout_waits_for_a_message(ours: Broker) -> None:
    with reader(ours, "q") as it:
        later = threading.Timer(1.5, publish, (ours, "q", "late"))
        later.start()
        it.channel.connection.client.drain_events()
        later.join()
        assert it.bodies == ["late"]


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
        assert ours.channel._size("b") == 2
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
    assert (in_flight(ours.client), ours.channel._size("q")) == (1, 1)
    message.ack()
    wait_until(lambda: in_flight(ours.client) == 0, "it is acknowledged")


def test_a_message_got_without_acknowledgement_is_nobodys(ours: Broker) -> None:
    publish(ours, "q", "body")
    assert queue("q")(ours.channel).get(no_ack=True).payload == "body"
    assert in_flight(ours.client) == 0
    assert ours.channel._size("q") == 0


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


# -- reject, requeue, recover, the end


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
    connection = ours.connection.clone()
    it = Reader(connection.channel(), "q", ack=False, prefetch=6)
    it.drain(6)
    it.messages[2].ack()
    (it.channel if what == "channel" else connection).close()
    assert bodies_on(ours.client) == [0, 1, 3, 4, 5, 6, 7, 8, 9]
    assert in_flight(ours.client) == 0
    connection.release()
    with reader(ours, "q") as it:
        it.drain(10)
        assert [redelivered(message) for message in it.messages] == [True] * 5 + [False] * 5


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
    left = {key for key in lasting_keys(ours.client) if not key.startswith("_kombu.")}
    assert left == set()


def test_the_channel_of_a_consumer_disappears_with_it(ours: Broker) -> None:
    channels = f"delayq:alive:{DB}:*:{os.getpid()}:*"
    wait_until(lambda: not ours.client.pubsub_channels(channels), "those of other tests are gone", 40)
    with reader(ours, "q") as it:
        it.wait(0.1)
        wait_until(lambda: len(ours.client.pubsub_channels(channels)) == 1, "it is there")
    wait_until(lambda: not ours.client.pubsub_channels(channels), "it is gone")


# -- what is no message


WRONG = {
    "no JSON": b"\x80\x04pickle",
    "truncated": b'{"body": "',
    "empty": b"",
    "no object": b"[1, 2]",
    "null": b"null",
    "no message": b'{"a": 1}',
    "no properties": b'{"body": "", "properties": null}',
    "body that cannot be decoded": b'{"body": "a", "headers": {}, "properties": {"body_encoding": "base64"}}',
    "unknown encoding": b'{"body": "a", "headers": {}, "properties": {"body_encoding": "rot13"}}',
}


@pytest.fixture(params=WRONG.values(), ids=WRONG.keys())
def wrong(request: pytest.FixtureRequest, ours: Broker) -> bytes:
    """What is no message, between two messages."""
    publish(ours, "q", "before")
    ours.client.lpush("q", request.param)
    publish(ours, "q", "behind")
    raw: bytes = request.param
    return raw


def is_set_aside(ours: Broker, raw: bytes, name: str = "q") -> None:
    (letter,) = DeadLetters(ours.client, name)
    assert (letter.reason, letter.message) == (NOT_A_MESSAGE, raw)
    assert letter.at_ms is not None
    assert abs(letter.at_ms - time.time() * 1000) < 60_000
    assert in_flight(ours.client) == 0


@pytest.mark.parametrize("prefetch", [1, 0])
def test_a_consumer_sets_aside_what_is_no_message(ours: Broker, wrong: bytes, prefetch: int) -> None:
    with reader(ours, "q", prefetch=prefetch) as it:
        assert it.drain(2) == ["before", "behind"]
    is_set_aside(ours, wrong)


def test_get_sets_aside_what_is_no_message(ours: Broker, wrong: bytes) -> None:
    for expected in ("before", "behind"):
        message = queue("q")(ours.channel).get()
        assert message.payload == expected
        message.ack()
    wait_until(lambda: in_flight(ours.client) == 0, "all are acknowledged")
    is_set_aside(ours, wrong)


def test_drain_events_returns_only_when_a_message_was_delivered(ours: Broker) -> None:
    ours.client.lpush("q", b"no message")
    publish(ours, "q", "behind")
    with reader(ours, "q") as it:
        it.channel.connection.client.drain_events(timeout=5)
        assert it.bodies == ["behind"]


# -- options


@pytest.mark.parametrize("prefetch", [1, 0])
def test_global_keyprefix(redis_server: PrivateRedis, prefetch: int) -> None:
    with with_options(redis_server, global_keyprefix="app:") as ours:
        publish(ours, "q", *range(5))
        ours.client.lpush("app:q", b"no message")
        publish(ours, "q", "behind")
        with reader(ours, "q", prefetch=prefetch, ack=False) as it:
            it.drain(1)
            assert in_flight(ours.client) >= 1
            assert ours.client.zcard("delayq:consumers:{app:q}") == 1
            it.messages[0].requeue()
            while len(it.messages) < 7:
                it.acknowledge_all()
                it.wait(0.1)
            it.acknowledge_all()
        assert Counter(map(str, it.bodies)) == {"0": 2, "1": 1, "2": 1, "3": 1, "4": 1, "behind": 1}
        is_set_aside(ours, b"no message", "app:q")


def test_ack_emulation_off_is_as_kombu_has_it(redis_server: PrivateRedis) -> None:
    with with_options(redis_server, ack_emulation=False) as ours:
        publish(ours, "q", 1, 2, 3)
        message = queue("q")(ours.channel).get()
        assert message.payload == 1
        message.ack()
        with reader(ours, "q", prefetch=1, ack=False) as it:
            it.drain(1)
            assert ours.client.llen("q") == 1
            it.messages[0].ack()
            assert it.drain(2) == [2, 3]
            it.messages[1].ack()
        assert in_flight(ours.client) == 0
        assert list(ours.client.scan_iter("delayq:consumers*")) == []
        assert not ours.client.exists("q", "unacked")


@pytest.mark.skipif(not hasattr(StockChannel, "_get_queue_expire"), reason="this kombu knows no x-expires")
@pytest.mark.parametrize("scheme", ["redis", "delayq"])
def test_an_expiring_queue_lives_for_as_long_as_it_is_used(redis_server: PrivateRedis, scheme: str) -> None:
    expiring = queue("q", expires=100)
    with broker(redis_server, scheme, DB) as either:
        for number in range(3):
            either.publish(number, to=expiring)
        assert 90_000 < either.client.pttl("q") <= 100_000
        either.client.pexpire("q", 30_000)
        expiring(either.channel).get().ack()
        assert 90_000 < either.client.pttl("q") <= 100_000, "a get counts as a use"
        with either.connection.clone() as connection:
            it = Reader(connection.default_channel, "q")
            assert it.drain(2) == [1, 2]


def test_what_is_in_flight_does_not_expire_with_its_queue(ours: Broker) -> None:
    ours.publish("body", to=queue("q", expires=100))
    message = queue("q", expires=100)(ours.channel).get()
    (key,) = ours.client.scan_iter("delayq:inflight:*")
    assert ours.client.ttl(key) == -1
    message.ack()


@pytest.mark.parametrize("name", ["lease", "delivery_limit"])
@pytest.mark.parametrize("value", [-1, "30", None, True, float("nan")])
def test_options_are_checked(redis_server: PrivateRedis, name: str, value: Any) -> None:
    options = {name: value}
    with (
        Connection(redis_server.url.replace("redis", "delayq"), transport_options=options) as connection,
        pytest.raises(ConfigurationError, match=name),
    ):
        connection.ensure_connection(max_retries=1)


# -- permissions


@pytest.fixture
def limited(any_redis_server: PrivateRedis) -> Iterator[Broker]:
    """A user who may neither unblock connections nor see channels, on every server."""
    with any_redis_server.client(db=DB) as client:
        client.flushdb()
        rights = ["-client", "+client|id", "+client|setname", "-pubsub"]
        client.execute_command("ACL SETUSER", USER, "reset", "on", f">{PASSWORD}", "~*", "&*", "+@all", *rights)
        url = f"delayq://127.0.0.1:{any_redis_server.port}/{DB}"
        try:
            with Connection(url, userid=USER, password=PASSWORD) as connection:
                yield Broker(connection, client)
        finally:
            client.execute_command("ACL DELUSER", USER)


def test_a_user_who_may_not_unblock_gets_every_message_once(limited: Broker) -> None:
    with reader(limited, "q", prefetch=1) as it:
        it.wait(0.1)
        for number in range(10):
            publish(limited, "q", number, priority=number % 10)
        assert sorted(it.drain(10)) == list(range(10))
        wait_until(lambda: in_flight(limited.client) == 0, "all are acknowledged")
        it.consumer.cancel()
    with reader(limited, "q", prefetch=1) as it:
        publish(limited, "q", "after")
        assert it.drain(1) == ["after"]


def test_a_user_who_may_not_unblock_puts_back_at_the_end(limited: Broker) -> None:
    with reader(limited, "q", prefetch=1, ack=False) as it:
        it.wait(0.1)
        publish(limited, "q", 0, priority=0)
        it.drain(1)
        publish(limited, "q", 1, priority=9)
    with reader(limited, "q") as it:
        assert it.drain(2, timeout=20) == [0, 1]


# -- threads


def test_many_threads_acknowledge_at_the_same_time(ours: Broker) -> None:
    count, threads = 400, 8
    publish(ours, "q", *range(count))
    with reader(ours, "q", prefetch=50, ack=False) as it:
        stop = threading.Event()

        def acknowledge(number: int) -> None:
            at = number
            while at < count and not stop.is_set():
                if at < len(it.messages):
                    it.messages[at].ack()
                    at += threads
                else:
                    time.sleep(0.001)

        pool = [threading.Thread(target=acknowledge, args=(number,)) for number in range(threads)]
        for thread in pool:
            thread.start()
        try:
            assert sorted(it.drain(count, timeout=30)) == list(range(count))
        finally:
            stop.set() if len(it.messages) < count else None
            for thread in pool:
                thread.join()
        wait_until(lambda: in_flight(ours.client) == 0, "all are acknowledged")
    assert not ours.client.exists("q")

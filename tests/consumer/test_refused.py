"""What the server refuses, or does not hear, is owed: the message is nowhere forgotten, and the connection is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from celery_delayq.fetching.consumer import Consumer
from celery_delayq.queue import keys
from tests.consumer.conftest import Consumers
from tests.state import records
from tests.support import wait_until

Q = keys.QueueKeys.of("q")

#: How a message may leave, and where it is then: what waits on "q", and the records of its dead letters. What is given
#: back was never held, so it has no tag: see `take`.
WAYS: dict[str, tuple[Callable[[Consumer, str], Any], list[bytes], list[bytes]]] = {
    "acknowledged": (lambda consumer, tag: consumer.ack(tag), [], []),
    "requeued": (lambda consumer, tag: consumer.requeue(tag), [b"1 again"], []),
    "put back": (lambda consumer, tag: consumer.put_back([tag]), [b"1 again"], []),
    "given back": (lambda consumer, tag: consumer.give_back("q", [b"1"]), [b"1"], []),
    "set aside": (lambda consumer, tag: consumer.set_aside(tag, b"record"), [], [b"record"]),
}


def take(consumers: Consumers, consumer: Consumer, way: str, *others: bytes) -> list[str]:
    """Publish "1" and others, and let a consumer take them; return their tags. "1" has none if it is given back."""
    consumers.publish(b"1", *others)
    messages = consumer.fetch("q", 1 + len(others))
    assert messages == [b"1", *others]
    is_held = way != "given back"
    return ([] if is_held else [""]) + [consumer.hold("q", message) for message in messages[not is_held :]]


@contextmanager
def refused(consumers: Consumers, key: str) -> Iterator[None]:
    """Let the server refuse a key while the block lasts: it is of another type."""
    aside = f"{key} aside"
    if consumers.client.exists(key):
        consumers.client.rename(key, aside)
    consumers.client.set(key, "of another type")
    try:
        yield
    finally:
        # In one step: in between, a watchdog would find nothing that may leave.
        if consumers.client.exists(aside):
            consumers.client.rename(aside, key)
        else:
            consumers.client.delete(key)


def in_flight_key(consumer: Consumer) -> str:
    return Q.in_flight(consumer.id)


def test_a_fetch_behind_a_refused_acknowledgement_loses_no_message(consumers: Consumers) -> None:
    consumer = consumers.make("q", "r")
    refused_one, accepted = consumers.take(consumer, b"1", b"2")
    (other,) = consumers.take(consumer, b"3", name="r")
    connection = consumer.conversation.identity
    consumers.publish(b"4", name="r")
    with refused(consumers, in_flight_key(consumer)):
        assert consumer.ack(refused_one)
        assert consumer.ack(other)
        assert consumer.fetch("r", 1) == [b"4"]
    assert consumer.conversation.identity == connection
    assert set(consumer.outbox.owed) == {refused_one}
    assert consumer.held.keys() == {refused_one, accepted}
    consumer.settle()
    assert consumer.held.keys() == {accepted}
    assert consumers.in_flight(consumer) == [b"2"]


@pytest.mark.parametrize("way", WAYS)
def test_what_is_refused_is_done_later(consumers: Consumers, way: str) -> None:
    leave, waiting, dead = WAYS[way]
    consumer = consumers.make()
    tag, other = take(consumers, consumer, way, b"2")
    with refused(consumers, in_flight_key(consumer)):
        leave(consumer, tag)
        consumer.conversation.read_answers()
        assert consumer.outbox.owed
        consumer.settle()
        assert consumer.outbox.owed, "it is still refused"
    assert consumers.in_flight(consumer) == [b"1", b"2"]
    consumer.settle()
    assert not consumer.outbox.owed
    assert consumer.held.keys() == {other}
    assert consumers.in_flight(consumer) == [b"2"]
    assert consumers.waiting() == waiting
    assert records(consumers.client, "q") == dead


@pytest.mark.parametrize("way", WAYS)
def test_what_did_not_arrive_is_done_later(lasting: Consumers, way: str) -> None:
    leave, waiting, dead = WAYS[way]
    consumer = lasting.make()
    (tag,) = take(lasting, consumer, way)
    lasting.server.kill()
    leave(consumer, tag)
    consumer.conversation.read_answers()
    with pytest.raises(redis.ConnectionError):
        consumer.settle()
    assert consumer.outbox.owed
    lasting.server.start()
    consumer.settle()
    assert (consumer.outbox.owed, consumer.held) == ({}, {})
    assert lasting.in_flight(consumer) == []
    assert lasting.waiting() == waiting
    assert records(lasting.client, "q") == dead


def test_several_go_to_the_front_in_their_order(consumers: Consumers) -> None:
    consumer = consumers.make()
    consumers.publish(b"1", b"2", b"3")
    messages = consumer.fetch("q", 3)
    with refused(consumers, in_flight_key(consumer)):
        consumer.give_back("q", messages)
        consumer.conversation.read_answers()
    consumer.settle()
    assert consumers.waiting() == [b"1", b"2", b"3"]


@pytest.mark.parametrize("way", WAYS)
def test_what_is_owed_for_one_list_holds_up_no_other(consumers: Consumers, way: str) -> None:
    leave, waiting, dead = WAYS[way]
    consumer = consumers.make("r", "q")
    (other,) = consumers.take(consumer, b"other", name="r")
    (tag,) = take(consumers, consumer, way)
    everywhere = [keys.QueueKeys.of("r").in_flight(consumer.id), in_flight_key(consumer)]
    with refused(consumers, everywhere[0]):
        with refused(consumers, everywhere[1]):
            leave(consumer, other) if way != "given back" else consumer.requeue(other)
            leave(consumer, tag)
            consumer.conversation.read_answers()
        consumer.settle()
        assert list(consumer.outbox.owed) == [other]
        assert consumers.in_flight(consumer) == []
    assert consumers.waiting() == waiting
    assert records(consumers.client, "q") == dead


@pytest.mark.parametrize("way", WAYS)
def test_a_consumer_that_is_closed_settles_what_is_owed(consumers: Consumers, way: str) -> None:
    """And puts nothing back that it has decided about."""
    leave, waiting, dead = WAYS[way]
    consumer = consumers.make()
    (tag,) = take(consumers, consumer, way)
    with refused(consumers, in_flight_key(consumer)):
        leave(consumer, tag)
        assert not consumer.close()
    assert consumer.finish()
    assert consumers.in_flight(consumer) == []
    assert consumers.waiting() == waiting
    assert records(consumers.client, "q") == dead


def test_an_acknowledgement_that_is_owed_is_sent_although_the_process_ends(consumers: Consumers) -> None:
    """Nothing is held any more then; otherwise the task would run again."""
    consumer = consumers.make()
    (tag,) = consumers.take(consumer, b"1")
    with refused(consumers, in_flight_key(consumer)):
        consumer.ack(tag)
        consumer.close()
    consumer.keep_only()
    assert consumer.finish()
    assert consumers.waiting() == []


def test_a_list_that_refuses_keeps_no_other_from_being_put_back(consumers: Consumers) -> None:
    consumer = consumers.make("q", "r")
    consumers.take(consumer, b"1")
    consumers.take(consumer, b"2", name="r")
    with refused(consumers, "q"):
        assert not consumer.close()
        assert consumers.waiting("r") == [b"2 again"]
    assert consumer.finish()
    assert consumers.waiting("q") == [b"1 again"]


def test_a_lease_lasts_while_something_is_refused(consumers: Consumers) -> None:
    consumer = consumers.make("q", "r", lease_s=1.5)
    (tag,) = consumers.take(consumer, b"1")
    with refused(consumers, in_flight_key(consumer)):
        consumer.ack(tag)
        consumer.conversation.read_answers()
        assert consumer.outbox.owed
        before = consumers.score(consumer, "r")
        consumers.watch(consumer)
        wait_until(lambda: consumers.score(consumer, "r") > before + 3000, "it was renewed several times", 20)
    wait_until(lambda: not consumer.outbox.owed, "it is settled")


def test_a_connection_that_redis_py_gave_up_is_not_used_again(consumers: Consumers) -> None:
    """It would connect anew to send, and take other replies for those that it has not read."""
    made: list[redis.Connection] = []

    class Connection(redis.Connection):
        """One that tests can reach."""

        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            made.append(self)

    pool = redis.ConnectionPool(connection_class=Connection, port=consumers.server.port)
    consumer = consumers.make(connection_pool=pool)
    tags = consumers.take(consumer, b"1", b"2")
    consumers.publish(b"3")
    consumer.ack(tags[0])
    for connection in made:
        connection.disconnect()
    consumer.ack(tags[1])
    assert set(consumer.outbox.owed) == set(tags)
    assert consumer.fetch("q", 1) == [b"3"]
    consumer.settle()
    assert consumers.in_flight(consumer) == [b"3"]

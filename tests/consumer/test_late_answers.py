"""A consumer does not wait for the answer to what it asks, and misses nothing when that comes later."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import redis

from celery_delayq.fetching.consumer import Consumer
from celery_delayq.fetching.conversation import Found
from tests.consumer.conftest import Consumers, in_another_thread
from tests.support import wait_until


@contextmanager
def paused(consumers: Consumers) -> Iterator[None]:
    """A server that answers to no command that writes, until the block ends."""
    consumers.client.client_pause(600_000, all=False)
    try:
        yield
    finally:
        consumers.client.client_unpause()


@pytest.fixture
def consumer(consumers: Consumers) -> Consumer:
    """One that has fetched before."""
    consumer = consumers.make()
    consumer.fetch("q", 1)
    return consumer


def asked(consumer: Consumer, limit: int) -> list[Found]:
    """Return a list to which the answer is added when it comes."""
    found: list[Found] = []
    consumer.ask("q", limit, found.append)
    return found


def answer(consumer: Consumer, found: list[Found]) -> Found:
    wait_until(lambda: consumer.conversation.read() or found, "an answer")
    (it,) = found
    return it


def test_messages_come_later(consumers: Consumers, consumer: Consumer) -> None:
    consumers.publish(b"1", b"2")
    with paused(consumers):
        found = asked(consumer, 2)
        wait_until(lambda: consumer.conversation.read() or consumer.conversation.is_late, "the answer is late")
        consumer.conversation.read()
        assert found == []
    assert answer(consumer, found) == [b"1", b"2"]
    assert not consumer.conversation.is_late
    assert consumer.fetch("q", 1) == []


def test_answers_come_in_the_order_of_the_questions(consumers: Consumers, consumer: Consumer) -> None:
    consumers.publish(b"1", b"2", b"3")
    with paused(consumers):
        first = asked(consumer, 1)
        second = asked(consumer, 2)
    assert answer(consumer, second) == [b"2", b"3"]
    assert first == [[b"1"]]


def test_a_fetch_that_waits_handles_the_answers_before_its_own(consumers: Consumers, consumer: Consumer) -> None:
    consumers.publish(b"1", b"2")
    first = asked(consumer, 1)
    assert consumer.fetch("q", 1) == [b"2"]
    assert first == [[b"1"]]


def test_who_handles_an_answer_may_wait_for_another_one(consumers: Consumers, consumer: Consumer) -> None:
    """Answers that have come together are not mixed up."""
    consumers.publish(b"1", b"2", b"3")
    client_id = str(consumers.client.client_id())
    with paused(consumers):
        found: list[Found] = []

        def on_first(messages: Found) -> None:
            found.append(messages)
            assert consumer.conversation.unblock([client_id], 10)

        consumer.ask("q", 1, on_first)
        second = asked(consumer, 2)
    assert answer(consumer, second) == [b"2", b"3"]
    assert found == [[b"1"]]


def test_answers_to_acknowledgements_come_before(consumers: Consumers, consumer: Consumer) -> None:
    consumers.publish(b"1", b"2")
    (message,) = consumer.fetch("q", 1)
    tag = consumer.hold("q", message)
    with paused(consumers):
        consumer.ack(tag)
        found = asked(consumer, 1)
    assert answer(consumer, found) == [b"2"]
    assert not consumer.held
    assert not consumer.outbox.owed


@pytest.mark.parametrize("in_thread", [False, True])
def test_what_leaves_meanwhile_is_sent(consumers: Consumers, consumer: Consumer, in_thread: bool) -> None:
    consumers.publish(b"1", b"2", b"3")
    tags = [consumer.hold("q", message) for message in consumer.fetch("q", 2)]
    consumers.watch(consumer)
    with paused(consumers):
        found = asked(consumer, 1)
        wait_until(lambda: consumer.conversation.read() or consumer.conversation.is_late, "the answer is late")
        if in_thread:
            in_another_thread(lambda: consumer.ack(tags[0]))
        else:
            consumer.ack(tags[0])
        consumer.requeue(tags[1])
    assert answer(consumer, found) == [b"3"]
    consumer.conversation.read_answers()
    assert not consumer.held
    assert not consumer.outbox.owed
    assert consumers.in_flight(consumer) == [b"3"]
    assert consumer.fetch("q", 3) == [b"2 again"]


def test_what_is_acknowledged_meanwhile_is_owed_if_the_connection_ends(
    consumers: Consumers, consumer: Consumer
) -> None:
    consumers.publish(b"1", b"2")
    (message,) = consumer.fetch("q", 1)
    tag = consumer.hold("q", message)
    with paused(consumers):
        found = asked(consumer, 1)
        consumer.ack(tag)
        consumers.cut_connections()
        assert isinstance(answer(consumer, found), redis.ConnectionError)
        assert consumer.outbox.owed.keys() == {tag}
        assert consumer.conversation.lost


def test_answers_to_acknowledgements_are_waited_for_a_second(consumers: Consumers, consumer: Consumer) -> None:
    consumers.publish(b"1")
    (message,) = consumer.fetch("q", 1)
    tag = consumer.hold("q", message)
    with paused(consumers):
        consumer.ack(tag)
        assert not consumer.conversation.read_answers()
        assert consumer.held
    assert consumer.conversation.read_answers()
    assert not consumer.held


def test_a_consumer_that_closes_loses_no_late_message(consumers: Consumers, consumer: Consumer) -> None:
    consumers.publish(b"1")
    watchdog = consumers.watch(consumer)
    with paused(consumers):
        found = asked(consumer, 1)
        consumer.retire()
        assert isinstance(found[0], redis.ConnectionError)
    wait_until(lambda: consumers.client.lrange("q", 0, -1), "it is put back")
    wait_until(lambda: not consumers.in_flight(consumer), "nothing is in flight")
    assert watchdog.consumer.is_closed


def test_the_end_of_a_connection_is_an_answer(consumers: Consumers, consumer: Consumer) -> None:
    consumers.publish(b"1")
    identity = consumer.conversation.identity
    assert identity is not None
    with paused(consumers):
        found = asked(consumer, 1)
        consumers.client.client_kill_filter(_id=identity.client_id)
        assert isinstance(answer(consumer, found), redis.ConnectionError)
    assert consumer.conversation.lost
    assert consumer.conversation.identity is None

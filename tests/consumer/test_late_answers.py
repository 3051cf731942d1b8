"""A consumer that does not wait for a server, because its thread has other things to do, misses nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import redis

from celery_delayq.fetching.consumer import Consumer
from celery_delayq.fetching.conversation import NotYet
from tests.consumer.conftest import Consumers, in_another_thread
from tests.support import wait_until

PATIENCE_S = 0.01


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
    consumer = consumers.make(patience_s=PATIENCE_S)
    consumer.fetch("q", 1, is_patient=True)
    return consumer


def resume(consumer: Consumer) -> list[bytes]:
    late = consumer.late
    assert late is not None
    assert late.has_reply(30)
    return consumer.resume()


def test_messages_come_later(consumers: Consumers, consumer: Consumer) -> None:
    consumers.publish(b"1", b"2")
    with paused(consumers):
        with pytest.raises(NotYet):
            consumer.fetch("q", 2)
        assert consumer.late is not None
        assert not consumer.late.has_reply(0)
    assert resume(consumer) == [b"1", b"2"]
    assert consumer.late is None
    assert consumer.fetch("q", 1, is_patient=True) == []


def test_answers_to_acknowledgements_come_before(consumers: Consumers, consumer: Consumer) -> None:
    consumers.publish(b"1", b"2")
    (message,) = consumer.fetch("q", 1, is_patient=True)
    tag = consumer.hold("q", message)
    with paused(consumers):
        consumer.ack(tag)
        with pytest.raises(NotYet):
            consumer.fetch("q", 1)
    assert resume(consumer) == [b"2"]
    assert not consumer.held
    assert not consumer.owed


@pytest.mark.parametrize("in_thread", [False, True])
def test_what_is_acknowledged_meanwhile_is_sent_and_what_goes_back_is_owed(
    consumers: Consumers, consumer: Consumer, in_thread: bool
) -> None:
    consumers.publish(b"1", b"2", b"3")
    tags = [consumer.hold("q", message) for message in consumer.fetch("q", 2, is_patient=True)]
    consumers.watch(consumer)
    with paused(consumers):
        with pytest.raises(NotYet):
            consumer.fetch("q", 1)
        if in_thread:
            in_another_thread(lambda: consumer.ack(tags[0]))
        else:
            consumer.ack(tags[0])
        consumer.requeue(tags[1])
        assert consumer.owed.keys() == {tags[1]}
    assert resume(consumer) == [b"3"]
    wait_until(lambda: not consumer.owed, "the watchdog has told the server")
    consumer.read_answers()
    assert not consumer.held
    assert consumers.in_flight(consumer) == [b"3"]
    assert consumer.fetch("q", 3, is_patient=True) == [b"2 again"]


def test_what_is_acknowledged_meanwhile_is_owed_if_the_connection_ends(
    consumers: Consumers, consumer: Consumer
) -> None:
    consumers.publish(b"1", b"2")
    (message,) = consumer.fetch("q", 1, is_patient=True)
    tag = consumer.hold("q", message)
    with paused(consumers):
        with pytest.raises(NotYet):
            consumer.fetch("q", 1)
        consumer.ack(tag)
        consumers.cut_connections()
        with pytest.raises(redis.ConnectionError):
            resume(consumer)
        assert consumer.owed.keys() == {tag}
        assert consumer.has_lost_reply


def test_answers_alone_are_not_waited_for(consumers: Consumers, consumer: Consumer) -> None:
    consumers.publish(b"1")
    (message,) = consumer.fetch("q", 1, is_patient=True)
    tag = consumer.hold("q", message)
    with paused(consumers):
        consumer.ack(tag)
        consumer.read_answers()
        assert consumer.late is None
        assert consumer.held
    consumer.read_answers()
    assert not consumer.held


def test_a_consumer_that_closes_loses_no_late_message(consumers: Consumers, consumer: Consumer) -> None:
    consumers.publish(b"1")
    watchdog = consumers.watch(consumer)
    with paused(consumers):
        with pytest.raises(NotYet):
            consumer.fetch("q", 1)
        consumer.retire()
    wait_until(lambda: consumers.client.lrange("q", 0, -1), "it is put back")
    wait_until(lambda: not consumers.in_flight(consumer), "nothing is in flight")
    assert watchdog.consumer.is_closed


def test_the_end_of_a_connection_is_an_answer(consumers: Consumers, consumer: Consumer) -> None:
    consumers.publish(b"1")
    identity = consumer.reader
    assert identity is not None
    with paused(consumers):
        with pytest.raises(NotYet):
            consumer.fetch("q", 1)
        consumers.client.client_kill_filter(_id=identity.client_id)
        with pytest.raises(redis.ConnectionError):
            resume(consumer)
    assert consumer.late is None
    assert consumer.has_lost_reply

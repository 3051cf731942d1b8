"""Acknowledgements of a worker share a write: they wait for each other, but not for long, and none is lost."""

from __future__ import annotations

import math

import pytest

from celery_delayq.fetching import conversation
from celery_delayq.fetching.consumer import Consumer
from tests.consumer.conftest import Consumers
from tests.support import wait_until

MESSAGES = [b"%d" % number for number in range(conversation.TOGETHER)]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait for each other as long as it takes."""
    monkeypatch.setattr(conversation, "TOGETHER_S", math.inf)


@pytest.fixture
def worker(consumers: Consumers) -> Consumer:
    """A consumer that collects acknowledgements."""
    return consumers.make(collects=True)


def take_late(consumers: Consumers, consumer: Consumer, *messages: bytes) -> list[str]:
    """Let it take messages that are acknowledged when their tasks are done; return their tags."""
    tags = consumers.take(consumer, *messages)
    for tag in tags:
        consumer.can_wait(tag)
    return tags


def gone(consumers: Consumers, consumer: Consumer) -> None:
    """Wait until nothing is in flight, and see that nothing was put back."""
    wait_until(lambda: not consumers.in_flight(consumer), "all are acknowledged")
    consumer.conversation.read_answers()
    assert (consumers.waiting(), dict(consumer.held), consumer.outbox.owed) == ([], {}, {})


@pytest.mark.usefixtures("patient")
class TestWaiting:
    def test_as_long_as_the_worker_is_busy(self, consumers: Consumers, worker: Consumer) -> None:
        for tag in take_late(consumers, worker, *MESSAGES[:3]):
            assert worker.ack(tag)
        assert worker.conversation.flush(may_wait=True)
        assert consumers.in_flight(worker) == MESSAGES[:3]
        assert not worker.conversation.flush(may_wait=False)
        gone(consumers, worker)

    def test_until_they_are_many(self, consumers: Consumers, worker: Consumer) -> None:
        *tags, last = take_late(consumers, worker, *MESSAGES)
        for tag in tags:
            assert worker.ack(tag)
        assert worker.conversation.flush(may_wait=True)
        assert worker.ack(last)
        gone(consumers, worker)

    def test_until_the_next_fetch(self, consumers: Consumers, worker: Consumer) -> None:
        (tag,) = take_late(consumers, worker, b"1")
        assert worker.ack(tag)
        consumers.take(worker, b"2")
        assert consumers.in_flight(worker) == [b"2"]

    def test_until_one_that_must_not(self, consumers: Consumers, worker: Consumer) -> None:
        """As the acknowledgement of a task that has begun: it must rather not run twice."""
        late, early = take_late(consumers, worker, b"1") + consumers.take(worker, b"2")
        assert worker.ack(late)
        assert worker.ack(early)
        assert consumers.in_flight(worker) == [b"1", b"2"]
        assert not worker.conversation.flush(may_wait=True)
        gone(consumers, worker)

    def test_not_without_a_loop_that_would_send_them(self, consumers: Consumers) -> None:
        lone = consumers.make()
        for tag in take_late(consumers, lone, *MESSAGES[:3]):
            assert lone.ack(tag)
        gone(consumers, lone)


def test_they_do_not_wait_for_long(consumers: Consumers, worker: Consumer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "TOGETHER_S", 0.0)
    (tag,) = take_late(consumers, worker, b"1")
    assert worker.ack(tag)
    assert not worker.conversation.flush(may_wait=True)
    gone(consumers, worker)


@pytest.mark.usefixtures("patient")
class TestTheEnd:
    def test_of_the_consumer_sends_them(self, consumers: Consumers, worker: Consumer) -> None:
        (tag,) = take_late(consumers, worker, b"1")
        assert worker.ack(tag)
        assert worker.close()
        gone(consumers, worker)

    def test_of_a_channel_puts_back_the_others(self, consumers: Consumers, worker: Consumer) -> None:
        done, unfinished = take_late(consumers, worker, b"1", b"2")
        assert worker.ack(done)
        worker.put_back([done, unfinished])
        worker.conversation.read_answers()
        assert consumers.in_flight(worker) == []
        assert consumers.waiting() == [b"2 again"]

    def test_of_the_connection_leaves_them_to_the_next(self, consumers: Consumers, worker: Consumer) -> None:
        (tag,) = take_late(consumers, worker, b"1")
        assert worker.ack(tag)
        consumers.cut_connections()
        worker.conversation.flush(may_wait=False)
        worker.conversation.read_answers()
        with worker.connect() as client:
            worker.settle(client)
        gone(consumers, worker)

    def test_of_a_node_that_hangs_leaves_them_to_the_watchdog(self, consumers: Consumers, worker: Consumer) -> None:
        (tag,) = take_late(consumers, worker, b"1")
        assert worker.ack(tag)
        worker.retire()
        assert consumers.in_flight(worker) == [b"1"]
        assert worker.outbox.owed.keys() == {tag}
        with worker.connect() as client:
            assert worker.finish(client)
        gone(consumers, worker)

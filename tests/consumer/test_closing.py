"""A consumer that is closed puts everything back, but what is being worked on, and leaves nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from celery_delayq.fetching import abandoned, watchdog
from celery_delayq.fetching.consumer import Consumer
from celery_delayq.queue.connections import connection_of
from celery_delayq.queue.subscription import Identity, identify
from tests.consumer.conftest import Consumers, in_another_thread
from tests.support import wait_until

#: Lets a consumer wait on the server, on a connection that nobody reads; returns which.
Blmove = Callable[[Consumer], Identity | None]


def blocked(consumers: Consumers) -> int:
    """Return how many connections wait on the server."""
    count: int = consumers.client.info("clients")["blocked_clients"]
    return count


@pytest.fixture
def blmove(consumers: Consumers) -> Iterator[Blmove]:
    connections = []

    def send(consumer: Consumer) -> Identity | None:
        connection = connection_of(consumer.client.connection_pool)
        connections.append(connection)
        connection.connect()
        identity = identify(connection)
        connection.send_command("BLMOVE", "q", consumer.leases.lists["q"].in_flight(consumer.id), "RIGHT", "LEFT", 30)
        wait_until(lambda: blocked(consumers) == len(connections), "it waits on the server")
        return identity

    yield send
    for connection in connections:
        connection.disconnect()


def test_puts_everything_back_and_leaves_no_key(consumers: Consumers) -> None:
    consumer = consumers.make("q", "r")
    consumers.take(consumer, b"held")
    consumers.publish(b"not held", b"waiting")
    consumer.fetch("q", 1)
    assert consumer.close() is True
    assert consumers.waiting() == [b"held again", b"not held again", b"waiting"]
    assert consumers.names_of_keys() == {"q"}
    assert consumer.close() is True


@pytest.mark.parametrize("thread", ["own", "another"])
def test_keeps_what_is_being_worked_on(consumers: Consumers, thread: str) -> None:
    consumer = consumers.make("q", "r")
    running, held = consumers.take(consumer, b"running", b"held")
    assert consumer.close(keep=[running]) is False
    assert consumers.waiting() == [b"held again"]
    assert consumers.in_flight(consumer) == [b"running"]
    assert consumers.score(consumer) > 0
    assert not consumer.ack(held)
    assert consumer.ack(running) if thread == "own" else in_another_thread(consumer.ack, running)
    assert in_another_thread(consumer.finish) is True  # by the watchdog
    assert consumers.in_flight(consumer) == []
    assert consumers.names_of_keys() == {"q"}


@pytest.mark.parametrize("way", ["acknowledged", "requeued"])
def test_the_watchdog_says_at_once_what_becomes_of_the_rest(
    consumers: Consumers, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    for name in ("_LONGEST_WAIT_S", "_FINISH_S"):
        monkeypatch.setattr(watchdog, name, 3600.0)
    consumer = consumers.make(lease_s=3600.0)
    consumers.watch(consumer)
    (running,) = consumers.take(consumer, b"running")
    assert not consumer.close(keep=[running])
    wait_until(lambda: consumers.client.pubsub_channels(), "the watchdog waits")
    consumer.ack(running) if way == "acknowledged" else consumer.requeue(running)
    wait_until(lambda: not consumers.in_flight(consumer), "it has left")
    assert consumers.waiting() == ([] if way == "acknowledged" else [b"running again"])


def test_what_is_worked_on_may_be_requeued(consumers: Consumers) -> None:
    consumer = consumers.make()
    (running,) = consumers.take(consumer, b"running")
    consumer.close(keep=[running])
    assert consumer.requeue(running)
    assert consumer.finish() is True
    assert consumers.waiting() == [b"running again"]
    assert consumers.names_of_keys() == {"q"}


def test_while_the_server_refuses(consumers: Consumers) -> None:
    """Nothing is raised; the watchdog goes on."""
    consumer = consumers.make()
    consumers.take(consumer, b"1")
    consumers.client.set("q", "no list")
    assert consumer.close() is False
    assert consumers.in_flight(consumer) == [b"1"]
    consumers.client.delete("q")
    assert consumer.finish() is True
    assert consumers.waiting() == [b"1 again"]
    assert consumers.names_of_keys() == {"q"}


def test_ends_a_blocking_command_that_has_no_receivers_to(consumers: Consumers, blmove: Blmove) -> None:
    consumer = consumers.make()
    consumer.abandon([blmove(consumer)])
    assert consumer.close() is True
    assert blocked(consumers) == 0
    consumers.publish(b"late")
    assert consumers.waiting() == [b"late"]
    assert consumers.names_of_keys() == {"q"}


def test_waits_for_a_blocking_command_that_it_does_not_know(
    consumers: Consumers, blmove: Blmove, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(abandoned, "BLOCK_S", 1.5)
    consumer = consumers.make()
    blmove(consumer)
    consumer.abandon([None])
    assert consumer.close() is False
    consumers.publish(b"late")
    wait_until(lambda: consumers.in_flight(consumer) == [b"late"], "it was given a message")
    assert consumer.finish() is False
    assert consumers.waiting() == [b"late again"]
    wait_until(consumer.finish, "the command must have ended")
    assert consumers.names_of_keys() == {"q"}


def test_disconnects_everything(consumers: Consumers) -> None:
    before = len(consumers.client.client_list())
    consumer = consumers.make()
    (tag,) = consumers.take(consumer, b"1")
    in_another_thread(consumer.ack, tag)
    consumer.close()
    consumer.disconnect()
    wait_until(lambda: len(consumers.client.client_list()) == before, "its connections are closed")


def test_tags_are_those_of_one_consumer_only(consumers: Consumers) -> None:
    """A task that still runs when its consumer is closed must not be mistaken for one of the next consumer."""
    (first,), (second,) = (consumers.take(consumers.make(), b"1") for _ in range(2))
    assert first != second

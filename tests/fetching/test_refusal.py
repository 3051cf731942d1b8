"""A message that raises as it is delivered is set aside only if it is to blame."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis
from kombu import Consumer
from kombu.message import Message

from celery_delayq import DeadLetters
from celery_delayq.queue.dead_letter import INVALID_TASK, DeadLetter
from celery_delayq.transport.redelivery import DELIVERY_COUNT
from tests.fetching.reading import bodies_on, publish, queue
from tests.integration.long_tasks import in_flight
from tests.integration.publishing import Broker
from tests.support import wait_until

pytestmark = pytest.mark.on_cluster

_CONNECTION_ERRORS = (redis.ConnectionError("lost"), redis.ReadOnlyError("demoted"))


def is_defect(message: dict[str, Any]) -> str | None:
    """As a worker says it."""
    return "its task is bad" if message["headers"].get("task") == "bad" else None


class Fragile:
    """A consumer whose callback fails for some messages, before or after it acknowledges them."""

    def __init__(self, ours: Broker, error: Exception, *, ack_first: bool = False) -> None:
        self.received: list[Any] = []
        self._error = error
        self._ack_first = ack_first
        self.connection = ours.connection.clone()
        channel = self.connection.default_channel
        self.transport = channel.connection
        Consumer(channel, [queue("q")], on_message=self._on_message, prefetch_count=1).consume()

    def _on_message(self, message: Message) -> None:
        self.received.append(message.payload)
        if "fails" in str(message.payload):
            if self._ack_first:
                message.ack()
            raise self._error
        message.ack()

    def drain(self, count: int) -> None:
        while len(self.received) < count:
            self.connection.drain_events(timeout=5)

    def __enter__(self) -> Fragile:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.connection.release()


def letters(ours: Broker) -> list[DeadLetter]:
    return list(DeadLetters(ours.client, "q"))


def bad(ours: Broker, body: str, **headers: Any) -> None:
    publish(ours, "q", body, headers={"task": "bad", "id": "1", **headers})


@pytest.mark.parametrize("error", [TypeError("no list"), KeyError("id"), RuntimeError("any")])
def test_what_is_to_blame_becomes_a_dead_letter_with_the_error(ours: Broker, error: Exception) -> None:
    bad(ours, "fails", **{DELIVERY_COUNT: 19})
    publish(ours, "q", "behind")
    with Fragile(ours, error) as it:
        it.transport.program.defect_of = is_defect
        it.drain(2)
        assert it.received == ["fails", "behind"]
    (letter,) = letters(ours)
    assert (letter.reason, letter.error) == (INVALID_TASK, f"its task is bad ({type(error).__name__}: {error})")
    assert b"x-delivered-alone" not in letter.message
    assert in_flight(ours.client) == 0
    assert not ours.client.exists("q")


@pytest.mark.parametrize("prepare", [lambda it: None, lambda it: setattr(it.transport.program, "defect_of", is_defect)])
def test_what_is_not_to_blame_raises_and_goes_back(ours: Broker, prepare: Callable[[Fragile], None]) -> None:
    publish(ours, "q", "fails", "behind")
    with Fragile(ours, TypeError("a broken extension")) as it:
        prepare(it)
        with pytest.raises(TypeError, match="a broken extension"):
            it.drain(2)
    assert bodies_on(ours.client) == ["fails", "behind"]
    assert not letters(ours)


@pytest.mark.parametrize("error", [*_CONNECTION_ERRORS, MemoryError()])
def test_some_errors_are_never_the_messages(ours: Broker, error: Exception) -> None:
    bad(ours, "fails")
    with Fragile(ours, error) as it:
        it.transport.program.defect_of = is_defect
        with pytest.raises(type(error)):
            it.drain(2)
    assert bodies_on(ours.client) == ["fails"]
    assert not letters(ours)


def test_what_was_acknowledged_is_not_set_aside(ours: Broker, caplog: pytest.LogCaptureFixture) -> None:
    bad(ours, "fails")
    publish(ours, "q", "behind")
    with Fragile(ours, TypeError("no list"), ack_first=True) as it:
        it.transport.program.defect_of = is_defect
        it.drain(2)
    assert not letters(ours)
    assert "its task is bad" in caplog.text
    wait_until(lambda: in_flight(ours.client) == 0, "both are acknowledged")


def test_what_the_worker_will_acknowledge_is_not_set_aside(ours: Broker) -> None:
    bad(ours, "fails")
    publish(ours, "q", "behind")
    tags: list[str] = []
    with Fragile(ours, TypeError("no list")) as it:
        it.transport.program.defect_of = is_defect
        it.transport.program.forget = lambda tag: bool(tags.append(tag))
        with pytest.raises(TimeoutError):
            it.drain(2)
        it.connection.default_channel.basic_ack(*tags)
        it.drain(2)
    assert not letters(ours)
    assert in_flight(ours.client) == 0


def test_what_would_show_too_late_is_not_delivered(ours: Broker) -> None:
    bad(ours, "never")
    publish(ours, "q", "behind")
    with Fragile(ours, TypeError()) as it:
        it.transport.program.late_defect_of = is_defect
        it.drain(1)
        assert it.received == ["behind"]
    (letter,) = letters(ours)
    assert (letter.reason, letter.error) == (INVALID_TASK, "its task is bad")

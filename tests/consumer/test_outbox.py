"""What becomes of messages is said once, whoever says it, and whatever happens meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from celery_delayq.fetching.consumer import Consumer
from celery_delayq.queue.holds import Claim, Holder, Until, holds_of, offer_unique
from celery_delayq.queue.keys import QueueKeys
from tests.consumer.conftest import Consumers, in_another_thread
from tests.consumer.test_refused import refused
from tests.support import wait_until


def test_one_of_two_with_the_same_bytes_that_is_owed_while_the_consumer_closes(
    consumers: Consumers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its watchdog and the thread that closes do not both remove one: the other task still runs."""
    for _ in range(10):
        consumer = consumers.make()
        consumers.watch(consumer)
        running, done = consumers.take(consumer, b"same", b"same")
        keep_only = consumer.keep_only

        def meanwhile(keep: Any = (), tag: str = done, consumer: Consumer = consumer, before: Any = keep_only) -> None:
            before(keep)
            assert in_another_thread(consumer.ack, tag)

        monkeypatch.setattr(consumer, "keep_only", meanwhile)
        assert not consumer.close(keep=[running, done])
        monkeypatch.undo()
        wait_until(lambda consumer=consumer: not consumer.outbox.owed, "it is settled")
        assert consumers.in_flight(consumer) == [b"same"]
        consumer.keep_only()
        wait_until(lambda consumer=consumer: consumer.is_done and not consumer.lists, "it is done")
        consumers.client.delete("q")


class Broken:
    """A client that loses its connection as it sends the second command of a kind."""

    def __init__(self, client: redis.Redis, command: str) -> None:
        self._client, self._command, self._count = client, command, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def execute_command(self, *command: Any, **options: Any) -> Any:
        self._count += command[0] == self._command
        if self._count == 2:
            raise redis.ConnectionError("lost")
        return self._client.execute_command(*command, **options)


def test_what_was_settled_before_the_connection_was_lost_is_held_no_longer(consumers: Consumers) -> None:
    consumer = consumers.make("q", "r")
    tags = consumers.take(consumer, b"1") + consumers.take(consumer, b"2", name="r")
    consumer.close(keep=tags)
    assert all(consumer.ack(tag) for tag in tags)
    with pytest.raises(redis.ConnectionError):
        consumer.finish(Broken(consumers.client, "LREM"))  # type: ignore[arg-type]
    assert consumer.held.keys() == consumer.outbox.owed.keys() == {tags[1]}
    assert consumer.finish()
    assert consumer.is_done


def test_tasks_that_end_after_their_consumer_was_closed_cost_one_command_each(consumers: Consumers) -> None:
    """The lists are not read for each of them."""
    consumer = consumers.make()
    consumers.watch(consumer)
    tags = consumers.take(consumer, *(b"%d" % number for number in range(50)))
    consumer.close(keep=tags)
    consumers.client.config_resetstat()
    for tag in tags:
        consumer.ack(tag)
        wait_until(lambda: not consumer.outbox.owed, "it has left")
    wait_until(lambda: consumer.is_done, "all have left")
    calls = consumers.client.info("commandstats")
    assert calls["cmdstat_lrem"]["calls"] == 50
    assert calls["cmdstat_lrange"]["calls"] < 25


@pytest.mark.parametrize("how", ["open", "closed", "lost"])
def test_a_task_that_is_acknowledged_late_gives_up_its_unique_key(consumers: Consumers, how: str) -> None:
    keys = QueueKeys.of("q")
    claim = Claim("key", "done", 60_000, "keep")
    offer_unique(keys, claim=claim, task_id="1", due_ms=None, payload=b"m", mirrored=False).run(consumers.client)
    consumer = consumers.make()
    consumers.watch(consumer)
    (message,) = consumer.fetch("q", 1)
    tag = consumer.hold("q", message, Holder.of("key", "1"))
    if how == "closed":
        consumer.close(keep=[tag])
    elif how == "lost":
        consumers.cut_connections()
        consumer.conversation.read()
    consumer.unique_keys.starts(tag, with_ack=False)
    assert len(holds_of(consumers.client, [keys], "key")) == 1
    consumer.ack(tag)
    consumer.conversation.read_answers()
    wait_until(lambda: not consumers.in_flight(consumer), "it is acknowledged")
    assert holds_of(consumers.client, [keys], "key") == []


@pytest.mark.parametrize("until", ["start", "done"])
def test_without_an_event_loop_a_unique_key_is_given_up_although_the_server_has_forgotten_its_scripts(
    consumers: Consumers, until: Until
) -> None:
    """Perhaps nobody reads that it has, for as long as a task takes."""
    keys = QueueKeys.of("q")
    claim = Claim("key", until, 60_000, "keep")
    offer_unique(keys, claim=claim, task_id="1", due_ms=None, payload=b"m", mirrored=False).run(consumers.client)
    consumer = consumers.make()
    (message,) = consumer.fetch("q", 1)
    tag = consumer.hold("q", message, Holder.of("key", "1"))
    consumers.client.script_flush()
    consumer.unique_keys.starts(tag, with_ack=False)
    if until == "done":
        consumers.client.script_flush()
        consumer.ack(tag)
        wait_until(lambda: not consumers.in_flight(consumer), "it is acknowledged")
    wait_until(lambda: not holds_of(consumers.client, [keys], "key"), "it is given up")


@pytest.mark.parametrize("how", ["requeued", "set aside", "given back"])
def test_without_an_event_loop_what_is_refused_does_not_wait_for_the_next_fetch(consumers: Consumers, how: str) -> None:
    """Perhaps there is none for as long as a task takes."""
    consumer = consumers.make()
    consumers.watch(consumer)
    consumers.publish(b"1")
    (message,) = consumer.fetch("q", 1)
    with refused(consumers, QueueKeys.of("q").in_flight(consumer.id)):
        if how == "requeued":
            consumer.requeue(consumer.hold("q", message))
        elif how == "set aside":
            consumer.set_aside(consumer.hold("q", message), b"record")
        else:
            consumer.give_back("q", [message])
        assert consumer.outbox.owed
    wait_until(lambda: not consumers.in_flight(consumer), "the watchdog has said it")

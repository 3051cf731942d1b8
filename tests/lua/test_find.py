"""find.lua: all entries of a message id, and of no other one."""

from __future__ import annotations

import random

import pytest

from celery_delayq.queue.delayed_queue import DelayedQueue
from tests.state import FAR, calls, fill, nothing_changes, offer, seed, wrong_type


def found(queue: DelayedQueue, message_id: str) -> list[tuple[int, bytes]]:
    return [(entry.score, entry.payload) for entry in queue.find(message_id)]


def test_one(queue: DelayedQueue) -> None:
    offer(queue, "a", FAR, b"payload")
    offer(queue, "b", FAR)
    with nothing_changes(queue.client):
        assert found(queue, "a") == [(FAR, b"payload")]
        assert found(queue, "never heard of") == []
    assert queue.find("a") == queue.peek()


def test_all_of_an_id_that_was_offered_several_times(queue: DelayedQueue) -> None:
    messages = [(FAR + 1, b"0"), (FAR, b"1"), (FAR + 1, b"2")]
    for due_ms, payload in messages:
        offer(queue, "a", due_ms, payload)
        offer(queue, "b", due_ms, payload)
    assert found(queue, "a") == messages
    offer(queue, "a", 1, b"due")
    queue.transfer()
    assert found(queue, "a") == messages


def test_not_what_is_gone_or_elsewhere(queue: DelayedQueue) -> None:
    """The index says more than there is where somebody else removes or moves entries."""
    for number in range(3):
        offer(queue, "a", FAR + number)
    first, second, third = queue.find("a")
    queue.client.zrem(queue.keys.timeout_set, first.raw)
    seed(queue, {second.raw: FAR + 50})
    assert queue.find("a") == [third]


def test_is_a_search_and_no_walk(one_queue: DelayedQueue) -> None:
    fill(one_queue, 20_000, FAR)
    one_queue.client.config_resetstat()
    for number in random.sample(range(20_000), 30):
        assert found(one_queue, str(number)) == [(FAR, b"%d" % number)]
    assert calls(one_queue.client, "zrange") <= 30 * 17


@pytest.mark.parametrize("which", ["timeout_set", "index"])
def test_a_key_of_another_type(queue: DelayedQueue, which: str) -> None:
    offer(queue, "a")
    wrong_type(queue, getattr(queue.keys, which), lambda: queue.find("a"))


def test_a_message_id_is_text(one_queue: DelayedQueue) -> None:
    with pytest.raises(TypeError, match="a message id must be a str"):
        one_queue.find(b"a")  # type: ignore[arg-type]

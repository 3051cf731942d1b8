"""Keys of another type where a script would otherwise delete them, or be half done when it finds out."""

from __future__ import annotations

import pytest

from celery_delayq.queue import scripts
from celery_delayq.queue.delayed_queue import DelayedQueue
from tests.state import INDEX, REPEATED, TIMEOUT_SET, offer, wrong_type


@pytest.mark.parametrize("key", [INDEX, REPEATED])
def test_tidying_an_empty_queue_deletes_nothing_of_others(queue: DelayedQueue, key: str) -> None:
    wrong_type(queue, key, lambda: scripts.tidy(queue.keys, places=[]).run(queue.client))


def test_tidying_forgets_no_place_before_it_knows_the_index(queue: DelayedQueue) -> None:
    for payload in (b"0", b"1"):
        offer(queue, "a", payload=payload)
    offer(queue, "stays")
    (place,) = queue.client.zrange(REPEATED, 0, -1)
    gone = queue.find("a")[1]
    queue.client.zrem(TIMEOUT_SET, gone.raw)
    wrong_type(queue, INDEX, lambda: scripts.tidy(queue.keys, places=[place]).run(queue.client))


@pytest.mark.parametrize("key", [TIMEOUT_SET, INDEX, REPEATED])
def test_nothing_is_restored_of_another_program(queue: DelayedQueue, key: str) -> None:
    message = {"due_ms": 1, "message_key": b"", "payload": b"its entry", "mirrored": False}
    wrong_type(queue, key, lambda: scripts.restore(queue.keys, **message).run(queue.client))

"""Keys of another type where a script would otherwise delete them, or be half done when it finds out."""

from __future__ import annotations

import pytest

from celery_delayq.queue import scripts
from celery_delayq.queue.delayed_queue import DelayedQueue
from tests.state import INDEX, REPEATED, TIMEOUT_SET, wrong_type


@pytest.mark.parametrize("key", [INDEX, REPEATED])
def test_what_is_left_of_an_empty_queue_may_be_of_others(queue: DelayedQueue, key: str) -> None:
    wrong_type(queue, key, queue.transfer)


@pytest.mark.parametrize("key", [TIMEOUT_SET, INDEX, REPEATED])
def test_nothing_is_restored_of_another_program(queue: DelayedQueue, key: str) -> None:
    message = {"due_ms": 1, "message_key": b"", "payload": b"its entry", "mirrored": False}
    wrong_type(queue, key, lambda: scripts.restore(queue.keys, **message).run(queue.client))

"""purge.lua: ready messages go, the oldest first, and those with a mark are returned."""

from __future__ import annotations

import pytest

from celery_delayq.queue import scripts
from celery_delayq.queue.delayed_queue import DelayedQueue
from tests.state import out_of_memory, publish, state, wrong_type


def purge(queue: DelayedQueue, limit: int = scripts.MAX_FETCH) -> tuple[int, list[bytes]]:
    return scripts.purge(queue.keys, limit=limit, mark=b"[mark]").run(queue.client)


@pytest.mark.parametrize(("limit", "removed"), [(1, 1), (10, 10), (25, 25), (1000, 30)])
def test_the_oldest_messages_go(queue: DelayedQueue, limit: int, removed: int) -> None:
    messages = [b"%d" % number + (b" [mark]" if number % 3 == 0 else b"") for number in range(30)]
    publish(queue, *messages)
    assert purge(queue, limit) == (removed, messages[:removed][::3])
    assert state(queue.client).get("q", []) == messages[removed:][::-1]


def test_an_empty_list(queue: DelayedQueue) -> None:
    assert purge(queue) == (0, [])


def test_large_messages_take_several_calls(queue: DelayedQueue) -> None:
    publish(queue, *[bytes(100_000)] * 30)
    assert purge(queue) == (10, [])
    assert purge(queue) == (10, [])


def test_a_full_server_can_be_emptied(queue: DelayedQueue) -> None:
    publish(queue, b"[mark]")
    with out_of_memory(queue.client):
        assert purge(queue) == (1, [b"[mark]"])


def test_another_type_is_refused(queue: DelayedQueue) -> None:
    wrong_type(queue, "q", lambda: purge(queue))

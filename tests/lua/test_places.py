"""An entry of any kind takes its place along while others wait; of an empty queue, nothing is left anyway."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_delayq.queue.delayed_queue import DelayedQueue
from tests.state import offer, state

#: What takes the entries of "a" away.
WAYS: dict[str, Callable[[DelayedQueue], int]] = {
    "transfer": lambda queue: queue.transfer().moved,
    "cancel": lambda queue: queue.cancel("a"),
    "remove": lambda queue: sum(queue.remove(queue.find("a"))),
    "release": lambda queue: sum(queue.release([(entry, b"") for entry in queue.find("a")])),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("payload", [b"", b"pay"])
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("mirror_list", [False, True])
def test_none_is_left_behind(queue: DelayedQueue, way: str, payload: bytes, count: int, mirror_list: bool) -> None:
    queue.mirror_list = mirror_list
    offer(queue, "stays")
    before = state(queue.client)
    for number in range(count):
        offer(queue, "a", 1, payload=payload + bytes(number))
    assert WAYS[way](queue) == count
    queue.client.delete("q")
    assert state(queue.client) == before

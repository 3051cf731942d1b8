"""An entry of any kind takes its place along while others wait; of an empty queue, nothing is left anyway."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_delayq.queue import codec, scripts
from celery_delayq.queue.codec import message_key
from celery_delayq.queue.delayed_queue import DelayedQueue
from tests.state import DELAY_LIST, INDEX, REPEATED, TIMEOUT_SET, offer, state, wrong_type

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


def only_in_the_earlier_layout(queue: DelayedQueue) -> None:
    """Let the places of "a" be where earlier versions had those of its further entries, and nowhere else."""
    client = queue.client
    for payload in (b"0", b"1", b"2"):
        offer(queue, "a", payload=payload)
    places = b"".join(member[codec.MESSAGE_KEY_SIZE :] for member in client.zrange(REPEATED, 0, -1))
    client.delete(REPEATED, INDEX)
    client.hset(INDEX, message_key("a") + b"+", places)


@pytest.mark.parametrize(
    ("way", "key"),
    [
        *((way, TIMEOUT_SET) for way in ("find", "cancel", "restore", "tidy")),
        *((way, DELAY_LIST) for way in ("cancel", "restore")),
    ],
)
def test_in_the_earlier_layout_stay_there_where_a_key_is_of_another_type(
    queue: DelayedQueue, way: str, key: str
) -> None:
    a = message_key("a")
    only_in_the_earlier_layout(queue)
    calls: dict[str, Callable[[], object]] = {
        "find": lambda: queue.find("a"),
        "cancel": lambda: queue.cancel("a"),
        "restore": lambda: scripts.restore(
            queue.client, queue.keys, due_ms=1, message_key=a, payload=b"", mirrored=True
        ),
        "tidy": lambda: scripts.tidy(queue.client, queue.keys, places=[a]),
    }
    wrong_type(queue, key, calls[way])

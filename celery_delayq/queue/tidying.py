"""Tidying: remove index places of entries that Java took away. Knows only Redis.

A program that transfers or removes an entry without this package leaves its place in the index, and its unique key.
That is harmless, but takes memory until the queue is empty. The transfer loop calls this when it has nothing else to
do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from redis.client import NEVER_DECODE

from celery_delayq.queue import scripts
from celery_delayq.queue.delayed_queue import DelayedQueue

#: Number of places that one step examines.
_PLACES = 50


def tidy(queue: DelayedQueue) -> Iterator[int]:
    """Examine all places once, and remove those whose entries no longer wait. Each iteration is one bounded step.

    It ends as soon as there are no more places than entries; if that is so at the start, it costs one script call. It
    never removes the place of a waiting entry, even while others offer, transfer and tidy.

    Yields:
        The number of places that the step removed.

    Raises:
        redis.RedisError: the server is away or refuses a command.
    """
    _, surplus = scripts.tidy(queue.keys, places=[]).run(queue.client)
    scans = _scans(queue)
    while surplus > 0 and (found := next(scans, None)) is not None:
        for start in range(0, len(found), _PLACES):
            forgotten, surplus = scripts.tidy(queue.keys, places=found[start : start + _PLACES]).run(queue.client)
            yield forgotten


def _scans(queue: DelayedQueue) -> Iterator[list[bytes]]:
    """Yield message keys with their places: first those in the index, then those of further entries."""
    for found in _scan(queue, "HSCAN", queue.keys.index):
        yield [message_key + place for message_key, place in found.items()]
    for found in _scan(queue, "ZSCAN", queue.keys.repeated):
        yield [member for member, _ in found]


def _scan(queue: DelayedQueue, command: str, key: str) -> Iterator[Any]:
    cursor = 0
    while True:
        cursor, found = queue.client.execute_command(command, key, cursor, "COUNT", _PLACES, **{NEVER_DECODE: True})
        yield found
        if not cursor:
            return

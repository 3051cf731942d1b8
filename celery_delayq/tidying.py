"""Tidying: forget places in the index of entries that Java, or an earlier version, took away; knows Redis only.

Who transfers or removes an entry without this package leaves its place behind. That misleads nobody, but takes memory
until the queue is empty. The transfer loop calls this while it has nothing else to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from redis.client import NEVER_DECODE

from celery_delayq import codec, scripts
from celery_delayq.delayed_queue import DelayedQueue

#: Places that one step looks at.
_PLACES = 50


def tidy(queue: DelayedQueue) -> Iterator[int]:
    """Look through all places once, and forget those whose entries wait no more; a bounded step each time it is asked.

    It ends as soon as there are no more places than entries, which costs one call of a script where it is so at first.
    Among others who offer, transfer and tidy it forgets no place of an entry that waits.

    Yields:
        How many places the step has forgotten.

    Raises:
        redis.RedisError: the server is away or refuses.
    """
    _, surplus = scripts.tidy(queue.client, queue.keys, places=[])
    scans = _scans(queue)
    while surplus > 0 and (found := next(scans, None)) is not None:
        for start in range(0, len(found), _PLACES):
            forgotten, surplus = scripts.tidy(queue.client, queue.keys, places=found[start : start + _PLACES])
            yield forgotten


def _scans(queue: DelayedQueue) -> Iterator[list[bytes]]:
    """Yield message keys with places, first those of the index, then those of further entries."""
    for found in _scan(queue, "HSCAN", queue.keys.index):
        # Another field is of an earlier version: the places of many entries.
        yield [
            field + place if len(field) == codec.MESSAGE_KEY_SIZE else field[: codec.MESSAGE_KEY_SIZE]
            for field, place in found.items()
        ]
    for found in _scan(queue, "ZSCAN", queue.keys.repeated):
        yield [member for member, _ in found]


def _scan(queue: DelayedQueue, command: str, key: str) -> Iterator[Any]:
    cursor = 0
    while True:
        cursor, found = queue.client.execute_command(command, key, cursor, "COUNT", _PLACES, **{NEVER_DECODE: True})
        yield found
        if not cursor:
            return

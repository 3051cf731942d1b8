"""Calls of the scripts for dead letters, and for failed tasks, which have keys of their own."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from celery_delayq.queue.call import Call, load
from celery_delayq.queue.keys import QueueKeys
from celery_delayq.queue.scripts import score_to_ms

#: Maximum number of letters that one call of `requeue_dead` moves.
MAX_REQUEUED = 50


def requeue_dead(keys: QueueKeys, *, letters: Sequence[tuple[str, bytes]], failed: bool = False) -> Call[int]:
    """Move dead letters, or failed tasks (id, message to write), to the back of the list; see `requeue_dead.lua`.

    Returns how many were there.
    """
    names = (*(keys.failed_tasks if failed else keys.dead_letters), keys.queue)
    return Call(load("requeue_dead"), names, [part for pair in letters for part in pair], int)


def keep(keys: QueueKeys, *, record: bytes, most: int, kept_ms: int) -> Call[int]:
    """Keep a failed task by its record; see `keep.lua`. Returns how many older ones were dropped.

    The same record has the same id, so it is kept once.
    """
    letter_id = hashlib.blake2b(record, digest_size=8).hexdigest()
    return Call(load("keep"), keys.failed_tasks, (letter_id, record, most, kept_ms), int)


def page_dead(
    keys: QueueKeys, *, after: tuple[int, str] | None, until_ms: int | None, limit: int, failed: bool = False
) -> Call[list[tuple[int, str]]]:
    """Return times (ms) and ids of the letters behind one, without newer ones; see `page.lua`."""
    after_ms, after_id = after or ("-inf", "")
    return Call(
        load("page"),
        (keys.failed if failed else keys.dead,),
        (after_ms, "+inf" if until_ms is None else until_ms, limit, "entry" if after else "", after_id),
        lambda reply: [
            (score_to_ms(score) or 0, letter_id.decode(errors="replace"))
            for letter_id, score in zip(reply[1::2], reply[2::2], strict=True)
        ],
    )

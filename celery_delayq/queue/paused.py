"""Paused queues: workers fetch nothing from them until somebody resumes them. Knows only Redis.

A SET has their names. Whoever changes it says so on the channel on which new consumers say hello, so all consumers
hear it.
"""

from __future__ import annotations

import redis

from celery_delayq.queue.connections import as_text
from celery_delayq.queue.keys import hello_channel, paused_key

#: What is said on the channel of hellos.
PAUSED = "paused"


def paused(client: redis.Redis, keyprefix: str = "") -> frozenset[str]:
    """Return the names of the paused queues.

    Args:
        client: any `redis.Redis`.
        keyprefix: kombu's `global_keyprefix`.
    """
    return frozenset(map(as_text, client.smembers(paused_key(keyprefix))))


def pause(client: redis.Redis, queue: str, *, keyprefix: str = "", db: int = 0) -> bool:
    """Pause a queue; returns False if it was paused already. May be repeated."""
    is_new = bool(client.sadd(paused_key(keyprefix), queue))
    client.publish(hello_channel(db), PAUSED)
    return is_new


def resume(client: redis.Redis, queue: str, *, keyprefix: str = "", db: int = 0) -> bool:
    """Resume a queue; returns False if it was not paused. May be repeated."""
    was_paused = bool(client.srem(paused_key(keyprefix), queue))
    client.publish(hello_channel(db), PAUSED)
    return was_paused

"""Expiry: queues that were declared with `expires` (kombu 5.7) do not expire while they are consumed.

kombu gives the lists of such a queue a TTL when a message is put there or got, and Redis forgets the TTL with each
list that is empty for a moment. So what comes back to an empty list, or is transferred to it, would stay for ever; and
what waits for a busy worker would expire although it is consumed. RabbitMQ's queues expire only when nobody consumes.

What waits in a delayed queue never expires. A process that transfers need not know the queue: the lists have no TTL
then, until somebody consumes them, or puts a message there.
"""

from __future__ import annotations

import time
from logging import getLogger
from typing import Any

from redis.exceptions import ResponseError

from celery_delayq.connections import NOT_SERVING

logger = getLogger(__name__)

#: The TTL is renewed so many times before it ends.
_RENEWALS = 3


class Expiry:
    """Keeps the lists of a channel's expiring queues. It belongs to the thread that consumes.

    Args:
        channel: a `DelayedChannel`.
    """

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self._keep_at = 0.0

    def declared(self, queue: str) -> None:
        """Take note of what kombu knows of a queue that was declared."""
        expires_ms = getattr(self._channel, "_expires", {}).get(queue)
        known = self._channel.connection.expires_ms
        for name in self._channel.broker_lists(queue):
            if expires_ms is None:
                known.pop(name, None)
            else:
                known[name] = expires_ms

    def used(self, queue: str) -> None:
        """Renew the TTL of all lists of a queue, as kombu does when a message is put there."""
        self._renew(self._lists([queue]))

    def keep_now(self) -> None:
        """Make the next `keep` look, since other queues are consumed."""
        self._keep_at = 0.0

    def keep(self) -> None:
        """Renew the TTL of all lists that are consumed, before it ends. Costs nothing where no queue expires.

        Raises:
            redis.ConnectionError: the connection is lost.
        """
        if not self._channel.connection.expires_ms or time.monotonic() < self._keep_at:
            return
        lists = self._lists(list(self._channel.task_queues.values()))
        if not lists:
            return
        self._keep_at = time.monotonic() + min(lists.values()) / 1000 / _RENEWALS
        try:
            self._renew(lists)
        except NOT_SERVING:
            raise
        except ResponseError as exc:
            logger.warning("Queues that expire may do so although they are consumed: %s", exc)

    def _lists(self, queues: list[str]) -> dict[str, int]:
        known = self._channel.connection.expires_ms
        return {name: known[name] for queue in queues for name in self._channel.broker_lists(queue) if name in known}

    def _renew(self, lists: dict[str, int]) -> None:
        if not lists:
            return
        with self._channel.plain_client.pipeline(transaction=False) as pipe:
            for name, expires_ms in lists.items():
                pipe.pexpire(name, expires_ms)
            pipe.execute()

"""Expiry: a queue that was declared with `expires` (kombu 5.7) does not expire while it is consumed.

kombu sets a TTL on the lists of such a queue when a message is put there or taken. Redis forgets the TTL of a list that
is empty for a moment. So messages that come back to an empty list, or are transferred to it, would stay for ever. And
messages that wait for a busy worker would expire although the queue is consumed. RabbitMQ's queues expire only if
nobody consumes them.

Messages in a delayed queue never expire. A process that transfers may not know the queue. The lists then have no TTL
until somebody consumes them or puts a message there.
"""

from __future__ import annotations

import time
from logging import getLogger
from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

from celery_delayq.queue.connections import CONNECTION_ERRORS, hurried, is_cluster, refusals

if TYPE_CHECKING:  # which a producer need not load
    import redis

    from celery_delayq.transport.protocols import Channel

#: When a renewal that was refused, or had no answer, is tried again, in seconds.
_AGAIN_S = 1.0

logger = getLogger(__name__)

#: How many times the TTL is renewed before it would end.
_RENEWALS = 3

#: How often to look whether a consumed queue expires now, in seconds.
_LOOK_S = 0.1


class Expiry:
    """Renews the TTL of a channel's expiring queues. It belongs to the consuming thread.

    Args:
        channel: a `DelayedChannel`.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._keep_at = 0.0

    def declared(self, queue: str) -> None:
        """Store the expiry that kombu has recorded for a declared queue."""
        expires_ms = getattr(self._channel, "_expires", {}).get(queue)
        known = self._channel.connection.expires_ms
        for name in self._channel.broker_lists(queue):
            if expires_ms is None:
                known.pop(name, None)
            else:
                known[name] = expires_ms

    def used(self, queue: str) -> None:
        """Renew the TTL of all lists of a queue, as kombu does when a message is put there."""
        if self._channel.connection.expires_ms:
            self._renew(self._channel.plain_client, self._lists([queue]))

    def keep_now(self) -> None:
        """Make the next `keep` renew at once, because the consumed queues have changed."""
        self._keep_at = 0.0

    def keep(self) -> None:
        """Renew the TTL of all consumed lists before it ends. Costs nothing if no queue expires.

        Lists of a node that is lost wait until it is back, as for fetches.

        Raises:
            redis.ConnectionError: the connection to a single server is lost.
        """
        if not self._channel.connection.expires_ms or time.monotonic() < self._keep_at:
            return
        lists = self._lists(list(self._channel.task_queues.values()))
        if not lists:
            self._keep_at = time.monotonic() + _LOOK_S
            return
        self._keep_at = time.monotonic() + min(lists.values()) / 1000 / _RENEWALS
        client = hurried(self._channel.plain_client)
        try:
            self._renew(client, lists)
        except (*CONNECTION_ERRORS, ResponseError) as exc:
            is_away = isinstance(exc, CONNECTION_ERRORS)
            if is_away and not is_cluster(client):
                raise
            if is_away or refusals.note(exc, logger):
                self._keep_at = min(self._keep_at, time.monotonic() + _AGAIN_S)
            else:
                logger.warning("Cannot extend the TTL of queues, so they may expire while they are consumed: %s", exc)

    def _lists(self, queues: list[str]) -> dict[str, int]:
        known = self._channel.connection.expires_ms
        return {name: known[name] for queue in queues for name in self._channel.broker_lists(queue) if name in known}

    def _renew(self, client: redis.Redis, lists: dict[str, int]) -> None:
        if not lists:
            return
        with client.pipeline(transaction=False) as pipe:
            for name, expires_ms in lists.items():
                pipe.pexpire(name, expires_ms)
            pipe.execute()

"""Paused: which queues the channels of a connection do not fetch from, though they consume them."""

from __future__ import annotations

import time
from logging import getLogger

from redis import exceptions

from celery_delayq.queue.connections import CONNECTION_ERRORS, hurried, is_cluster, refusals
from celery_delayq.queue.paused import paused
from celery_delayq.transport.protocols import Channel, Cycle

logger = getLogger(__name__)

#: When it is read again after an error, in seconds.
_AGAIN_S = 1.0


class Paused:
    """The last known ones of one connection. It belongs to the consuming thread, but for `tell`.

    Args:
        cycle: the `Poller` of the connection.
    """

    def __init__(self, cycle: Cycle) -> None:
        self._cycle = cycle
        self._names: frozenset[str] = frozenset()
        self._is_stale = True
        self._read_at = 0.0
        self._error = ""

    def tell(self) -> None:
        """Record that it may have changed. Safe in any thread."""
        self._is_stale = True
        self._cycle.wake()

    def names(self, channel: Channel) -> frozenset[str]:
        """Return the names of the paused queues; asks the server only if they may have changed.

        If that fails, those that were paused before still are, and it is tried again a second later.

        Raises:
            redis.ConnectionError: a single server is away.
        """
        if not self._is_stale or time.monotonic() < self._read_at:
            return self._names
        self._is_stale = False  # first: they may change meanwhile
        client = hurried(channel.plain_client)
        try:
            names = paused(client, channel.global_keyprefix)
        except (*CONNECTION_ERRORS, exceptions.ResponseError) as exc:
            self._is_stale, self._read_at = True, time.monotonic() + _AGAIN_S
            self._cycle.wake_in(_AGAIN_S)
            if isinstance(exc, CONNECTION_ERRORS) and not is_cluster(client):
                raise
            if str(exc) != self._error and not refusals.note(exc, logger):
                self._error = str(exc)
                logger.warning("Cannot see which queues are paused, trying again every second: %s", exc)
            return self._names
        for queue in names - self._names:
            logger.info("Queue %r is paused", queue)
        for queue in self._names - names:
            logger.info("Queue %r is resumed", queue)
        self._names = names
        return names

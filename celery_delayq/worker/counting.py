"""Counting: what a worker counts for metrics, from its start to its end, over all of its connections."""

from __future__ import annotations

from collections.abc import Callable
from logging import getLogger
from typing import Any

import redis
from redis import exceptions

from celery_delayq.metrics.flusher import Flusher
from celery_delayq.metrics.recorder import Recorder
from celery_delayq.queue.connections import CONNECTION_ERRORS
from celery_delayq.transport.connector import Connector

logger = getLogger(__name__)


class Counting:
    """One for each worker. It belongs to the main thread."""

    def __init__(self) -> None:
        self.recorder = Recorder()
        self._flusher: Flusher | None = None
        self._connector: Connector | None = None

    def attach(self, connection: Any) -> None:
        """Count what a kombu connection does; its transfer loops add the numbers to Redis."""
        if self._flusher is None:
            channel = connection.default_channel
            self._flusher = Flusher(self.recorder, channel.global_keyprefix, channel.first_list)
        self._connector = Connector(connection.transport.client)

    def flush(self, client: redis.Redis, serves: Callable[[str], bool]) -> None:
        """Add what was counted, see `Flusher.flush`."""
        if self._flusher is not None:
            self._flusher.flush(client, serves)

    def finish(self) -> None:
        """Add what is left, when the worker has ended its tasks. Never raises."""
        if self._flusher is None or self._connector is None or not self._flusher.has_pending:
            return
        try:
            with self._connector() as client:
                self._flusher.flush_everywhere(client)
        except (*CONNECTION_ERRORS, exceptions.ResponseError) as exc:
            logger.info("What this worker counted last is missing in the metrics: %s", exc)

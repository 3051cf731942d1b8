"""Counting: what a worker counts for metrics, from its start to its end, over all of its connections."""

from __future__ import annotations

from logging import getLogger
from typing import Any

from redis import exceptions

from celery_delayq.metrics.counters import Counters
from celery_delayq.metrics.flusher import Flusher
from celery_delayq.metrics.recorder import Recorder
from celery_delayq.options.settings import settings_of
from celery_delayq.queue.connections import CONNECTION_ERRORS
from celery_delayq.transport import Connector, Transport

logger = getLogger(__name__)

#: The attribute of Celery's consumer that has it.
_ATTRIBUTE = "delayq_counting"


class Counting:
    """One for each worker. It belongs to the main thread."""

    def __init__(self) -> None:
        self._counters = Counters()
        self.recorder = Recorder(self._counters)
        self._flusher: Flusher | None = None
        self._connector: Connector | None = None

    def attach(self, transport: Transport, channel: Any) -> None:
        """Count what a connection does; its transfer loops add the numbers to Redis.

        Args:
            transport: of the connection.
            channel: one of its channels.
        """
        if self._flusher is None:
            self._flusher = Flusher(self._counters, channel.global_keyprefix, channel.first_list)
        self._connector = Connector(transport.client)
        transport.on_pass = self.recorder.on_pass
        transport.on_count = self._counters.add
        transport.chores = self._flusher.flush

    def finish(self) -> None:
        """Add what is left, when the worker has ended its tasks. Never raises."""
        if self._flusher is None or self._connector is None or not self._flusher.has_pending:
            return
        try:
            with self._connector() as client:
                self._flusher.flush_everywhere(client)
        except (*CONNECTION_ERRORS, exceptions.ResponseError) as exc:
            logger.info("What this worker counted last is missing in the metrics: %s", exc)


def counting_of(consumer: Any) -> Counting | None:
    """Return what the worker of a Celery consumer counts with; None if the setting `delayq_metrics` is off."""
    if not hasattr(consumer, _ATTRIBUTE):
        setattr(consumer, _ATTRIBUTE, Counting() if settings_of(consumer.app).metrics else None)
    counting: Counting | None = getattr(consumer, _ATTRIBUTE)
    return counting

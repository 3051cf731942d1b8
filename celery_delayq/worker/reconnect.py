"""Reconnect soon: a worker is back within a second after its server is, however long that was away, or refused."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from itertools import chain, repeat
from typing import Any

import redis
from celery.utils.log import get_logger

from celery_delayq.queue.connections import NOT_SERVING, passing_refusal, refusals
from celery_delayq.transport import Transport

logger = get_logger(__name__)

#: Shortest and longest pause between two attempts, in seconds. Each worker has its own, so that not all come at once.
_PAUSE_S = (0.2, 0.4)

#: The pauses that Celery would make: the last one again and again.
_CELERYS_PAUSES_S = range(2, 31, 2)


def reconnect_soon(consumer: Any) -> None:
    """Make a worker's consumer try to connect several times a second.

    Celery would pause for 2 s after the first attempt, then for 4 s, and for 30 s in the end. It still logs as often as
    that, and `broker_connection_max_retries` still counts those lines, so it lasts as long as without this.

    Wraps `Consumer.ensure_connected` of one worker (Celery 5.6 and 5.7): it passes no intervals to kombu.
    """
    ensure_connected = consumer.ensure_connected

    def ensure_soon(connection: Any) -> Any:
        if not isinstance(connection.transport, Transport):
            return ensure_connected(connection)
        ensure_connection, pause_s = connection.ensure_connection, random.uniform(*_PAUSE_S)

        def ensure(errback: Callable[..., None], max_retries: int | None, callback: Callable[[], None]) -> Any:
            return ensure_connection(
                _Thinned(errback, max_retries),
                None,
                interval_start=pause_s,
                interval_step=0,
                interval_max=pause_s,
                callback=callback,
            )

        connection.ensure_connection = ensure
        try:
            return ensure_connected(connection)
        finally:
            del connection.ensure_connection  # the method of the class is back

    consumer.ensure_connected = ensure_soon


def reconnect_when_refused(consumer: Any) -> None:
    """Make a worker's consumer connect again if the server refuses for now what it needs to start.

    Celery takes such an error for one that it cannot recover from, and ends the worker. What this package needs does
    not end here: it is tried again on the same connection.

    Wraps `Consumer.blueprint.start` of one worker (Celery 5.6 and 5.7).
    """
    start = consumer.blueprint.start

    def start_or_reconnect(parent: Any) -> None:
        try:
            start(parent)
        except Exception as exc:
            cause: BaseException | None = exc
            while cause is not None and not passing_refusal(cause):
                cause = cause.__cause__
            if cause is None or isinstance(exc, NOT_SERVING):
                raise
            refusals.note(cause, logger)
            raise redis.ConnectionError(passing_refusal(cause)) from None  # Celery logs the whole chain

    consumer.blueprint.start = start_or_reconnect


class _Thinned:
    """Calls an errback, see `ensure_connection`, as often as if there were Celery's pauses between the attempts.

    With several URLs, there is one pause after all of them were tried. Raises the error instead once the errback was
    called `max_retries` times; None means no limit.
    """

    def __init__(self, errback: Callable[..., None], max_retries: int | None) -> None:
        self._errback = errback
        self._left = max_retries
        self._pauses = chain(_CELERYS_PAUSES_S, repeat(_CELERYS_PAUSES_S[-1]))
        self._next_at = time.monotonic()
        #: Whether the errback is called until all URLs were tried.
        self._is_loud = False

    def __call__(self, exc: Exception, interval: float) -> None:
        now = time.monotonic()
        if not self._is_loud and now < self._next_at:
            return
        self._is_loud = True
        if self._left == 0:
            raise exc
        if self._left is not None:
            self._left -= 1
        self._errback(exc, interval)
        if interval:  # otherwise kombu goes on with the next URL
            self._is_loud = False
            self._next_at = now + next(self._pauses)

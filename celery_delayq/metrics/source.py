"""Source: the connection of an endpoint, which lasts from one scrape to the next."""

from __future__ import annotations

import os
import threading
from typing import Any

from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from celery_delayq.basics.errors import DelayqError
from celery_delayq.metrics.snapshot import Reader, Snapshot
from celery_delayq.transport.reading import channel_for_reading, connection_for_reading

#: How long to wait for an answer of Redis, and for another scrape, in seconds. kombu tries twice to connect, and
#: Prometheus waits for ten.
_TIMEOUT_S = 3.0


class Unavailable(Exception):
    """The metrics cannot be read now. The message says why, in a sentence."""


class Source:
    """Reads snapshots of a Celery app's broker. Threads may share it: they take turns. It works after a fork.

    Args:
        app: the Celery app.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._connection: Any = None
        self._reader: Reader | None = None

    def check(self) -> str:
        """Return the broker's URL without its password; connect to nothing.

        Raises:
            ConfigurationError: it is not a `delayq://` URL, or an option is wrong.
        """
        return str(connection_for_reading(self._app, _TIMEOUT_S).as_uri())

    def read(self) -> Snapshot:
        """Return a snapshot; connect if there is no connection.

        Raises:
            Unavailable: the server is away or refuses, or the configuration is wrong.
        """
        if os.getpid() != self._pid:
            self._lock, self._pid = threading.Lock(), os.getpid()
            self._connection = self._reader = None
        if not self._lock.acquire(timeout=_TIMEOUT_S):
            raise Unavailable("cannot read the metrics: another scrape still waits for an answer of Redis")
        try:
            return self._read()
        finally:
            self._lock.release()

    def _read(self) -> Snapshot:
        try:
            if self._reader is None:
                self._reader = self._connect()
            return self._reader.read()
        except (RedisError, OperationalError, OSError) as exc:
            where = "the broker" if self._connection is None else self._connection.as_uri()
            self._disconnect()
            raise Unavailable(f"cannot read the metrics from {where}: {str(exc).rstrip('.')}") from exc
        except DelayqError as exc:
            self._disconnect()
            raise Unavailable(str(exc)) from exc

    def close(self) -> None:
        """Close the connection, unless a reading is under way; the next reading opens another one."""
        if self._lock.acquire(blocking=False):
            try:
                self._disconnect()
            finally:
                self._lock.release()

    def _connect(self) -> Reader:
        self._connection = connection_for_reading(self._app, _TIMEOUT_S)
        return Reader(channel_for_reading(self._connection), tuple(self._app.amqp.queues))

    def _disconnect(self) -> None:
        connection, self._connection, self._reader = self._connection, None, None
        if connection is not None:
            connection.release()

"""Broker: connections to the broker that last from one request to the next."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from queue import Empty, Full, LifoQueue
from typing import Any

from kombu.exceptions import OperationalError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from celery_delayq.basics.errors import ConfigurationError, DelayqError
from celery_delayq.inspector import Inspector
from celery_delayq.inspector.history import History
from celery_delayq.inspector.history import read as read_history
from celery_delayq.schedule.api import Schedule
from celery_delayq.transport.reading import channel_for_reading, connection_for_reading
from celery_delayq.transport.urls import hosts_of, place_of
from celery_delayq.web.live import LiveCache

#: How long to wait for an answer of Redis, in seconds. kombu tries twice to connect.
_TIMEOUT_S = 3.0

#: How long requests fail at once after one has waited in vain for a server, in seconds.
_REST_S = 6.0

#: How often workers add to the history, in seconds. With many queues, it takes long to read.
_FLUSHED_S = 10.0

#: How many idle connections are kept: as many as requests usually come at once.
_MOST_KEPT = 8

#: The most names of tasks or queues that a field proposes.
PROPOSED = 200


class Unavailable(Exception):
    """The broker cannot be read now. The message says why, in a sentence."""


class Broker:
    """The broker of a Celery app. Threads may share it: each request has its own connection. It works after a fork.

    Args:
        app: the Celery app.
    """

    def __init__(self, app: Any) -> None:
        self.app = app
        self._kept: LifoQueue[Any] = LifoQueue(_MOST_KEPT)
        self._pid = os.getpid()
        self._histories: LiveCache[History] = LiveCache(_FLUSHED_S)
        #: The histories that were read last, by their hours.
        self._last: dict[int, History] = {}
        self._lock = threading.Lock()
        self._has_imported = False
        #: Why requests fail at once, and until when: a server hangs that must not hold up one after the other.
        self._hanging: tuple[str, float] | None = None

    def check(self) -> str:
        """Return the broker's URL without its password; connect to nothing.

        Raises:
            ConfigurationError: it is not a `delayq://` URL, or an option is wrong.
        """
        return str(connection_for_reading(self.app, _TIMEOUT_S).as_uri())

    @cached_property
    def place(self) -> tuple[str, str]:
        """The name of the app, and where its server is; empty if its URL is wrong, which `channel` says."""
        try:
            return self.app.main or "", place_of(connection_for_reading(self.app, _TIMEOUT_S))
        except DelayqError:
            return "", ""

    def task_names(self) -> list[str]:
        """Return names of tasks that a field proposes. The first call imports their modules, as a worker does."""
        with self._lock:
            if not self._has_imported:
                self._has_imported = True
                with suppress(Exception):  # of any module of the app
                    self.app.loader.import_default_modules()
        return sorted(name for name in self.app.tasks if not name.startswith("celery."))[:PROPOSED]

    @contextmanager
    def channel(self) -> Iterator[Any]:
        """Yield a channel.

        Raises:
            Unavailable: the server is away or refuses, or the configuration is wrong.
        """
        self._check_hanging()
        connection = self._take()
        is_sound = False
        try:
            yield channel_for_reading(connection)
            is_sound = True
            with self._lock:
                self._hanging = None
        except (RedisError, OperationalError, OSError) as exc:
            error = f"{connection.as_uri()}: {str(exc).rstrip('.')}"
            if _is_timeout(exc) and hosts_of(connection) != "cluster":  # one node may hang, and the others answer
                with self._lock:
                    self._hanging = error, time.monotonic() + _REST_S
            raise Unavailable(error) from exc
        except ConfigurationError as exc:
            raise Unavailable(str(exc)) from exc
        finally:
            self._put_back(connection, is_sound)

    @contextmanager
    def inspector(self) -> Iterator[Inspector]:
        """Yield an inspector that knows the app's queues; see `channel`."""
        with self.channel() as channel:
            yield Inspector(channel, self.app.amqp.queues)

    def history(self, inspector: Inspector, hours: int) -> History:
        """Return what was transferred lately, as it was read in the last ten seconds; see `history.read`."""

        def make() -> History:
            found = self._last[hours] = read_history(inspector.lists, hours, known=self._last.get(hours))
            return found

        return self._histories.get(hours, make)

    def schedule(self) -> Schedule:
        """Return the app's schedule. Its methods raise `Unavailable`, too."""
        self.app.finalize()
        return Schedule(self.app, self.channel)

    def _check_hanging(self) -> None:
        """Check that this request may ask the server. While it hangs, one may do so now and then."""
        with self._lock:
            if self._hanging is None:
                return
            error, until = self._hanging
            if time.monotonic() < until:
                raise Unavailable(error)
            self._hanging = error, time.monotonic() + _REST_S

    def _take(self) -> Any:
        if os.getpid() != self._pid:
            self._kept, self._pid = LifoQueue(_MOST_KEPT), os.getpid()
        try:
            return self._kept.get_nowait()
        except Empty:
            pass
        try:
            return connection_for_reading(self.app, _TIMEOUT_S)
        except DelayqError as exc:
            raise Unavailable(str(exc)) from exc

    def _put_back(self, connection: Any, is_sound: bool) -> None:
        try:
            if is_sound:
                self._kept.put_nowait(connection)
                return
        except Full:
            pass
        connection.release()


def _is_timeout(error: BaseException | None) -> bool:
    """Return whether somebody has waited in vain. kombu and the schedule put errors of redis-py into their own."""
    while error is not None:
        if isinstance(error, (RedisTimeoutError, TimeoutError)):
            return True
        error = error.__cause__
    return False

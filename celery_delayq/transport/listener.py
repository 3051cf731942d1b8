"""Listener: hears when lists that were empty are written to, on one connection for any number of lists.

A connection that waits with BLMOVE is as fast as can be, and takes one list. A queue has one for each priority, most of
which are never used. For those, the server is asked to tell (`CLIENT TRACKING`): it remembers which keys the fetching
connection has read, and sends their names to this connection when they change, once. That works with any producer, and
without any configuration of the server.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from redis import exceptions

from celery_delayq.fetching.consumer import Consumer
from celery_delayq.fetching.identity import Identity, identify
from celery_delayq.queue.connections import connection_of, should_speak, was_silent

_CHANNEL = "__redis__:invalidate"

#: How long the server is believed to tell, in seconds. It would not if the fetching connection was lost unnoticed.
TRUST_S = 30.0

#: A list is busy if it was written to so many times within so many seconds. Each time wakes all workers.
_BUSY_TIMES, _BUSY_S = 10, 2.0


class Listener:
    """One connection, for the thread that fetches.

    Args:
        pool: gives the class and the parameters of the connection, see `connection_of`.

    Raises:
        redis.ConnectionError: the server is away.
        redis.ResponseError: the server does not allow it.
    """

    def __init__(self, pool: Any) -> None:
        self._connection: Any = connection_of(pool)
        self._connection.connect()
        identity = identify(self._connection)
        if identity is None:
            raise exceptions.ResponseError("CLIENT INFO is not allowed")
        self.identity: Identity = identity
        self._connection.send_command("SUBSCRIBE", _CHANNEL)
        self._connection.read_response()
        #: The lists of which the server will tell, and the fetching connection that has read them.
        self._awaited: set[str] = set()
        self._reader: Identity | None = None
        self._believed_until = 0.0
        #: How long the server is believed to tell, in seconds.
        self.trust_s = TRUST_S
        self._times: dict[str, deque[float]] = {}

    def fileno(self) -> int:
        """Return the file descriptor that the event loop polls; -1 once the connection is lost."""
        sock = getattr(self._connection, "_sock", None)
        return -1 if sock is None else int(sock.fileno())

    def is_awaited(self, consumer: Consumer, name: str) -> bool:
        """Return whether a list was empty, and the server will tell when it no longer is."""
        if self._reader is None or self._reader != consumer.reader or time.monotonic() > self._believed_until:
            return False
        return name in self._awaited

    def await_all(self, consumer: Consumer, groups: Sequence[Sequence[str]]) -> bool:
        """Make the server tell of these lists; returns False, and nothing happens, if one of them is not empty.

        Args:
            consumer: its fetching connection asks the server.
            groups: names of lists; one command asks about each group.

        Raises:
            redis.ConnectionError: the connection is lost.
            redis.ResponseError: the server does not allow it.
        """
        is_new = self._reader != consumer.reader or time.monotonic() > self._believed_until
        if is_new:
            self._awaited.clear()
        if not consumer.are_empty(groups, told=self.identity):
            return False
        self._awaited.update(*groups)
        if is_new:
            self._reader = consumer.reader
            self._believed_until = time.monotonic() + self.trust_s
        return True

    def is_busy(self, name: str) -> bool:
        """Return whether a list is written to so often that a connection of its own is better."""
        times = self._times.get(name)
        return times is not None and len(times) == _BUSY_TIMES and time.monotonic() - times[0] < _BUSY_S

    def read(self) -> None:
        """Read what the server told.

        Raises:
            redis.ConnectionError: the connection is lost.
        """
        if self.fileno() < 0:
            raise exceptions.ConnectionError("the connection that listens for messages of rarely used lists was lost")
        while self._connection.can_read(timeout=0):
            try:
                kind, *_, keys = self._connection.read_response(disable_decoding=True)
            except exceptions.ResponseError:  # of a PING, which Redis refuses with MISCONF and BUSY: an answer as well
                continue
            if kind == b"pong":
                continue
            if keys is None:  # FLUSHALL, or FLUSHDB of any database
                self._awaited.clear()
                continue
            for key in keys:
                name = key.decode("utf-8", "surrogateescape")
                if name not in self._awaited:
                    continue  # it was already told, and is not read yet
                self._awaited.discard(name)
                self._times.setdefault(name, deque(maxlen=_BUSY_TIMES)).append(time.monotonic())

    def speak(self) -> None:
        """Send a PING if the connection is idle. Call it about once a second.

        Raises:
            redis.ConnectionError: the connection is lost, or may be, since there is no reply.
        """
        if was_silent(self._connection):
            raise exceptions.ConnectionError("the connection that listens for messages of rarely used lists was silent")
        if should_speak(self._connection):
            self._connection.send_command("PING", check_health=False)

    def disconnect(self) -> None:
        """Close the connection."""
        self._awaited.clear()
        with suppress(Exception):
            self._connection.disconnect()

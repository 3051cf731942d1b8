"""Slot: one connection that waits on the server for messages of one broker list."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from redis import exceptions

from celery_delayq.fetching.abandoned import BLOCK_S
from celery_delayq.queue.connections import LATE_S, LOST, NOT_SERVING, connection_of
from celery_delayq.queue.subscription import identify

#: A reply is overdue this long after the command should have stopped blocking, in seconds: the connection is half open.
_OVERDUE_S = 25.0


class Slot:
    """Waits with BLMOVE, which moves a message to the consumer's in-flight list as soon as it arrives.

    Args:
        pool: see `connection_of`.
        queue: kombu's name of the queue.
        name: full name of the broker list.
        in_flight: the consumer's in-flight list.

    Every method raises `redis.ConnectionError` if the connection is lost.
    """

    def __init__(self, pool: Any, queue: str, name: str, in_flight: str) -> None:
        self.queue = queue
        self.name = name
        self._in_flight = in_flight
        #: Whether the command was sent and its reply not yet read.
        self.is_armed = False
        self._armed_at = 0.0
        self.connection = connection_of(pool)
        self.connection.connect()
        self.identity = identify(self.connection)
        #: How long the server waits at most, in seconds: a connection that waits longer is silent for too long.
        self._block_s = min(BLOCK_S, self.connection.health_check_interval or BLOCK_S)

    def fileno(self) -> int:
        """Return the file descriptor that the event loop polls; -1 once the connection is lost."""
        sock = getattr(self.connection, "_sock", None)
        return -1 if sock is None else int(sock.fileno())

    def _check(self) -> None:
        # redis-py would reconnect in order to send, and fail when it reads.
        if self.fileno() < 0:
            raise exceptions.ConnectionError(f"the connection that waited for messages of {self.name!r} was lost")

    def arm(self) -> None:
        """Start waiting."""
        self._check()
        self.connection.send_command(
            "BLMOVE", self.name, self._in_flight, "RIGHT", "LEFT", self._block_s, check_health=False
        )
        self.is_armed = True
        self._armed_at = time.monotonic()

    def has_reply(self, wait_s: float = 0) -> bool:
        """Return whether a reply was received. A socket may be readable without one, for example with TLS."""
        self._check()
        return bool(self.connection.can_read(timeout=wait_s))

    def read(self) -> bytes | None:
        """Return the message that has arrived; None if the wait ended without one.

        Raises:
            redis.ResponseError: the server refused the command.
        """
        try:
            self._check()
            reply = self.connection.read_response(disable_decoding=True)
        except NOT_SERVING as exc:
            raise exceptions.ConnectionError(str(exc)) from None  # Celery logs the whole chain
        except exceptions.ResponseError as exc:
            if str(exc).startswith("UNBLOCKED"):  # sent by a master that becomes a replica and closes the connection
                raise exceptions.ConnectionError(str(exc)) from None
            raise
        finally:
            self.is_armed = False
        return bytes(reply) if reply is not None else None

    def is_overdue(self) -> bool:
        """Return whether the server should have answered long ago."""
        return self.is_armed and time.monotonic() - self._armed_at > self._block_s + _OVERDUE_S

    @property
    def is_forgotten(self) -> bool:
        """Whether it waits for nothing, and its connection is lost, or may be, since it was silent for long."""
        if self.is_armed:
            return False
        try:
            return self.has_reply() or time.monotonic() - self._armed_at > self._block_s + LATE_S
        except LOST:
            return True

    def disconnect(self) -> None:
        """Close the connection."""
        self.is_armed = False
        with suppress(Exception):
            self.connection.disconnect()

"""Slot: one connection that waits on the server for messages of one broker list."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from redis import exceptions

from celery_delayq.fetching.abandoned import BLOCK_S
from celery_delayq.fetching.wire import Wire
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
        connection = connection_of(pool)
        connection.connect()
        self.identity = identify(connection)
        #: How long the server waits at most, in seconds: a connection that waits longer is silent for too long.
        self._block_s = min(BLOCK_S, connection.health_check_interval or BLOCK_S)
        self._wire = Wire(connection, self._block_s + _OVERDUE_S)
        self._replies: deque[Any] = deque()
        #: When something was read last before it began to wait, see `Wire`.
        self._heard_at = self._wire.heard_at

    @property
    def connection(self) -> Any:
        """That of redis-py."""
        return self._wire.connection

    def fileno(self) -> int:
        """Return the file descriptor that the event loop polls; -1 once the connection is closed."""
        return self._wire.fileno()

    def arm(self) -> None:
        """Start waiting."""
        self._heard_at = self._wire.heard_at
        self._wire.send(self._replies.append, "BLMOVE", self.name, self._in_flight, "RIGHT", "LEFT", self._block_s)
        self._wire.flush()
        self.is_armed = True
        self._armed_at = time.monotonic()

    def has_reply(self, wait_s: float = 0) -> bool:
        """Return whether a whole reply has come within some seconds; if a part has, perhaps sooner."""
        if not self._replies and self._wire.has_reply(wait_s):
            self._wire.receive()
        return bool(self._replies)

    def read(self) -> bytes | None:
        """Return the message of a reply that has come; None if the wait ended without one.

        Raises:
            redis.ResponseError: the server refused the command.
        """
        self.is_armed = False
        reply = self._replies.popleft()
        if isinstance(reply, Exception):
            # A master that becomes a replica sends UNBLOCKED, and closes the connection.
            if isinstance(reply, NOT_SERVING) or str(reply).startswith("UNBLOCKED"):
                raise exceptions.ConnectionError(str(reply))
            raise reply
        return None if reply is None else bytes(reply)

    @property
    def can_end(self) -> bool:
        """Whether it waits, and nothing of the reply has come yet."""
        return self.is_armed and self._wire.heard_at == self._heard_at

    def is_overdue(self) -> bool:
        """Return whether the server should have answered long ago, and nothing comes."""
        if not self.is_armed or time.monotonic() - self._armed_at <= self._block_s + _OVERDUE_S:
            return False
        self._wire.has_reply(0)  # it looks, after a long task, for example
        return self._wire.is_overdue

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
        self._wire.close(exceptions.ConnectionError("nobody waits any more"))

"""Slot: one connection that waits for one broker list on the server."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import redis
from redis import exceptions

from celery_delayq.connections import NOT_SERVING
from celery_delayq.consumer import BLOCK_S
from celery_delayq.fetch_connection import identify

#: A reply is overdue after so many seconds more than the command may block: the connection is half open then.
_OVERDUE_S = 25.0

#: How long a wait is told to end, and how often, in seconds.
_UNBLOCK_S, _UNBLOCK_AGAIN_S = 5.0, 0.01


class Slot:
    """Waits with BLMOVE, which moves a message to the consumer's in-flight list in the moment in which it arrives.

    Args:
        pool: gives the parameters of the connection, and its class; the connection is not one of the pool.
        queue: kombu's name of the queue.
        name: full name of the broker list.
        in_flight: the consumer's in-flight list.

    Every method raises `redis.ConnectionError` when the connection is lost.
    """

    def __init__(self, pool: Any, queue: str, name: str, in_flight: str) -> None:
        self.queue = queue
        self.name = name
        self._in_flight = in_flight
        #: Whether the command was sent, and its reply not read.
        self.is_armed = False
        self._armed_at = 0.0
        self.connection = pool.make_connection()
        self.connection.connect()
        self.identity = identify(self.connection)

    def fileno(self) -> int:
        """Return what the event loop polls; -1 once the connection is lost."""
        sock = getattr(self.connection, "_sock", None)
        return -1 if sock is None else int(sock.fileno())

    def _check(self) -> None:
        # redis-py would connect anew to send, and break when it reads.
        if self.fileno() < 0:
            raise exceptions.ConnectionError(f"the connection that waited for {self.name!r} was lost")

    def arm(self) -> None:
        """Begin to wait."""
        self._check()
        self.connection.send_command("BLMOVE", self.name, self._in_flight, "RIGHT", "LEFT", BLOCK_S)
        self.is_armed = True
        self._armed_at = time.monotonic()

    def has_reply(self, wait_s: float = 0) -> bool:
        """Return whether something was received; TLS, for one, makes sockets readable for nothing."""
        self._check()
        return bool(self.connection.can_read(timeout=wait_s))

    def unblock(self, client: redis.Redis) -> None:
        """Make the server end the wait, so that `read` returns at once.

        The server also says no when the wait has not begun there: it was sent on another connection. So it is told
        again until there is a reply.

        Args:
            client: has connections of its own.

        Raises:
            redis.ResponseError: it is not allowed.
        """
        if self.identity is None:
            raise exceptions.ResponseError("CLIENT INFO is not allowed")
        until = time.monotonic() + _UNBLOCK_S
        while not client.execute_command("CLIENT UNBLOCK", self.identity.client_id):
            if self.has_reply(_UNBLOCK_AGAIN_S):
                break
            if time.monotonic() > until:
                raise exceptions.ConnectionError(f"Redis neither waits for {self.name!r} nor answers")

    def read(self) -> bytes | None:
        """Return the message that has arrived, or None if the wait is over without one.

        Raises:
            redis.ResponseError: the server refused the command.
        """
        try:
            self._check()
            reply = self.connection.read_response(disable_decoding=True)
        except NOT_SERVING as exc:
            raise exceptions.ConnectionError(str(exc)) from None  # Celery logs the whole chain
        except exceptions.ResponseError as exc:
            if str(exc).startswith("UNBLOCKED"):  # a master that becomes a replica says so, and closes the connection
                raise exceptions.ConnectionError(str(exc)) from None
            raise
        finally:
            self.is_armed = False
        return bytes(reply) if reply is not None else None

    def is_overdue(self) -> bool:
        """Return whether the server should have answered long ago."""
        return self.is_armed and time.monotonic() - self._armed_at > BLOCK_S + _OVERDUE_S

    def disconnect(self) -> None:
        """Close the connection."""
        self.is_armed = False
        with suppress(Exception):
            self.connection.disconnect()

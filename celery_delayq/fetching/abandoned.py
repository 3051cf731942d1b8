"""The connections that a consumer has abandoned."""

from __future__ import annotations

import time
from collections.abc import Iterable
from logging import getLogger

import redis
from redis import exceptions

from celery_delayq.queue.connections import CONNECTION_ERRORS, passing_refusal
from celery_delayq.queue.subscription import Identity

logger = getLogger(__name__)

#: Longest single wait of a blocking command on the server, in seconds.
BLOCK_S = 30.0


class AbandonedConnections:
    """Those of one consumer: nobody reads their replies, but a command that they sent may still move a message."""

    def __init__(self) -> None:
        #: A blocking command may still move a message until this time, on the monotonic clock.
        self._until = 0.0
        #: None stands for a connection whose identity is unknown.
        self._connections: set[Identity | None] = set()

    def add(self, connections: Iterable[Identity | None]) -> None:
        """Add abandoned connections; None stands for one whose identity is unknown."""
        self._until = time.monotonic() + BLOCK_S
        self._connections.update(connections)

    def may_move_messages(self, client: redis.Redis) -> bool:
        """Return whether one of them may still move a message to the consumer. Closes those whose identity is known.

        Raises:
            redis.RedisError: the server is away, or refuses for now.
        """
        if time.monotonic() >= self._until:
            return False
        if None in self._connections:
            return True
        try:
            for connection in list(self._connections):
                assert connection is not None
                client.execute_command("CLIENT KILL", "ID", connection.client_id, "ADDR", connection.address)
                self._connections.discard(connection)
        except CONNECTION_ERRORS:
            raise
        except exceptions.ResponseError as exc:
            if passing_refusal(exc):
                raise
            logger.info("Redis does not allow this user to close its own connections: %s. Allow CLIENT KILL", exc)
            self._connections.add(None)
            return True
        return False

"""Connector: gives the transfer loop connections of its own, made from the parameters of a kombu connection."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import redis

#: How long the loop waits for an answer, in seconds, where the user set no `socket_timeout`: its commands never block
#: on the server, so silence means a dead connection.
REPLY_TIMEOUT_S = 10.0


class Connector:
    """Called by a loop for every (re)connection; returns a plain client with a pool of its own.

    Everything that kombu knows how to connect to works: TLS, users, credential providers, sockets, Sentinel.

    Args:
        connection: a kombu connection with our transport; it is cloned, not used.
        failover: try the alternative URLs in turn. Without it the loop stays with the server that the connection is
            using now, so that a worker's loop serves the server the worker consumes from.
    """

    def __init__(self, connection: Any, *, failover: bool = False) -> None:
        self._connection = connection.clone()
        self.failover = failover
        if not failover:
            self._connection.cycle = None

    def __call__(self) -> redis.Redis:
        """Connect, after closing what the last call returned."""
        self.close()
        try:
            channel = self._connection.channel()
        except Exception:
            if self.failover:
                self._connection.maybe_switch_next()
            raise
        # Connections that kombu made for consuming.
        channel.client.connection_pool.disconnect()
        pool = channel.pool
        if pool.connection_kwargs.get("socket_timeout") is None:
            pool.connection_kwargs["socket_timeout"] = REPLY_TIMEOUT_S
        client: redis.Redis = channel.plain_client
        return client

    def close(self) -> None:
        """Close all connections."""
        with suppress(Exception):
            self._connection.collect(socket_timeout=0.1)

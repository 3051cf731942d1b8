"""Connector: opens connections for keepers and planners, with the parameters of a kombu connection."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis

from celery_delayq.options.settings import SOCKET_TIMEOUT_S


class Connector:
    """A loop calls this for every (re)connection.

    It works with everything that kombu can connect to: TLS, users, credential providers, sockets, Sentinel.

    Args:
        connection: a kombu connection with our transport; it is cloned, not used.
        failover: whether to try the alternative URLs in turn. Without it, the loop stays with the connection's current
            server. So a worker's loop serves the server that the worker consumes from.
    """

    def __init__(self, connection: Any, *, failover: bool = False) -> None:
        self._template = connection.clone()
        self._failover = failover
        # Needed for kombu's own first PING, too: a server that accepts but never answers would block the loop for ever.
        options = self._template.transport_options = dict(self._template.transport_options)
        for name in ("socket_timeout", "socket_connect_timeout"):
            if options.get(name) is None:
                options[name] = SOCKET_TIMEOUT_S

    @contextmanager
    def __call__(self) -> Iterator[redis.Redis]:
        """Connect; give a plain client with a pool of its own, and close everything at the end."""
        with self.channel() as channel:
            yield channel.plain_client

    @contextmanager
    def channel(self) -> Iterator[Any]:
        """Connect; give a channel with a pool of its own, and close everything at the end.

        Not by `Connection.ensure_connection`. That would sleep for 2 s and then try another URL, but loops make their
        own pauses. And its cached properties have locks that all connections of the process share: a child that is
        forked while a loop's thread holds one would wait for it for ever.
        """
        with self._template.clone() as connection:
            transport = connection.transport
            try:
                channel = transport.create_channel(transport.establish_connection())
            except Exception:
                if self._failover:
                    self._template.maybe_switch_next()
                raise
            try:
                yield channel
            finally:
                transport.close_connection(transport)

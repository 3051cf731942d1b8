"""Connections that are known by their server, so that all of them can be ended when it is no longer a master.

If a master dies, its connections end. If it hangs, or its machine is cut off, they last, and their users would wait.
"""

from __future__ import annotations

import weakref
from typing import Any

import redis

from celery_delayq.transfer.thread import interrupt

#: The connections of this process, by `id`. A plain dict: safe in all threads.
_connections: dict[int, weakref.ref[Any]] = {}


def remember(connection: Any) -> None:
    """Make a connection known to `leave`."""
    key = id(connection)
    _connections[key] = weakref.ref(connection, lambda _: _connections.pop(key, None))


def leave(host: str, port: int) -> int:
    """End all known connections to a server; returns their number. Safe in any thread: their users get an error."""
    ended = 0
    for reference in list(_connections.values()):
        connection = reference()
        if connection is None or (connection.host, int(connection.port or 0)) != (host, port):
            continue
        sock = getattr(connection, "_sock", None)
        interrupt(sock)
        ended += sock is not None
    return ended


class _Known:
    """Makes a connection known; for subclasses of redis-py's connections."""

    def connect(self) -> Any:
        """Connect, see redis-py."""
        remember(self)
        return super().connect()  # type: ignore[misc]


class NodeConnection(_Known, redis.Connection):
    """A connection to a node of a cluster."""


class NodeSSLConnection(_Known, redis.SSLConnection):
    """The same with TLS."""

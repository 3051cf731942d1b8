"""Connections that are known by their server, so that all of them can be ended when it is no longer a master.

If a master dies, its connections end. If it hangs, or its machine is cut off, they last, and their users would wait.
"""

from __future__ import annotations

import weakref
from typing import Any

import redis
from redis import exceptions

from celery_delayq.queue.connections import is_full, passing_refusal
from celery_delayq.transfer.thread import interrupt

#: The connections of this process, by `id`. A plain dict: safe in all threads.
_connections: dict[int, weakref.ref[Any]] = {}


def remember(connection: Any) -> None:
    """Make a connection known to `leave`."""
    key = id(connection)
    _connections[key] = weakref.ref(connection, lambda _: _connections.pop(key, None))


def any_known() -> bool:
    """Return whether a known connection still exists, open or not. Safe in any thread."""
    return bool(_connections)


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

    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        """Read a reply, see redis-py, which does not know what a node says that has no connection left.

        It would take that for the refusal of a command of its own, and go on with a connection that is closed. Other
        refusals that pass by themselves learn which `node` says so, see `Refusals`.

        Raises:
            redis.ConnectionError: the node has no connection left, as of a single server.
        """
        try:
            return super().read_response(*args, **kwargs)  # type: ignore[misc]
        except exceptions.ResponseError as exc:
            if is_full(exc):
                raise exceptions.ConnectionError(str(exc)) from exc
            if passing_refusal(exc):
                exc.node = f"{self.host}:{self.port}"  # type: ignore[attr-defined]
            raise


class NodeConnection(_Known, redis.Connection):
    """A connection to a node of a cluster."""


class NodeSSLConnection(_Known, redis.SSLConnection):
    """The same with TLS."""

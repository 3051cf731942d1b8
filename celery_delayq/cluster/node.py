"""Node: a node of a Redis Cluster, with connections to it. If none could be opened, nothing was sent."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import redis
from redis import exceptions

from celery_delayq.queue.connections import LOST

#: How long one may take to answer a command that can be done later, or elsewhere, in seconds.
HURRY_S = 0.5

#: Errors of a pool that has no connection left. They say nothing about the node.
_EXHAUSTED = ("Too many connections", "No connection available.")

#: redis-py 5 wants to know the command for which it gets a connection; later versions warn of that.
_NAME_WANTED = inspect.signature(redis.ConnectionPool.get_connection).parameters["command_name"].default
_FOR_COMMAND: tuple[str, ...] = ("_",) if _NAME_WANTED is inspect.Parameter.empty else ()


class NotSent(Exception):
    """No connection could be opened, so nothing was sent.

    Attributes:
        error: why, as redis-py says it.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Address(NamedTuple):
    """Host and port of a node."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def pool_at(params: dict[str, Any], address: Address) -> redis.ConnectionPool:
    """Return a new connection pool for a node.

    Args:
        params: those of its connections, see redis-py.
        address: the node; it replaces host and port.
    """
    return redis.ConnectionPool(**{**params, "host": address.host, "port": address.port})


class Node:
    """A node of the cluster, with connections of its own. Safe to share between threads.

    Attributes:
        address: where it listens.
        id: its id in the cluster; empty if that is unknown.
        client: a plain client of this node alone.
    """

    def __init__(self, address: Address, pool: redis.ConnectionPool, id: str = "") -> None:
        self.address = address
        self.id = id
        credentials = pool.connection_kwargs.get("credential_provider")
        self.client = redis.Redis(connection_pool=pool, credential_provider=credentials)
        #: Patience in seconds -> this node with connections that wait no longer.
        self._hurried: dict[float, Node] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.address}>"

    def hurried(self, within_s: float = HURRY_S) -> Node:
        """Return the same node with other connections, which wait for an answer for some seconds at most."""
        found = self._hurried.get(within_s)
        if found is None:
            pool: Any = self.client.connection_pool
            options = hurried_options(pool.connection_kwargs, within_s)
            made = redis.ConnectionPool(pool.connection_class, pool.max_connections, **options)
            found = self._hurried.setdefault(within_s, Node(self.address, made, self.id))  # or that of another thread
        return found

    def connection(self) -> Any:
        """Return a connection from its pool; it is connected.

        Raises:
            NotSent: it cannot be connected.
            redis.ConnectionError: the pool has none left.
        """
        try:
            return self.client.connection_pool.get_connection(*_FOR_COMMAND)
        except LOST as exc:
            if isinstance(exc, exceptions.MaxConnectionsError) or str(exc) in _EXHAUSTED:
                raise
            raise NotSent(exc) from exc

    def close(self, *, in_use: bool = True) -> None:
        """Close its connections; later commands open new ones.

        Args:
            in_use: also close those that somebody uses now.
        """
        self.client.connection_pool.disconnect(inuse_connections=in_use)
        for hurried in list(self._hurried.values()):
            hurried.close(in_use=in_use)


def hurried_options(options: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Return options of connections with shorter timeouts. redis-py 8 has some that a pool adds itself."""
    found = {name: value for name, value in options.items() if "maint_notifications" not in name}
    for name in ("socket_timeout", "socket_connect_timeout"):
        found[name] = min(found.get(name) or seconds, seconds)
    return found

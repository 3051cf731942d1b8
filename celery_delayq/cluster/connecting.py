"""Connections to a node, and why there is none. If none could be opened, nothing was sent."""

from __future__ import annotations

import inspect
from typing import Any

import redis
from redis import exceptions

from celery_delayq.cluster.topology import Node
from celery_delayq.queue.connections import LOST

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


def connection_to(node: Node) -> Any:
    """Return a connection from a node's pool; it is connected.

    Raises:
        NotSent: it cannot be connected.
        redis.ConnectionError: the pool has none left.
    """
    try:
        return node.client.connection_pool.get_connection(*_FOR_COMMAND)
    except LOST as exc:
        if _is_exhausted(exc):
            raise
        raise NotSent(exc) from exc


def _is_exhausted(exc: Exception) -> bool:
    return isinstance(exc, exceptions.MaxConnectionsError) or str(exc) in _EXHAUSTED

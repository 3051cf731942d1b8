"""Redirections: answers of a node that did not execute a command, because it does not serve the slot of its keys."""

from __future__ import annotations

from typing import Any

from redis import exceptions

from celery_delayq.basics.errors import ConfigurationError
from celery_delayq.queue.connections import text_of

#: A node does not serve the slot, or not all of it.
REDIRECTIONS = (
    exceptions.MovedError,
    exceptions.AskError,
    exceptions.TryAgainError,
    exceptions.ClusterDownError,
)

#: redis-py makes these classes itself since version 6; before, only in its `RedisCluster`.
_CLASSES: dict[str, type[exceptions.ResponseError]] = {
    "MOVED": exceptions.MovedError,
    "ASK": exceptions.AskError,
    "TRYAGAIN": exceptions.TryAgainError,
    "CLUSTERDOWN": exceptions.ClusterDownError,
    "CROSSSLOT": exceptions.ClusterCrossSlotError,
}

#: What is said of a node of a cluster to which the URL of a single server leads.
NODE = "this Redis is a node of a Redis Cluster: the broker URL has to start with delayq+cluster://, and not with delayq://"


def understood(exc: Exception) -> Exception:
    """Return an error of a node in the class of redis-py that stands for it; any other error as it is.

    redis-py 5 has no class for answers of a cluster in a client of a single server.
    """
    if not isinstance(exc, exceptions.ResponseError) or isinstance(exc, tuple(_CLASSES.values())):
        return exc
    code, _, rest = text_of(exc).partition(" ")
    kind = _CLASSES.get(code)
    if kind is None:
        return exc
    try:
        error = kind(rest)
    except ValueError:  # not "<slot> <host>:<port>"
        return exc
    error.args = (rest,)
    error.__cause__ = exc
    return error


def is_redirection(reply: Any) -> bool:
    """Return whether a node did not execute a command, because it does not serve the slot, or not all of it."""
    return isinstance(reply, REDIRECTIONS) and not isinstance(reply, exceptions.MasterDownError)


def refuse_cluster(exc: Exception) -> None:
    """Say what to do if a client of a single server has met a node of a cluster; otherwise do nothing.

    For a client of a cluster, the same errors mean something else.

    Raises:
        ConfigurationError: it has.
    """
    error = understood(exc)
    if is_redirection(error) or isinstance(error, exceptions.ClusterCrossSlotError):
        raise ConfigurationError(NODE) from exc

"""Redirections: answers of a node that did not execute a command, because it does not serve the slot of its keys."""

from __future__ import annotations

from typing import Any

from redis import exceptions

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

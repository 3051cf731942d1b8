"""Lost connections: the errors that mean one; and Outage, which logs an outage and waits between attempts."""

from __future__ import annotations

import os
import random
import socket
import time
import uuid
from collections.abc import Callable
from logging import ERROR, WARNING, Logger, LoggerAdapter
from typing import cast

import redis
from redis import exceptions

#: Errors of a server that cannot serve now: READONLY (a master that became a replica), MASTERDOWN (a replica without
#: its master), CLUSTERDOWN. LOADING (it has just started) is already a `ConnectionError`.
NOT_SERVING = (exceptions.ReadOnlyError, exceptions.ClusterDownError)

#: Errors of a connection that was lost, or could not be opened.
LOST = (exceptions.ConnectionError, exceptions.TimeoutError, OSError)

#: Errors after which a loop reconnects.
CONNECTION_ERRORS = (*LOST, *NOT_SERVING)


def is_full(exc: BaseException) -> bool:
    """Return whether an error says that the server has no connection left: its limit `maxclients` is reached."""
    return any(text in str(exc) for text in _FULL)


#: What a server says that has no connection left; and a node of a cluster.
_FULL = ("max number of clients reached", "max number of clients + cluster connections reached")

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0


def at_server_of(client: redis.Redis, key: str) -> redis.Redis:
    """Return a client whose commands without a key, TIME for example, go to the server that has a key.

    That is the client itself, unless it is one of a cluster: each node has a clock of its own.
    """
    return cast("redis.Redis", client.at(key)) if is_cluster(client) else client  # type: ignore[attr-defined]


def servers_of(client: redis.Redis) -> list[redis.Redis]:
    """Return a client for each server: those of the masters if it is one of a cluster, else the client itself."""
    if is_cluster(client):
        return [client.with_home(node) for node in client.masters()]  # type: ignore[attr-defined]
    return [client]


def hurried(client: redis.Redis) -> redis.Redis:
    """Return a client that waits less for an answer, for what can be done later or without it.

    That is the client itself, unless it is one of a cluster, where one node that hangs should not hold up the others.
    """
    return cast("redis.Redis", client.hurried()) if is_cluster(client) else client  # type: ignore[attr-defined]


def is_cluster(client: redis.Redis) -> bool:
    """Return whether a client is one of a cluster, whose keys are at several servers."""
    return hasattr(client, "at")


def is_elsewhere(client: redis.Redis, key: str) -> bool:
    """Return whether a key is at another server than that of commands without a key: in a cluster, its slot has moved.

    If that server is away, this concerns only the key.
    """
    return is_cluster(client) and bool(client.is_elsewhere(key))  # type: ignore[attr-defined]


class Outage:
    """Logs once that a loop was interrupted, and once that it continues. In between, each pause is longer.

    Args:
        logger: the loop's logger.
        what: the interrupted work, for example "Transfer of delayed messages".
        meanwhile: what happens during the outage, for example "Messages wait in Redis".
        is_stopping: whether the loop should end; if so, a pause ends too.
        longest_pause_s: maximum length of a pause, in seconds.
    """

    def __init__(
        self,
        logger: Logger | LoggerAdapter[Logger],
        what: str,
        meanwhile: str,
        is_stopping: Callable[[], bool],
        longest_pause_s: float = _LONGEST_PAUSE_S,
    ) -> None:
        self._logger = logger
        self._what = what
        self._meanwhile = meanwhile
        self._is_stopping = is_stopping
        self._longest_pause_s = longest_pause_s
        #: None until the server has served the loop for the first time.
        self._lasts: bool | None = None
        self._pause_s = _FIRST_PAUSE_S
        #: Whether the server has no connection left for the loop.
        self.is_full = False

    def begins(self, exc: Exception) -> None:
        """Note that the loop was interrupted, or still is. Then wait before the next attempt."""
        if not self._lasts:
            expected = isinstance(exc, (*CONNECTION_ERRORS, exceptions.TryAgainError))
            refused = isinstance(exc, exceptions.NoPermissionError)
            self._logger.log(
                WARNING if expected else ERROR,
                "%s interrupted: %s. %s%s; reconnecting...",
                self._what,
                str(exc).rstrip("."),
                "`celery -A ... delayq check` names the missing rights. " if refused else "",
                self._meanwhile,
                exc_info=None if expected or refused else exc,
            )
        self._lasts, self.is_full = True, is_full(exc)
        self._pause(self._pause_s * random.uniform(0.5, 1))
        self._pause_s = min(2 * self._pause_s, self._longest_pause_s)

    def ends(self) -> None:
        """Note that the server serves the loop. Costs nothing if there is no outage."""
        # Connecting is not enough: a replica, or a server that is still loading, refuses the next commands.
        if self._lasts is not False:
            self._logger.info("%s: connected%s.", self._what, " again" if self._lasts else "")
        self._lasts, self.is_full, self._pause_s = False, False, _FIRST_PAUSE_S

    def _pause(self, pause_s: float) -> None:
        # Not a threading.Event: it is not safe to set one in a signal handler that interrupts the same call.
        until = time.monotonic() + pause_s
        while not self._is_stopping() and time.monotonic() < until:
            time.sleep(0.05)


def new_id() -> str:
    """Return an id for a loop: readable, unique."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:12]}"

"""What a server cannot do now: the errors that say so; and Outage, which logs an outage and waits between attempts.

A connection may be lost. Or the server refuses for now what it would do at another time, for example because
its memory is full (`passing_refusal`). Either passes by itself.
"""

from __future__ import annotations

import inspect
import math
import os
import random
import re
import socket
import time
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from logging import ERROR, WARNING, Logger, LoggerAdapter
from typing import Any, TypeAlias, cast

import redis
from redis import exceptions

#: Returns a context manager that gives a client with connections of its own, and closes these at the end.
Connect: TypeAlias = Callable[[], AbstractContextManager[redis.Redis]]

#: Errors of a server that cannot serve now: READONLY (a master that became a replica), MASTERDOWN (a replica without
#: its master), CLUSTERDOWN. LOADING (it has just started) is already a `ConnectionError`.
NOT_SERVING = (exceptions.ReadOnlyError, exceptions.ClusterDownError)

#: Errors of a connection that was lost, or could not be opened.
LOST = (exceptions.ConnectionError, exceptions.TimeoutError, OSError)

#: Errors after which a loop reconnects.
CONNECTION_ERRORS = (*LOST, *NOT_SERVING)

#: The words with which a server refuses something for now, and the errors of redis-py that lack the word.
_FOR_NOW = re.compile(
    r"(?:^|: |: -)((?:NOREPLICAS|MISCONF|OOM|BUSY|LOADING|READONLY|MASTERDOWN|CLUSTERDOWN|TRYAGAIN) .*)", re.DOTALL
)
_WITHOUT_WORD = (
    (exceptions.OutOfMemoryError, "OOM"),
    (exceptions.BusyLoadingError, "LOADING"),
    (exceptions.ReadOnlyError, "READONLY"),
    (exceptions.MasterDownError, "MASTERDOWN"),
    (exceptions.ClusterDownError, "CLUSTERDOWN"),
    (exceptions.TryAgainError, "TRYAGAIN"),
)
#: What Redis adds to the error of a command in a script.
_IN_SCRIPT = " script: "

#: After how many seconds without a refusal the next one is logged again: while one lasts, somebody meets it more often.
#: For how many seconds after its end it may still be in late replies, which are not logged.
_FORGOTTEN_S, _LATE_S = 60.0, 5.0


def as_text(value: Any) -> str:
    """Return as text what a server has sent, or is sent, whether or not the client decodes replies."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def text_of(exc: BaseException) -> str:
    """Return the text of an error of the server without what redis-py adds to it in a pipeline."""
    text = str(exc)
    return text.rpartition(" of pipeline caused error: ")[2] if text.startswith("Command # ") else text


def passing_refusal(exc: object) -> str:
    """Return the text of an error by which a server refuses something for now only; empty for all other errors.

    The first word tells why: NOREPLICAS (too few replicas to write), MISCONF (it cannot save), OOM (its memory is
    full), BUSY (a script takes long), LOADING, READONLY (it is a replica), MASTERDOWN (a replica without its master),
    CLUSTERDOWN, TRYAGAIN (a slot moves). Redis 6.2 says it in other words if a script meets it.
    """
    # A server that refuses as somebody connects counts as away, see `Transport.establish_connection`.
    if not isinstance(exc, (exceptions.ResponseError, exceptions.ConnectionError)):
        return ""
    text = text_of(exc).partition(_IN_SCRIPT)[0].rstrip(".")
    found = _FOR_NOW.search(text)
    if found:
        return found[1]
    return next((f"{word} {text}" for kind, word in _WITHOUT_WORD if isinstance(exc, kind)), "")


class Refusals:
    """Says in one line what a server refuses for now, and in another that this is over. Safe in all threads."""

    def __init__(self) -> None:
        #: Node of a cluster ("" for a single server), first word of a refusal -> when it was met last, or was over
        #: (monotonic).
        self._met_at: dict[tuple[str, str], float] = {}
        #: Those that last.
        self._lasting: set[tuple[str, str]] = set()

    def note(self, exc: object, logger: Logger | LoggerAdapter[Logger]) -> bool:
        """Return whether an error is such a refusal. Says it, unless this process has said it already."""
        text = passing_refusal(exc)
        if not text:
            return False
        node = getattr(exc, "node", "")
        which, now = (node, text.partition(" ")[0]), time.monotonic()
        since_s = now - self._met_at.get(which, -math.inf)
        if which not in self._lasting and since_s <= _LATE_S:
            return True
        is_new = which not in self._lasting or since_s > _FORGOTTEN_S
        self._met_at[which] = now
        self._lasting.add(which)
        if is_new:
            logger.warning(
                "Redis%s refuses some commands for now: %s. Nothing is lost: this process keeps what it has, does what "
                "Redis still allows, and retries the rest until Redis accepts it",
                f" node {node}" if node else "",
                text,
            )
        return True

    def end(self, client: redis.Redis, logger: Logger | LoggerAdapter[Logger], *, has_added: bool = False) -> None:
        """Log that a refusal is over, because the server has accepted a write. Costs nothing if there was none.

        Args:
            client: of the server; of a cluster, one whose home is the node.
            logger: of the caller.
            has_added: whether the write was one that needs memory.
        """
        if not self._lasting:
            return
        home = client.router.home if is_cluster(client) else None  # type: ignore[attr-defined]
        for node, word in list(self._lasting):
            if node == str(home or "") and (has_added or word != "OOM"):
                self._lasting.discard((node, word))
                self._met_at[node, word] = time.monotonic()
                logger.info("Redis%s accepts commands again (%s is over)", f" node {node}" if node else "", word)


#: Those of this process.
refusals = Refusals()


def is_full(exc: BaseException) -> bool:
    """Return whether an error says that the server has no connection left: its limit `maxclients` is reached."""
    return any(text in str(exc) for text in _FULL)


#: What a server says that has no connection left; and a node of a cluster.
_FULL = ("max number of clients reached", "max number of clients + cluster connections reached")

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0

#: How long after its turn to speak a connection counts as silent, in seconds; its owner looks at least that often.
LATE_S = 5.0


#: The clock of `next_health_check`: redis-py 5 takes that of the system.
_health_clock: Callable[[], float] = time.monotonic if inspect.ismodule(vars(redis.connection)["time"]) else time.time


def should_speak(connection: Any) -> bool:
    """Return whether nothing was read from a connection for its `health_check_interval`.

    A proxy, a firewall or NAT between here and the server forgets connections that are idle, some without a word.
    """
    return bool(connection.health_check_interval) and _health_clock() > connection.next_health_check


def was_silent(connection: Any) -> bool:
    """Return whether nothing was read for so much longer that the connection may be forgotten: open it again."""
    return should_speak(connection) and _health_clock() > connection.next_health_check + LATE_S


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


def hurried(client: redis.Redis, **patience: float) -> redis.Redis:
    """Return a client that waits less for an answer, for what can be done later or without it.

    That is the client itself, unless it is one of a cluster, where one node that hangs should not hold up the others.

    Args:
        client: the client.
        patience: `deadline_s` and `hurry_s`, see `cluster.client.Routed`; by default those of the client.
    """
    return cast("redis.Redis", client.hurried(**patience)) if is_cluster(client) else client  # type: ignore[attr-defined]


def close_idle(client: redis.Redis) -> None:
    """Close the connections of a client that nobody uses now; later commands open new ones."""
    if is_cluster(client):
        client.topology.close(in_use=False)  # type: ignore[attr-defined]
    else:
        client.connection_pool.disconnect(inuse_connections=False)


def is_cluster(client: redis.Redis) -> bool:
    """Return whether a client is one of a cluster, whose keys are at several servers."""
    return hasattr(client, "at")


def is_elsewhere(client: redis.Redis, key: str) -> bool:
    """Return whether a key is at another server than that of commands without a key: in a cluster, its slot has moved.

    If that server is away, this concerns only the key.
    """
    return is_cluster(client) and bool(client.is_elsewhere(key))  # type: ignore[attr-defined]


def connection_of(pool: Any) -> Any:
    """Return a new connection, not yet connected, with the class and the parameters of a pool.

    The pool does not know it, so it does not count towards the pool's `max_connections`. It speaks the second protocol,
    in which the server tells of changed keys as Pub/Sub does; and if one connection is told of what another one has
    read, the server wants both to speak the same. redis-py 8 has options that want the third one.
    """
    kwargs = {name: value for name, value in pool.connection_kwargs.items() if "maint_notifications" not in name}
    return pool.connection_class(**{**kwargs, "protocol": 2})


def address_of(client: redis.Redis) -> str:
    """Return where a client is connected to: host and port, or the path of a socket."""
    pool: Any = client.connection_pool
    options = pool.connection_kwargs
    host, port = getattr(pool, "master_address", None) or (options.get("host", "localhost"), options.get("port", 6379))
    return str(options.get("path") or f"{host}:{port}")


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
        is_stopping: Callable[[], bool] = lambda: False,
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
        #: Whether the server has no connection left for the loop. Any thread may look.
        self.is_full = False

    def begins(self, exc: Exception) -> None:
        """Note that the loop was interrupted, or still is. Then wait before the next attempt."""
        self._pause(self.note(exc))

    def note(self, exc: Exception) -> float:
        """Do so without waiting: return for how long to wait, in seconds."""
        if not refusals.note(exc, self._logger) and not self._lasts:
            expected = isinstance(exc, CONNECTION_ERRORS)
            refused = isinstance(exc, exceptions.NoPermissionError)
            self._logger.log(
                WARNING if expected else ERROR,
                "%s interrupted: %s. %s%s; reconnecting...",
                self._what,
                str(exc).rstrip("."),
                "`delayq check` names the missing rights. " if refused else "",
                self._meanwhile,
                exc_info=None if expected or refused or "WRONGTYPE" in str(exc) else exc,
            )
        self._lasts, self.is_full = True, is_full(exc)
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, self._longest_pause_s)
        return pause_s * random.uniform(0.5, 1)

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


#: The name of this process, if it is a worker: that of its node, as Celery has it.
_node = ""

#: What a node is called where it is part of a key, and of ids that colons divide.
_NOT_IN_IDS = re.compile(r"[^a-zA-Z0-9.@%+_-]")


def name_process(node: str) -> None:
    """Let the ids of this process begin with the name of its node, and not with that of its host.

    Args:
        node: the name of the worker, as Celery has it: `celery@host`; empty for that of the host again.
    """
    global _node
    _node = _NOT_IN_IDS.sub("_", node)[:200]


def new_id() -> str:
    """Return an id for a loop: readable, unique."""
    return f"{_node or socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:12]}"


#: What all ids of consumers and loops begin with.
_PROCESS = re.compile(r"(?P<node>.*):(?P<pid>\d{1,9}):[^:]*", re.DOTALL)


def process_of(id: str) -> tuple[str, int | None]:
    """Return the node or the host, and the process id, in the id of a consumer or a loop.

    In any other text, the whole text and None.
    """
    found = _PROCESS.fullmatch(id)
    return (id, None) if found is None else (found["node"], int(found["pid"]))

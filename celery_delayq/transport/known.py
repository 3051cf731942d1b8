"""Connections that are known, so that all of them can be ended or closed.

If a master dies, its connections end. If it hangs, or its machine is cut off, they last, and their users would wait:
`leave` ends those to a server that is no longer a master.

A forked child inherits a copy of each connection. While it has that copy, the server and the event loop of the parent
see the connection as open, although the parent has closed it. So a child closes its copies at once (`descriptors`). It
tells neither the server nor the event loop, which it shares with its parent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import redis
from redis import exceptions

from celery_delayq.basics import deadline
from celery_delayq.basics.descriptors import all_known, interrupt, remember
from celery_delayq.queue.connections import is_full, passing_refusal, was_silent

#: What a call without `timeout` waits in.
_AS_USUAL = nullcontext()


def is_any(kind: type) -> bool:
    """Return whether a known connection of a kind still exists, open or not. Safe in any thread."""
    return any(isinstance(it, kind) for it in all_known())


def leave(host: str, port: int) -> int:
    """End all known connections to a server; returns their number. Safe in any thread: their users get an error."""
    ended = 0
    for it in all_known():
        if isinstance(it, Known) and (getattr(it, "host", None), int(getattr(it, "port", 0) or 0)) == (host, port):
            sock = it._sock
            interrupt(sock)
            ended += sock is not None
    return ended


class Known:
    """Makes a connection known; for subclasses of redis-py's connections, see `known`."""

    #: Called with the descriptor before it is closed; None if nobody polls it. Later, an event loop could not forget
    #: it, and would report it for as long as another process has a copy.
    stop_polling: Callable[[int], object] | None = None

    #: Whether it is to a node of a cluster, which then says so with what it refuses.
    is_node = False

    _sock: Any = None

    socket_timeout: float | None
    socket_connect_timeout: float | None

    def __init__(self, *args: Any, health_check_interval: float = 0, **kwargs: Any) -> None:
        # By its name: kombu 5.6 leaves it out if neither a class nor one of its bases takes it, and looks no further.
        super().__init__(*args, health_check_interval=health_check_interval, **kwargs)  # type: ignore[call-arg]
        remember(self)

    def connect(self) -> Any:
        """Connect, see redis-py, whose pools call this whenever they hand out a connection.

        One that was silent for so long that it may be lost is opened again. A proxy or NAT may have forgotten it
        without a word, and whoever used it would wait for `socket_timeout`.
        """
        connection: Any = self
        # If there is something to read, its user finds out. The pool opens one again that the server has closed.
        with suppress(exceptions.ConnectionError):
            if self._sock is not None and was_silent(self) and not connection.can_read(timeout=0):
                self.disconnect()
        with self._in_time():
            return super().connect()  # type: ignore[misc]

    def _connect(self) -> Any:
        """Open a socket, see redis-py; within the `timeout` of the call."""
        if not deadline.is_set():
            return super()._connect()  # type: ignore[misc]
        longest_s = self.socket_timeout, self.socket_connect_timeout
        self.socket_timeout, self.socket_connect_timeout = map(deadline.at_most, longest_s)
        try:
            return super()._connect()  # type: ignore[misc]
        finally:
            self.socket_timeout, self.socket_connect_timeout = longest_s

    def _in_time(self) -> AbstractContextManager[object]:
        """Let the block wait for the server within the `timeout` of the call, if it has one; see `_hurried`."""
        return self._hurried() if deadline.is_set() else _AS_USUAL

    @contextmanager
    def _hurried(self) -> Iterator[None]:
        """Let the block wait for the server until the end of the call.

        Raises:
            redis.TimeoutError: that is over. The connection is closed: a reply may be unread.
        """
        longest_s = self.socket_timeout
        if self._sock is not None:
            if deadline.left_s() <= 0:
                self.disconnect()
                raise exceptions.TimeoutError("the timeout of this call is over")
            longest_s = self._sock.gettimeout()
            self._sock.settimeout(deadline.at_most(longest_s))
        try:
            yield
        finally:
            if self._sock is not None:
                self._sock.settimeout(longest_s)

    def send_packed_command(self, *args: Any, **kwargs: Any) -> None:
        """Send a command, see redis-py."""
        with self._in_time():
            super().send_packed_command(*args, **kwargs)  # type: ignore[misc]

    def disconnect(self, *args: Any, **kwargs: Any) -> None:
        """Close the connection, see redis-py."""
        stop_polling, self.stop_polling = self.stop_polling, None
        if stop_polling is not None and self._sock is not None:
            stop_polling(self._sock.fileno())
        super().disconnect(*args, **kwargs)  # type: ignore[misc]

    def close_copy(self) -> None:
        """Close what a forked child has inherited, and nothing else."""
        sock, self._sock = self._sock, None
        self.stop_polling = None
        if sock is not None:
            sock.close()

    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        """Read a reply, see redis-py, which does not know what a node says that has no connection left.

        It would take that for the refusal of a command of its own, and go on with a connection that is closed. Other
        refusals of a node that pass by themselves learn which `node` says so, see `Refusals`.

        Raises:
            redis.ConnectionError: the node has no connection left, as of a single server.
        """
        try:
            with self._in_time():
                return super().read_response(*args, **kwargs)  # type: ignore[misc]
        except exceptions.ResponseError as exc:
            understood = self.understood(exc)
            if understood is exc:
                raise
            raise understood from exc

    def understood(self, exc: exceptions.ResponseError) -> exceptions.RedisError:
        """Return what an error of the server means, see `read_response`."""
        if is_full(exc):
            return exceptions.ConnectionError(str(exc))
        if self.is_node and passing_refusal(exc):
            exc.node = f"{self.host}:{self.port}"  # type: ignore[attr-defined]
        return exc


class NodeConnection(Known, redis.Connection):
    """A connection to a node of a cluster."""

    is_node = True


class NodeSSLConnection(Known, redis.SSLConnection):
    """The same with TLS."""

    is_node = True


def known(kind: type) -> Any:
    """Return a class of connections that are known, for one of redis-py's."""
    return kind if issubclass(kind, Known) else type(kind.__name__, (Known, kind), {})


def close_sentinels(pool: Any) -> None:
    """Close the connections to the sentinels by which a pool has found its master, unless it is of another kind.

    kombu does so since 5.7, and only with redis-py 8.1 or later.
    """
    manager = getattr(pool, "sentinel_manager", None)
    for sentinel in () if manager is None else manager.sentinels:
        sentinel.connection_pool.disconnect()

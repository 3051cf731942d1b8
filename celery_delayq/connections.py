"""What the loops with connections of their own have in common: losing them, waiting, being woken and named."""

from __future__ import annotations

import os
import random
import socket
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from logging import ERROR, WARNING, Logger
from typing import Any

from redis import exceptions

#: What a server answers that cannot serve now: READONLY (a master that became a replica), MASTERDOWN (a replica without
#: its master), CLUSTERDOWN. LOADING (it has just started) is a `ConnectionError` already.
NOT_SERVING = (exceptions.ReadOnlyError, exceptions.ClusterDownError)

#: What makes a loop connect anew.
CONNECTION_ERRORS = (exceptions.ConnectionError, exceptions.TimeoutError, *NOT_SERVING, OSError)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0


class Outage:
    """Says once that a loop was interrupted, and once that it goes on; in between, each pause is longer.

    Args:
        logger: the loop's.
        what: is interrupted, as "Transfer of delayed messages".
        meanwhile: what becomes of the work, as "Messages wait in Redis".
        is_stopping: whether the loop is to end; that ends a pause, too.
        longest_pause_s: in seconds.
    """

    def __init__(
        self,
        logger: Logger,
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
        #: None before the loop was served for the first time.
        self._lasts: bool | None = None
        self._pause_s = _FIRST_PAUSE_S

    def begins(self, exc: Exception) -> None:
        """Take notice that the loop was interrupted, or still is, and wait before it connects anew."""
        if not self._lasts:
            expected = isinstance(exc, CONNECTION_ERRORS)
            self._logger.log(
                WARNING if expected else ERROR,
                "%s interrupted: %s. %s; connecting again...",
                self._what,
                str(exc).rstrip("."),
                self._meanwhile,
                exc_info=None if expected else exc,
            )
        self._lasts = True
        self._pause(self._pause_s * random.uniform(0.5, 1))
        self._pause_s = min(2 * self._pause_s, self._longest_pause_s)

    def ends(self) -> None:
        """Take notice that the server does what the loop asks; costs nothing if there is no outage."""
        # Not when it is connected: a replica, or a server that is still loading, refuses the commands that follow.
        if self._lasts is not False:
            self._logger.info("%s: connected%s.", self._what, " again" if self._lasts else "")
        self._lasts, self._pause_s = False, _FIRST_PAUSE_S

    def _pause(self, pause_s: float) -> None:
        # No threading.Event: setting one is not safe in a signal handler that interrupts the same call.
        until = time.monotonic() + pause_s
        while not self._is_stopping() and time.monotonic() < until:
            time.sleep(0.05)


class LoopThread(ABC):
    """A loop that waits on a subscription of its own, in a daemon thread, until `stop()`.

    `stop` may be called from any thread, from a signal handler, and any number of times; in a forked child it does
    nothing.

    Args:
        name: of the thread.
        logger, what, meanwhile: see `Outage`.
    """

    def __init__(self, name: str, logger: Logger, what: str, meanwhile: str) -> None:
        self._name = name
        self._outage = Outage(logger, what, meanwhile, lambda: self._stopping)
        #: The subscription, a `redis.client.PubSub`; None before the first connection.
        self._pubsub: Any = None
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    def start(self) -> None:
        """Run the loop in a daemon thread; does nothing if one runs it already."""
        if self.is_alive():
            return
        self._thread = threading.Thread(target=self.run, name=self._name, daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """End the loop and wait at most `timeout_s` seconds."""
        if os.getpid() != self._pid:
            return
        self._stopping = True
        interrupt(socket_of(self._pubsub))
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def is_alive(self) -> bool:
        """Return whether the loop's thread runs."""
        return self._thread is not None and self._thread.is_alive()

    @abstractmethod
    def run(self) -> None:
        """Work until `stop()` is called. Never raises for what happens to the server or the network."""


def socket_of(pubsub: Any) -> Any:
    """Return the socket of a `redis.client.PubSub`; None if it has none."""
    return getattr(getattr(pubsub, "connection", None), "_sock", None)


def interrupt(sock: Any) -> None:
    """Wake whoever reads from a socket; the connection is lost by that. Safe in any thread and signal handler."""
    # A shut-down socket wakes its reader in every kind of worker; the subscription is then made anew.
    if sock is not None:
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


def new_id() -> str:
    """Return an id for a loop: readable, unique."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:12]}"

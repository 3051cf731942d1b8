"""What the loops with connections of their own have in common: losing them, waiting, being woken and named."""

from __future__ import annotations

import os
import random
import socket
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from logging import ERROR, WARNING, Logger
from typing import Any

from redis import exceptions

#: What makes a loop connect anew. A replica answers READONLY when its master was replaced.
CONNECTION_ERRORS = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.ReadOnlyError,
    OSError,
)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0


class Outage:
    """Says once that a loop was interrupted, and once that it goes on; in between, each pause is longer.

    Args:
        logger: the loop's.
        what: is interrupted, as "Transfer of delayed messages".
        meanwhile: what becomes of the work, as "Messages wait in Redis".
        is_stopping: whether the loop is to end; that ends a pause, too.
    """

    def __init__(self, logger: Logger, what: str, meanwhile: str, is_stopping: Callable[[], bool]) -> None:
        self._logger = logger
        self._what = what
        self._meanwhile = meanwhile
        self._is_stopping = is_stopping
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
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

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

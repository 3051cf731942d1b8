"""LoopThread: a thread that waits on its own subscription."""

from __future__ import annotations

import _socket
import os
import socket
import threading
import weakref
from abc import ABC, abstractmethod
from contextlib import suppress
from contextvars import Context
from logging import Logger
from typing import Any

from celery_delayq.queue.connections import Outage


class LoopThread(ABC):
    """A loop that waits on its own subscription, in a daemon thread, until `stop()`.

    `stop` may be called from any thread or signal handler, any number of times; in a forked child it does nothing.

    Args:
        name: name of the thread.
        logger, what, meanwhile: see `Outage`.

    Attributes:
        outage: whether the loop is interrupted.
    """

    def __init__(self, name: str, logger: Logger, what: str, meanwhile: str) -> None:
        self._name = name
        me = weakref.ref(self)  # this must not wait for the garbage collector: it has descriptors
        self.outage = Outage(logger, what, meanwhile, lambda: (loop := me()) is None or loop.is_stopping)
        #: Whether the loop ends, or has ended.
        self.is_stopping = False
        #: The subscription, a `redis.client.PubSub`; None before the first connection.
        self._pubsub: Any = None
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    def start(self) -> None:
        """Run the loop in a daemon thread; does nothing if it already runs."""
        if self.is_alive():
            return
        self._thread = threading.Thread(target=self.run, name=self._name, daemon=True)
        Context().run(self._thread.start)  # a Python without GIL would give it the `timeout` of the call that starts it

    def stop(self, timeout_s: float = 5.0) -> None:
        """End the loop and wait at most `timeout_s` seconds."""
        if os.getpid() != self._pid:
            return
        self.is_stopping = True
        interrupt(socket_of(self._pubsub))
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def is_alive(self) -> bool:
        """Return whether the loop's thread runs."""
        return self._thread is not None and self._thread.is_alive()

    @abstractmethod
    def run(self) -> None:
        """Work until `stop()` is called. Never raises for server or network errors."""


def socket_of(pubsub: Any) -> Any:
    """Return the socket of a `redis.client.PubSub`; None if it has none."""
    return getattr(getattr(pubsub, "connection", None), "_sock", None)


def interrupt(sock: Any) -> None:
    """Wake the reader of a socket; this ends the connection. Safe in any thread and signal handler."""
    # A shut-down socket wakes its reader in every kind of worker. The loop then subscribes again.
    if sock is None:
        return
    with suppress(OSError, TypeError):  # gevent's has no real one any more if it is closed
        # Not the method of `SSLSocket`: it first turns off TLS, and another thread might send just then. Nor that of
        # gevent's socket, which has the real one in `_sock`: it is for the thread of its hub.
        _socket.socket.shutdown(getattr(sock, "_sock", sock), socket.SHUT_RDWR)

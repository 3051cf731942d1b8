"""LoopThread: a thread that waits on its own subscription."""

from __future__ import annotations

import os
import threading
import weakref
from abc import ABC, abstractmethod
from contextvars import Context
from logging import Logger
from typing import Any

from celery_delayq.basics.descriptors import interrupt
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
        interrupt(getattr(getattr(self._pubsub, "connection", None), "_sock", None))
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def is_alive(self) -> bool:
        """Return whether the loop's thread runs."""
        return self._thread is not None and self._thread.is_alive()

    @abstractmethod
    def run(self) -> None:
        """Work until `stop()` is called. Never raises for server or network errors."""

"""SharedRegistry: the registry for the loops of one process, which read it once for all of them."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import redis

from celery_delayq.queue.registry import Registry, Retired

T = TypeVar("T")

#: How long loops share one reading, in seconds. It must stay below 30 s, the gap between the times in the rules of
#: `registry`.
FRESH_S = 10.0


class SharedRegistry(Registry):
    """The registry of a cluster, for a process with a loop for each node.

    Otherwise its node would get the same commands from each loop of each worker, on a connection of its own. Safe to
    share between threads.

    Args:
        client: see `Registry`.
        keyprefix: see `Registry`.
    """

    def __init__(self, client: redis.Redis, keyprefix: str = "") -> None:
        super().__init__(client, keyprefix)
        self._lock = threading.Lock()
        #: What was read -> when (monotonic), and the answer.
        self._read: dict[str, tuple[float, Any]] = {}

    def refresh(self) -> None:
        """Make sure that the next call reads what is there."""
        with self._lock:
            self._read.clear()

    def names(self) -> set[str]:
        """Return the registered names as they were `FRESH_S` ago or later, see `Registry`."""
        return set(self._recent("names", super().names))

    def retired(self) -> Retired:
        """Return the retired names as they were `FRESH_S` ago or later, see `Registry`."""
        return self._recent("retired", super().retired)

    def _recent(self, what: str, read: Callable[[], T]) -> T:
        with self._lock:
            now = time.monotonic()
            read_at, found = self._read.get(what, (-math.inf, None))
            if now - read_at > FRESH_S:
                found = read()
                self._read[what] = now, found
            answer: T = found
            return answer

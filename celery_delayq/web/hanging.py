"""Hanging: a server that accepts connections and does not answer must not hold up one request after the other."""

from __future__ import annotations

import threading
import time


class Hanging:
    """Remembers that the server does not answer. Threads may share it.

    For some time after a request has waited in vain, others fail at once. Then one tries again; while it waits, the
    others still fail.

    Args:
        rest_s: how long others fail, in seconds.
    """

    def __init__(self, rest_s: float) -> None:
        self._rest_s = rest_s
        self._lock = threading.Lock()
        self._error: str | None = None
        self._until = 0.0

    def error(self) -> str | None:
        """Return why this request should not try; None if it should."""
        with self._lock:
            if self._error is None:
                return None
            now = time.monotonic()
            if now < self._until:
                return self._error
            self._until = now + self._rest_s
            return None

    def waited(self, error: str) -> None:
        """Note that a request has waited in vain.

        Args:
            error: a sentence for those who need not try.
        """
        with self._lock:
            self._error, self._until = error, time.monotonic() + self._rest_s

    def answered(self) -> None:
        """Note that the server answers."""
        with self._lock:
            self._error = None

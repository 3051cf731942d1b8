"""Isolation: a message that a consumer holds alone, so that nothing is fetched beside it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from celery_delayq.fetching.held import Held


class Isolation:
    """At most one message of a consumer. It has a mark in the in-flight list as long as it is alone.

    The consuming thread begins it. Any thread may end it, or acknowledge the message.

    Args:
        held: tag -> message that the consumer holds.
        rewrite: replaces the bytes of a held message in the in-flight list, and here. Returns False if the consumer no
            longer owns it.
    """

    def __init__(self, held: dict[str, Held], rewrite: Callable[[str, bytes], bool]) -> None:
        self._held = held
        self._rewrite = rewrite
        self._tag: str | None = None
        #: Guards the bytes of the message: whoever acknowledges it has to know them.
        self._lock = threading.Lock()

    @property
    def is_on(self) -> bool:
        """Whether a message is held alone."""
        return self._tag in self._held

    def begin(self, tag: str, marked: bytes) -> bool:
        """Hold a message alone, and store it with its mark. One atomic script.

        Returns:
            False if the consumer no longer owns the message.

        Raises:
            redis.RedisError: the server is away, or refuses.
        """
        if not self._rewrite(tag, marked):
            return False
        self._tag = tag
        return True

    def end(self, unmark: Callable[[bytes], bytes], *, beside: str) -> None:
        """Remove the mark, because another message begins beside this one. Does nothing if none is held alone.

        Args:
            unmark: returns the bytes of a message without the mark.
            beside: tag of the message that begins; nothing happens if it is the one that is held alone.

        Raises:
            redis.RedisError: the server is away, or refuses; the mark remains.
        """
        if self._tag is None or self._tag == beside:
            return
        with self._lock:
            tag = self._tag
            held = self._held.get(tag) if tag is not None else None
            try:
                if tag is not None and held is not None:  # it may have been acknowledged just now
                    self._rewrite(tag, unmark(held.message))
            finally:
                self._tag = None  # last: an acknowledgement of it has to wait until now

    def acknowledging(self, tag: str) -> AbstractContextManager[object]:
        """Return a context in which the bytes of a message do not change. Its isolation ends with it."""
        return self._lock if tag == self._tag else nullcontext()

    def forget(self, tag: str) -> None:
        """End the isolation of a message that is acknowledged. Call this within `acknowledging`."""
        if tag == self._tag:
            self._tag = None

"""Bindings: which queues are bound to which exchange, also while their server refuses to write them, or is away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: When what was refused is tried again, in seconds. While the slot moves, each attempt takes half a second.
AGAIN_S = 10.0


class Bindings:
    """Those of one connection. For one thread at a time, as a kombu connection is.

    Args:
        is_for_later: returns whether a binding that has met this error is written later, see
            `DelayedChannel.is_for_later`.
    """

    def __init__(self, is_for_later: Callable[[BaseException], bool]) -> None:
        self._is_for_later = is_for_later
        #: Exchange -> its bindings as they were last read.
        self._tables: dict[str, Any] = {}
        #: Exchange, queue and binding -> what makes it, given any channel of the connection.
        self._postponed: dict[tuple[str, str, object], Callable[[Any], None]] = {}

    def bind(self, channel: Any, exchange: str, queue: str, binding: object, bind: Callable[[Any], None]) -> None:
        """Bind a queue; later if the server refuses that for now.

        Else a message to the exchange would be lost: nobody may declare the queue again.

        Args:
            channel: the one that declares the queue. It may be closed when the queue is bound.
            exchange: its name.
            queue: its name.
            binding: tells bindings of a queue to an exchange apart.
            bind: binds it, on the channel that it is given.
        """
        try:
            bind(channel)
        except Exception as exc:
            if not self._is_for_later(exc):
                raise
            self._postponed[exchange, queue, binding] = bind
        else:
            self._postponed.pop((exchange, queue, binding), None)

    def waits(self, exchange: str, queue: str) -> bool:
        """Return whether a queue waits to be bound to an exchange."""
        return any(key[:2] == (exchange, queue) for key in self._postponed)

    def forget(self, queue: str) -> None:
        """Do not bind a queue any more: it was deleted."""
        self._postponed = {key: bind for key, bind in self._postponed.items() if key[1] != queue}

    def knows(self, exchange: str) -> bool:
        """Return whether the bindings of an exchange were read before, and none waits to be written."""
        return exchange in self._tables and all(key[0] != exchange for key in self._postponed)

    def of(self, channel: Any, exchange: str, read: Callable[[str], Any]) -> Any:
        """Return the bindings of an exchange; the last known ones if they cannot be read.

        Raises:
            redis.RedisError: they are not known, or some of them were not written yet.
        """
        self._bind(channel, exchange)
        try:
            self._tables[exchange] = read(exchange)
        except Exception as exc:
            if exchange not in self._tables or not self._is_for_later(exc):
                raise
        return self._tables[exchange]

    def bind_postponed(self, channel: Any) -> Exception | None:
        """Bind what was postponed; returns why that has to wait on, None if it is done."""
        try:
            self._bind(channel)
        except Exception as exc:
            if not self._is_for_later(exc):
                raise
            return exc
        return None

    def _bind(self, channel: Any, exchange: str | None = None) -> None:
        while key := next((key for key in self._postponed if exchange in (None, key[0])), None):
            self._postponed[key](channel)
            self._postponed.pop(key, None)

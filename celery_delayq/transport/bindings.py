"""Bindings: which queues are bound to which exchange, while the node that keeps that is away."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import redis
from redis import exceptions

from celery_delayq.cluster.redirection import REDIRECTIONS
from celery_delayq.queue.connections import CONNECTION_ERRORS

#: Errors after which what needs their node, or its memory, is done later: it is away, full, or gives the slot away.
LATER = (*CONNECTION_ERRORS, *REDIRECTIONS, redis.OutOfMemoryError)

#: When what was refused is tried again, in seconds. While the slot moves, each attempt takes half a second.
AGAIN_S = 10.0


@contextmanager
def old_refusals_understood() -> Iterator[None]:
    """If a script of kombu's needs memory, raise `OutOfMemoryError` as of Redis 7, and not the error of Redis 6.2."""
    try:
        yield
    except exceptions.ResponseError as exc:
        if "-OOM " not in str(exc):
            raise
        raise redis.OutOfMemoryError(str(exc)) from exc


class Bindings:
    """Those of one connection. For one thread at a time, as a kombu connection is."""

    def __init__(self) -> None:
        #: Exchange -> its bindings as they were last read.
        self._tables: dict[str, Any] = {}
        #: Exchange -> what writes a binding that could not be written.
        self._postponed: dict[str, list[Callable[[], None]]] = {}

    def postpone(self, exchange: str, bind: Callable[[], None]) -> None:
        """Bind a queue later.

        kombu would not bind it again: it takes what it has tried for done. A message to the exchange would be lost.
        """
        self._postponed.setdefault(exchange, []).append(bind)

    def knows(self, exchange: str) -> bool:
        """Return whether the bindings of an exchange were read before, and none waits to be written."""
        return exchange in self._tables and exchange not in self._postponed

    def of(self, exchange: str, read: Callable[[str], Any]) -> Any:
        """Return the bindings of an exchange; the last known ones if they cannot be read.

        Raises:
            redis.RedisError: one of `LATER`: they are not known, or some of them were not written yet.
        """
        self._bind(exchange)
        try:
            self._tables[exchange] = read(exchange)
        except LATER:
            if exchange not in self._tables:
                raise
        return self._tables[exchange]

    def bind_postponed(self) -> Exception | None:
        """Bind what was postponed; returns why that has to wait on, None if it is done."""
        try:
            for exchange in list(self._postponed):
                self._bind(exchange)
        except LATER as exc:
            return exc
        return None

    def _bind(self, exchange: str) -> None:
        postponed = self._postponed.get(exchange, [])
        while postponed:
            postponed[0]()
            postponed.pop(0)
        self._postponed.pop(exchange, None)

"""Subscription: a connection on which a consumer hears what others publish, and which lists are no longer empty.

For the latter, the server is asked to tell (`CLIENT TRACKING`): it remembers which keys the connection that fetches has
read, and sends their names to this one when they change, once. That works with any producer, and without any
configuration of the server.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from redis import exceptions

from celery_delayq.basics.descriptors import ready
from celery_delayq.fetching.identity import Identity, identify
from celery_delayq.queue.connections import as_text, connection_of, passing_refusal, should_speak, was_silent

_CHANGED = "__redis__:invalidate"


class Heard(NamedTuple):
    """What was heard.

    Attributes:
        said: what was published on a channel; empty if it is about lists.
        changed: the names of lists that were written to; None if all may have been.
    """

    said: str
    changed: Sequence[str] | None = ()


class Subscription:
    """One connection, for one thread.

    Args:
        pool: gives the class and the parameters of the connection, see `connection_of`.
        channels: to hear.

    Attributes:
        told: what the server tells of lists, or why it does not.

    Every method but `close` raises `redis.ConnectionError` if the connection is lost.
    """

    def __init__(self, pool: Any, *channels: str) -> None:
        self._connection: Any = connection_of(pool)
        #: What came before it was asked for.
        self._early: deque[Any] = deque()
        try:
            self._connection.connect()
            self.told = self._begin(channels)
        except BaseException:
            self.close()
            raise

    def _begin(self, channels: Sequence[str]) -> Identity | exceptions.ResponseError:
        identity = identify(self._connection)
        for channel in channels:
            self._subscribe(channel)
        try:
            self._subscribe(_CHANGED)
        except exceptions.ResponseError as exc:
            if passing_refusal(exc):
                raise
            return exc
        return identity or exceptions.ResponseError("CLIENT INFO is not allowed")

    def _subscribe(self, channel: str) -> None:
        self._connection.send_command("SUBSCRIBE", channel)
        while (reply := self._read())[0] != b"subscribe":
            self._early.append(reply)

    def _read(self) -> Any:
        return self._connection.read_response(disable_decoding=True)

    def hear(self, wait_s: float, *wakers: int) -> Heard | None:
        """Return what comes next; None if nothing does within some seconds, or until one of these can be read.

        Args:
            wait_s: how long to wait, in seconds.
            wakers: descriptors.

        Raises:
            redis.ConnectionError: the connection is lost, or may be, since it was silent for long.
        """
        connection = self._connection
        if not self._early and not connection.can_read(timeout=0):
            if was_silent(connection):
                raise exceptions.ConnectionError("the subscription of a consumer was silent")
            if should_speak(connection):
                connection.send_command("PING", check_health=False)
            ready([connection._sock, *wakers], [], wait_s)
            if not connection.can_read(timeout=0):
                return None
        try:
            kind, *_, data = self._early.popleft() if self._early else self._read()
        except exceptions.ResponseError:  # of a PING, which Redis refuses with MISCONF and BUSY: an answer as well
            return None
        if kind != b"message":
            return None
        if isinstance(data, bytes):
            return Heard(as_text(data))
        return Heard("", None if data is None else [key.decode("utf-8", "surrogateescape") for key in data])

    def close(self) -> None:
        """Close the connection. Never raises."""
        with suppress(Exception):
            self._connection.disconnect()

"""Subscription: a connection on which a keeper hears what others publish, and which lists are no longer empty.

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
from celery_delayq.queue.connections import as_text, connection_of, passing_refusal, should_speak, was_silent

_CHANGED = "__redis__:invalidate"


class Heard(NamedTuple):
    """What was heard.

    Attributes:
        channel: where; empty if it is about lists.
        said: what was published; None if it is heard from now on what is published there.
        changed: the names of lists that were written to; None if all may have been.
    """

    channel: str
    said: str | None = None
    changed: Sequence[str] | None = ()


class Identity(NamedTuple):
    """The server's name for a connection: its id, and its address, because a restarted server reuses ids."""

    client_id: str
    address: str


class Subscription:
    """One connection, for one thread.

    Args:
        pool: gives the class and the parameters of the connection, see `connection_of`.

    Attributes:
        told: what the server tells of lists, or why it does not.

    Every method but `close` raises `redis.ConnectionError` if the connection is lost.
    """

    def __init__(self, pool: Any) -> None:
        self._connection: Any = connection_of(pool)
        #: What came before it was asked for.
        self._early: deque[Any] = deque()
        try:
            self._connection.connect()
            self.told = self._begin()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> Identity | exceptions.ResponseError:
        identity = identify(self._connection)
        try:
            self.subscribe(_CHANGED)
        except exceptions.ResponseError as exc:
            if passing_refusal(exc):
                raise
            return exc
        self._early.clear()
        return identity or exceptions.ResponseError("CLIENT INFO is not allowed")

    def subscribe(self, *channels: str) -> None:
        """Hear what is published on channels: begin, and wait until the server has confirmed that.

        Raises:
            redis.ResponseError: the server refuses; none of them is heard.
        """
        self._connection.send_command("SUBSCRIBE", *channels)
        confirmed = 0
        while confirmed < len(channels):
            reply = self._read()
            confirmed += reply[0] == b"subscribe"
            self._early.append(reply)

    def unsubscribe(self, *channels: str) -> None:
        """Hear no more what is published on channels."""
        self._connection.send_command("UNSUBSCRIBE", *channels)

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
                raise exceptions.ConnectionError("the subscription was silent")
            if should_speak(connection):
                connection.send_command("PING", check_health=False)
            ready([connection._sock, *wakers], [], wait_s)
            if not connection.can_read(timeout=0):
                return None
        try:
            kind, *what = self._early.popleft() if self._early else self._read()
        except exceptions.ResponseError:  # of a PING, which Redis refuses with MISCONF and BUSY: an answer as well
            return None
        if kind not in (b"subscribe", b"message"):
            return None
        channel, data = as_text(what[0]), what[1]
        if channel != _CHANGED:
            return Heard(channel, as_text(data) if kind == b"message" else None)
        return Heard("", None, None if data is None else [key.decode("utf-8", "surrogateescape") for key in data])

    def close(self) -> None:
        """Close the connection. Never raises."""
        with suppress(Exception):
            self._connection.disconnect()


def identify(connection: Any) -> Identity | None:
    """Ask the server for the identity of an idle connection; None if the server never tells this user.

    Raises:
        redis.ResponseError: it refuses for now.
    """
    connection.send_command("CLIENT", "INFO")
    try:
        reply = connection.read_response()
    except exceptions.ResponseError as exc:
        if passing_refusal(exc):
            raise
        return None
    fields = dict(field.partition("=")[::2] for field in as_text(reply).split())
    return Identity(fields["id"], fields["addr"])

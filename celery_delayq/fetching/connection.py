"""FetchConnection: sends acknowledgements without waiting, and reads their replies with the next fetch.

So a task costs at most one round trip. If several tasks wait in the broker list, they share one.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

from redis import exceptions

from celery_delayq.queue import scripts
from celery_delayq.queue.keys import QueueKeys
from celery_delayq.queue.script import Call, load, unwrapped

_FETCH = load("fetch")


class Identity(NamedTuple):
    """The server's name for a connection: its id, and its address, because a restarted server reuses ids."""

    client_id: str
    address: str


def identify(connection: Any) -> Identity | None:
    """Ask the server for the identity of an idle connection; None if the server refuses to tell."""
    connection.send_command("CLIENT", "INFO")
    try:
        reply = connection.read_response()
    except exceptions.ResponseError:
        return None
    text = reply.decode() if isinstance(reply, bytes) else str(reply)
    fields = dict(field.partition("=")[::2] for field in text.split())
    return Identity(fields["id"], fields["addr"])


def connection_of(pool: Any) -> Any:
    """Return a new connection, not yet connected, with the class and the parameters of a pool.

    The pool does not know it, so it does not count towards the pool's `max_connections`. It speaks the second protocol,
    in which the server tells of changed keys as Pub/Sub does; and if one connection is told of what another one has
    read, the server wants both to speak the same. redis-py 8 has options that want the third one.
    """
    kwargs = {name: value for name, value in pool.connection_kwargs.items() if "maint_notifications" not in name}
    return pool.connection_class(**{**kwargs, "protocol": 2})


class FetchConnection:
    """One connection, for one thread at a time.

    Args:
        pool: see `connection_of`.

    Every method raises `redis.ConnectionError` if the connection is lost. The connection is useless then, and the
    server may or may not have received the acknowledgements in `unanswered`.
    """

    def __init__(self, pool: Any) -> None:
        #: The thread that owns this connection.
        self.thread = threading.get_ident()
        self._connection = connection_of(pool)
        self._connection.connect()
        self.identity = identify(self._connection)
        #: Tags of the acknowledgements whose replies have not been read yet.
        self.unanswered: deque[str] = deque()
        self._fetch: Call = (), ()
        #: The connection that the server tells when keys change that this one has read.
        self._told: Identity | None = None

    def ack(self, in_flight: str, message: bytes, tag: str) -> None:
        """Remove a message from an in-flight list; `answers` gives the result."""
        self._send("LREM", in_flight, -1, message)
        self.unanswered.append(tag)

    def answers(self) -> Iterator[tuple[str, bool | exceptions.ResponseError]]:
        """Wait for the replies to all acknowledgements. Yield each tag, and whether its message was in flight.

        If the server refused an acknowledgement, yield its error instead. The connection still works after that.
        """
        while self.unanswered:
            answer: bool | exceptions.ResponseError
            try:
                answer = bool(self._read())
            except exceptions.ResponseError as exc:
                answer = exc
            yield self.unanswered.popleft(), answer

    def send_fetch(self, keys: QueueKeys, *, consumer: str, limit: int) -> None:
        """Ask for messages, see `scripts.fetch`. Read the reply with `answers` first, then `read_fetched`."""
        self._fetch = scripts.fetch_call(keys, consumer=consumer, limit=limit)
        self._send(*_FETCH.by_digest(*self._fetch))

    def read_fetched(self) -> list[bytes] | None:
        """Return the messages, or None if the consumer has no lease.

        Raises:
            redis.ResponseError: the server refused the script; the connection still works.
        """
        try:
            try:
                found = self._read()
            except exceptions.NoScriptError:
                self._send(*_FETCH.by_text(*self._fetch))
                found = self._read()
        except exceptions.ResponseError as exc:
            raise unwrapped(exc) from exc.__cause__
        return cast("list[bytes] | None", found)

    def are_empty(self, groups: Sequence[Sequence[str]], *, told: Identity) -> bool:
        """Return whether lists are empty, and let the server tell a connection when one of them changes. Reads replies.

        Call it only if there are no unanswered acknowledgements.

        Raises:
            redis.ResponseError: the server does not allow CLIENT TRACKING.
        """
        if self._told != told:
            # OPTIN: only of what is read after CACHING. Not NOLOOP: with that, Redis may forget a key and not tell.
            self._send("CLIENT", "TRACKING", "ON", "REDIRECT", told.client_id, "OPTIN")
            self._read()
            self._told = told
        for number, names in enumerate(groups):
            self._send("CLIENT", "CACHING", "YES", is_first=not number)
            self._send("EXISTS", *names, is_first=False)
        refused, found = None, 0
        for _ in range(2 * len(groups)):
            try:
                answer = self._read()
            except exceptions.ResponseError as exc:
                refused = refused or exc
            else:
                found += answer if isinstance(answer, int) else 0
        if refused is not None:
            raise refused
        return not found

    def check(self) -> None:
        """Notice that the connection is lost. Call it only if no reply is awaited."""
        if getattr(self._connection, "_sock", None) is None or self._connection.can_read(timeout=0):
            raise exceptions.ConnectionError("the connection on which messages are fetched was lost")

    def _send(self, *command: Any, is_first: bool = True) -> None:
        if getattr(self._connection, "_sock", None) is None:  # redis-py would reconnect, and replies would be lost
            raise exceptions.ConnectionError("the connection on which messages are fetched was lost")
        # redis-py's health check would mistake an unread reply for the reply to its PING.
        self._connection.send_command(*command, check_health=is_first and not self.unanswered)

    def _read(self) -> Any:
        return self._connection.read_response(disable_decoding=True)

    def disconnect(self) -> None:
        """Close the connection."""
        self._connection.disconnect()

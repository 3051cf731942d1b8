"""FetchConnection: sends acknowledgements without waiting for the replies, which it reads with the next fetch.

So a task costs one round trip at most, where several wait in the broker list a fraction of one.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

from redis import exceptions

from celery_delayq import scripts
from celery_delayq.keys import QueueKeys


class Identity(NamedTuple):
    """What the server calls a connection: ids begin anew when it restarts, so the address belongs to it."""

    client_id: str
    address: str


def identify(connection: Any) -> Identity | None:
    """Ask the server what it calls a connection that is idle; None if it does not tell."""
    connection.send_command("CLIENT", "INFO")
    try:
        reply = connection.read_response()
    except exceptions.ResponseError:
        return None
    text = reply.decode() if isinstance(reply, bytes) else str(reply)
    fields = dict(field.partition("=")[::2] for field in text.split())
    return Identity(fields["id"], fields["addr"])


class FetchConnection:
    """One connection, for one thread at a time.

    Args:
        pool: gives the parameters of the connection, and its class; the connection is not one of the pool.

    Every method raises `redis.ConnectionError` when the connection is lost. It is of no use then: what `unanswered`
    holds may have reached the server or not.
    """

    def __init__(self, pool: Any) -> None:
        #: The thread to which it belongs.
        self.thread = threading.get_ident()
        self._connection = pool.make_connection()
        self._connection.connect()
        self.identity = identify(self._connection)
        #: Tags of acknowledgements whose replies were not read yet.
        self.unanswered: deque[str] = deque()
        self._fetch: tuple[Any, ...] = ()

    def ack(self, in_flight: str, message: bytes, tag: str) -> None:
        """Remove a message from an in-flight list; `answers` tells what became of it."""
        self._send("LREM", in_flight, -1, message)
        self.unanswered.append(tag)

    def answers(self) -> Iterator[tuple[str, bool | exceptions.ResponseError]]:
        """Wait for the replies to all acknowledgements: the tag, and whether the message was in flight.

        Or why the server refused it. The connection is as good as before then.
        """
        while self.unanswered:
            answer: bool | exceptions.ResponseError
            try:
                answer = bool(self._read())
            except exceptions.ResponseError as exc:
                answer = exc
            yield self.unanswered.popleft(), answer

    def send_fetch(self, keys: QueueKeys, *, consumer: str, limit: int) -> None:
        """Ask for messages, see `scripts.fetch`; `answers`, and then `read_fetched`, tell what came of it."""
        self._fetch = (3, keys.queue, keys.in_flight(consumer), keys.consumers, consumer, limit)
        self._send("EVALSHA", scripts.load("fetch").sha, *self._fetch)

    def read_fetched(self) -> list[bytes] | None:
        """Return the messages, or None if the consumer has no lease.

        Raises:
            redis.ResponseError: the server refused the script; the connection is as good as before.
        """
        try:
            found = self._read()
        except exceptions.NoScriptError:
            self._send("EVAL", scripts.load("fetch").text, *self._fetch)
            found = self._read()
        return cast("list[bytes] | None", found)

    def _send(self, *command: Any) -> None:
        if getattr(self._connection, "_sock", None) is None:  # redis-py would connect anew, and replies would be lost
            raise exceptions.ConnectionError("the connection on which messages are fetched was lost")
        # redis-py's health check would take a reply that was not read yet for that to its PING.
        self._connection.send_command(*command, check_health=not self.unanswered)

    def _read(self) -> Any:
        return self._connection.read_response(disable_decoding=True)

    def disconnect(self) -> None:
        """Close the connection."""
        self._connection.disconnect()

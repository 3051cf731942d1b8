"""FetchConnection: sends acknowledgements without waiting, and reads their replies with the next fetch.

So a task costs at most one round trip. If several tasks wait in the broker list, they share one. Acknowledgements may
wait for each other, so that they share a write, too.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from redis import exceptions

from celery_delayq.queue import scripts
from celery_delayq.queue.call import Call, unwrapped
from celery_delayq.queue.connections import as_text, connection_of, passing_refusal, should_speak, was_silent
from celery_delayq.queue.keys import QueueKeys

#: How many acknowledgements are written together at most, and how long one waits for others, in seconds.
TOGETHER, TOGETHER_S = 16, 0.0025


class Identity(NamedTuple):
    """The server's name for a connection: its id, and its address, because a restarted server reuses ids."""

    client_id: str
    address: str


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
        #: Tags of the acknowledgements whose replies have not been read yet; an empty one is that of a PING.
        self.unanswered: deque[str] = deque()
        #: Commands that are not sent yet: the acknowledgements at the end of `unanswered`.
        self._unsent: list[tuple[Any, ...]] = []
        #: Since when the first of them waits (monotonic), and whether one of them must not.
        self._unsent_since, self._is_urgent = 0.0, False
        #: What `send_fetch` has sent.
        self._fetch: Call[list[bytes] | None]
        #: The connection that the server tells when keys change that this one has read.
        self._told: Identity | None = None
        #: What `ask_whether_empty` has asked: the connection to be told, and how many replies there will be.
        self._asked: tuple[Identity, int] | None = None

    def fileno(self) -> int:
        """Return the file descriptor to poll; -1 once the connection is lost."""
        sock = getattr(self._connection, "_sock", None)
        return -1 if sock is None else int(sock.fileno())

    def has_reply(self, wait_s: float) -> bool:
        """Return whether a reply, or the end of the connection, comes within some seconds."""
        try:
            return self.fileno() < 0 or bool(self._connection.can_read(timeout=wait_s))
        except (exceptions.RedisError, OSError):
            return True

    def speak(self) -> None:
        """Send a PING if the connection is idle; `next_answer` gives the reply. Call it only if no reply is awaited."""
        self._open_again()
        if should_speak(self._connection):
            self._send("PING")
            self.unanswered.append("")

    @property
    def waits_for_pong(self) -> bool:
        """Whether a reply to `speak` is awaited, and nothing else."""
        return len(self.unanswered) == 1 and not self.unanswered[0]

    def _open_again(self) -> None:
        """Connect again if the connection was silent for long, and no reply is awaited: it may be lost unnoticed."""
        is_answered = not self.unanswered or self.waits_for_pong
        if not is_answered or self.fileno() < 0 or not was_silent(self._connection):
            return
        self.unanswered.clear()
        self._connection.disconnect()
        self._told = self.identity = None  # also if the server refuses to tell the new one
        self._connection.connect()
        self.identity = identify(self._connection)

    def ack(self, in_flight: str, message: bytes, tag: str, *, can_wait: bool) -> None:
        """Remove a message from an in-flight list; `next_answer` gives the result.

        It is sent with whatever is sent next, by `flush`, or when there are many.

        Args:
            in_flight: the list.
            message: its bytes.
            tag: of the message.
            can_wait: see `flush`.
        """
        self._open_again()
        if not self._unsent:
            self._unsent_since, self._is_urgent = time.monotonic(), False
        self._is_urgent |= not can_wait
        self._unsent.append(("LREM", in_flight, -1, message))
        self.unanswered.append(tag)
        if len(self._unsent) >= TOGETHER:
            self._send()

    def flush(self, *, may_wait: bool = False) -> bool:
        """Send the acknowledgements that are not sent yet; returns whether some still wait.

        Args:
            may_wait: let them wait for others if each of them can, and the first has not waited for long.
        """
        if not self._unsent:
            return False
        if may_wait and not self._is_urgent and time.monotonic() < self._unsent_since + TOGETHER_S:
            return True
        self._send()
        return False

    def next_answer(self) -> tuple[str, bool | exceptions.ResponseError]:
        """Wait for the reply to the first unanswered acknowledgement. Return its tag, and whether it was in flight.

        If the server refused the acknowledgement, return its error instead. The connection still works after that.
        """
        answer: bool | exceptions.ResponseError
        try:
            answer = bool(self._read())
        except exceptions.ResponseError as exc:
            answer = exc
        return self.unanswered.popleft(), answer

    def send_fetch(self, keys: QueueKeys, *, consumer: str, limit: int) -> None:
        """Ask for messages, see `scripts.fetch`. Read all answers first, then `read_fetched`."""
        self._open_again()
        self._fetch = scripts.fetch(keys, consumer=consumer, limit=limit)
        self._send(*self._fetch.by_digest())

    def read_fetched(self) -> list[bytes] | None:
        """Return the messages, or None if the consumer has no lease.

        Raises:
            redis.ResponseError: the server refused the script; the connection still works.
        """
        try:
            try:
                found = self._read()
            except exceptions.NoScriptError:
                self._send(*self._fetch.by_text())
                found = self._read()
        except exceptions.ResponseError as exc:
            raise unwrapped(exc) from exc.__cause__
        return self._fetch.read(found)

    def ask_whether_empty(self, groups: Sequence[Sequence[str]], *, told: Identity) -> None:
        """Ask whether lists are empty, and let the server tell a connection when one of them changes.

        Read all answers first, then `read_whether_empty`.
        """
        self._open_again()
        commands: list[tuple[Any, ...]] = []
        if self._told != told:
            # OPTIN: only of what is read after CACHING. Not NOLOOP: with that, Redis may forget a key and not tell.
            commands.append(("CLIENT", "TRACKING", "ON", "REDIRECT", told.client_id, "OPTIN"))
        for names in groups:
            commands += [("CLIENT", "CACHING", "YES"), ("EXISTS", *names)]
        for command in commands:
            self._send(*command)
        self._asked = told, len(commands)

    def read_whether_empty(self) -> bool:
        """Return whether the lists are empty, see `ask_whether_empty`.

        Raises:
            redis.ResponseError: the server does not allow CLIENT TRACKING.
        """
        assert self._asked is not None
        (told, count), self._asked = self._asked, None
        refused, found = None, 0
        for _ in range(count):
            try:
                answer = self._read()
            except exceptions.ResponseError as exc:
                refused = refused or exc
            else:
                found += answer if isinstance(answer, int) else 0
        if refused is not None:
            self._told = None
            raise refused
        self._told = told
        return not found

    def send_unblock(self, client_ids: Sequence[str]) -> None:
        """Ask the server to end the waits of other connections. Read all answers first, then `read_unblocked`."""
        self._open_again()
        for client_id in client_ids:
            self._send("CLIENT", "UNBLOCK", client_id)

    def read_unblocked(self, count: int) -> list[bool]:
        """Return for each connection whether it waited.

        Raises:
            redis.ResponseError: the server does not allow CLIENT UNBLOCK.
        """
        refused, unblocked = None, []
        for _ in range(count):
            try:
                unblocked.append(bool(self._read()))
            except exceptions.ResponseError as exc:
                refused = exc
        if refused is not None:
            raise refused
        return unblocked

    def check(self) -> None:
        """Notice that the connection is lost. Call it only if no reply is awaited."""
        if getattr(self._connection, "_sock", None) is None or self._connection.can_read(timeout=0):
            raise exceptions.ConnectionError("the connection on which messages are fetched was lost")

    def _send(self, *command: Any) -> None:
        """Send what is not sent yet, and then a command, in one write; nothing but the former by default."""
        if getattr(self._connection, "_sock", None) is None:  # redis-py would reconnect, and replies would be lost
            raise exceptions.ConnectionError("the connection on which messages are fetched was lost")
        commands, self._unsent = self._unsent, []
        if command:
            commands.append(command)
        # redis-py's health check would mistake an unread reply for the reply to its PING, and wait for that.
        self._connection.send_packed_command(self._connection.pack_commands(commands), check_health=False)

    def _read(self) -> Any:
        if self.fileno() < 0:
            raise exceptions.ConnectionError("the connection on which messages are fetched was lost")
        return self._connection.read_response(disable_decoding=True)

    def disconnect(self) -> None:
        """Close the connection."""
        self._connection.disconnect()

"""Conversation: what a consumer says on the connection that fetches, and the answers, which may be late."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import redis
from redis import exceptions

from celery_delayq.fetching.abandoned import AbandonedConnections
from celery_delayq.fetching.identity import Identity, identify
from celery_delayq.fetching.wire import OnReply, Wire
from celery_delayq.queue import scripts
from celery_delayq.queue.call import Call, unwrapped
from celery_delayq.queue.connections import connection_of
from celery_delayq.queue.keys import QueueKeys
from celery_delayq.queue.scripts import MAX_FETCH

#: How many acknowledgements are written together at most, and how long one waits for others, in seconds.
TOGETHER, TOGETHER_S = 16, 0.0025


class NotYet(Exception):
    """The server has not answered yet: do something else meanwhile, see `Conversation.resume`."""


class _Late(NamedTuple):
    """An answer that somebody has waited for: whether it is there, and what reads it."""

    is_there: Callable[[], bool]
    read: Callable[[], list[bytes] | None]


class Conversation:
    """The questions and acknowledgements of one consumer.

    Nobody waits for the answer to an acknowledgement: it is read before that to the next question. Any thread may say
    something that needs no answer (`tell`, `acknowledge`). The rest belongs to the thread that fetches.

    Args:
        client: gives the parameters of the connection, which is made when it is needed first.
        patience_s: how long to wait for the server, in seconds, before `NotYet` is raised; None: until there is an
            answer.
        abandoned: gets connections whose answers nobody reads.
        on_acknowledged: called with the tag of each acknowledgement, and whether its message was in flight.
        on_unknown: called with the tags of acknowledgements that the server may not know about, and the error.

    Attributes:
        has_lost_reply: whether the answer to a fetch was lost, so that the server may have moved messages.
    """

    def __init__(
        self,
        client: redis.Redis,
        patience_s: float | None,
        abandoned: AbandonedConnections,
        on_acknowledged: Callable[[str, bool], None],
        on_unknown: Callable[[Iterable[str], BaseException], None],
    ) -> None:
        self._client = client
        self._patience_s = patience_s
        self._abandoned = abandoned
        self._on_acknowledged = on_acknowledged
        self._on_unknown = on_unknown
        self._wire: Wire | None = None
        self._identity: Identity | None = None
        #: The thread that has fetched last.
        self._thread = 0
        self.has_lost_reply = False
        #: What the server still owes.
        self._late: _Late | None = None
        #: Tags of the acknowledgements without an answer, and those whose answers were lost with the connection.
        self._unanswered: set[str] = set()
        self._lost: list[str] = []
        #: Since when the first of those that are not sent yet waits (monotonic), and whether one of them must not.
        self._unsent_since, self._is_urgent = 0.0, False
        #: The connection that the server tells when keys change that this one has read.
        self._told: Identity | None = None

    @property
    def identity(self) -> Identity | None:
        """The server's name for the connection; None if there is none, or the server does not tell."""
        return None if self._wire is None else self._identity

    @property
    def is_of_this_thread(self) -> bool:
        """Whether this thread has fetched last, so that it may use the connection."""
        return self._wire is not None and self._thread == threading.get_ident()

    @property
    def late(self) -> Wire | None:
        """The connection, if the server owes an answer on it that somebody has waited for."""
        return None if self._late is None else self._wire

    # -- questions

    def fetch(self, keys: QueueKeys, *, consumer: str, limit: int, is_patient: bool) -> list[bytes] | None:
        """Take messages from a list, see `Consumer.fetch`. Returns None if the consumer has no lease.

        Raises:
            NotYet: there is no answer yet.
            redis.ResponseError: the server refuses. Nothing was moved, and the connection still works.
            redis.ConnectionError: the connection is lost, and perhaps an answer with messages.
        """
        wire = self._open()
        self._thread = threading.get_ident()
        call = scripts.fetch(keys, consumer=consumer, limit=min(limit, MAX_FETCH))
        replies: list[Any] = []
        try:
            _send(wire, replies.append, call)
            self._wait(lambda: bool(replies), partial(_fetched, call, replies), is_patient=is_patient)
            return _fetched(call, replies)
        except (exceptions.ResponseError, NotYet):
            raise
        except BaseException as exc:
            self.has_lost_reply = True
            self.give_up(exc)
            raise

    def are_empty(self, groups: Sequence[Sequence[str]], *, told: Identity) -> bool:
        """Ask whether lists are empty, see `Consumer.are_empty`."""
        if self._wire is None:
            return False
        self._open()
        commands: list[tuple[Any, ...]] = []
        if self._told != told:
            # OPTIN: only of what is read after CACHING. Not NOLOOP: with that, Redis may forget a key and not tell.
            commands.append(("CLIENT", "TRACKING", "ON", "REDIRECT", told.client_id, "OPTIN"))
        for names in groups:
            commands += [("CLIENT", "CACHING", "YES"), ("EXISTS", *names)]
        self._told = None
        replies = self._ask(commands)
        self._told = told
        return not any(reply for reply in replies if isinstance(reply, int))

    def unblock(self, client_ids: Sequence[str]) -> list[bool]:
        """Make the server end the waits of other connections, see `Consumer.unblock`."""
        if self._wire is None:
            return [False] * len(client_ids)
        self._open()
        return list(map(bool, self._ask([("CLIENT", "UNBLOCK", client_id) for client_id in client_ids])))

    def _ask(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return the replies to commands. If they are late, nobody reads them.

        Raises:
            redis.ResponseError: the server refuses one of them.
        """
        replies: list[Any] = []
        wire = self._wire
        assert wire is not None
        try:
            for command in commands:
                wire.send(replies.append, *command)
            self._wait(lambda: len(replies) == len(commands), list)
            for reply in replies:
                if isinstance(reply, Exception):
                    raise reply
        except (exceptions.ResponseError, NotYet):
            raise
        except BaseException as exc:
            self.give_up(exc)
            raise
        return replies

    def _open(self) -> Wire:
        """Return the connection. It is opened if there is none, or it was silent for long: it may be lost unnoticed.

        Raises:
            redis.ResponseError: the server refuses for now.
            redis.ConnectionError: the server is away.
        """
        if self._wire is not None and self._wire.is_silent and self._late is None:
            self.read_answers()
            if self._wire is not None and self._wire.is_silent:
                self.give_up(exceptions.ConnectionError("the connection on which messages are fetched was silent"))
        if self._wire is None:
            connection = connection_of(self._client.connection_pool)
            connection.connect()
            self._identity, self._told = identify(connection), None
            self._thread, self._wire = threading.get_ident(), Wire(connection)
        return self._wire

    def _wait(
        self, is_there: Callable[[], bool], read: Callable[[], list[bytes] | None], *, is_patient: bool = False
    ) -> None:
        """Wait until an answer is there; `resume` calls `read` if it is late.

        Raises:
            NotYet: it is late.
        """
        wire = self._wire
        assert wire is not None
        wire.flush()
        until = None if is_patient or self._patience_s is None else time.monotonic() + self._patience_s
        while not is_there():
            if wire.has_reply(1.0 if until is None else until - time.monotonic()):
                wire.receive()
            elif until is not None:
                self._late = _Late(is_there, read)
                raise NotYet

    def resume(self) -> list[bytes] | None:
        """Read a late answer, once the connection is readable. Returns what `fetch` does; else an empty list.

        Raises:
            NotYet, redis.RedisError: see `fetch`.
        """
        late = self._late
        if late is None:
            return []
        try:
            self._wait(*late)
            self._late = None
            return late.read()
        except (exceptions.ResponseError, NotYet):
            raise
        except BaseException as exc:
            self.has_lost_reply = True  # it may be the answer to a fetch
            self.give_up(exc)
            raise

    # -- what needs no answer

    def tell(self, on_reply: OnReply, what: Call[Any]) -> None:
        """Call a script, now; if there is a connection. Safe in any thread. See `Wire`."""
        wire = self._wire
        if wire is None:
            return
        with suppress(exceptions.ConnectionError):  # whoever fetches notices
            _send(wire, on_reply, what)
            wire.flush()

    def acknowledge(self, tag: str, what: Call[Any] | tuple[Any, ...], *, can_wait: bool) -> bool:
        """Remove a message from an in-flight list. Safe in any thread; never raises for the network or the server.

        In the thread that fetches, it is sent with what is asked next, by `flush`, or when there are many. In another
        one, it is sent at once: nobody knows what that thread waits for.

        Args:
            tag: of the message.
            what: what removes it, and replies with how many were removed.
            can_wait: see `flush`.

        Returns:
            False if there is no connection.
        """
        is_own = self.is_of_this_thread
        try:
            wire = self._open() if is_own else self._wire
            if wire is None:
                return False
            self._unanswered.add(tag)
            if is_own and not wire.unsent:
                self._unsent_since, self._is_urgent = time.monotonic(), False
            _send(wire, partial(self._on_answer, wire, tag), what)
        except (exceptions.RedisError, OSError):
            self._unanswered.discard(tag)
            return False
        except BaseException:
            self._unanswered.discard(tag)
            raise
        if is_own:
            self._is_urgent |= not can_wait
            if wire.unsent >= TOGETHER:
                self.flush()
        else:
            with suppress(exceptions.ConnectionError):  # whoever fetches notices
                wire.flush()
        return True

    def _on_answer(self, wire: Wire, tag: str, answer: Any) -> None:
        if not isinstance(answer, BaseException):
            self._on_acknowledged(tag, bool(answer))
        elif wire is self._wire:
            self._on_unknown([tag], unwrapped(answer) if isinstance(answer, exceptions.ResponseError) else answer)
        else:
            self._lost.append(tag)
        self._unanswered.discard(tag)  # last: until then, it is not taken for one that was deleted

    def flush(self, *, may_wait: bool = False) -> bool:
        """Send the acknowledgements that are not sent yet; returns whether some still wait.

        Args:
            may_wait: let them wait for others if each of them can, and the first has not waited for long.
        """
        wire = self._wire
        if wire is None or not wire.unsent:
            return False
        if may_wait and not self._is_urgent and time.monotonic() < self._unsent_since + TOGETHER_S:
            return True
        try:
            wire.flush()
        except BaseException as exc:
            self.give_up(exc)
            if not isinstance(exc, Exception):
                raise
        return False

    def is_unanswered(self, tag: str) -> bool:
        """Return whether the answer to an acknowledgement is missing. Safe in any thread."""
        return tag in self._unanswered

    def read_answers(self) -> None:
        """Read the answers to all acknowledgements, notice that the connection is lost, and keep it. Never raises."""
        if not self.is_of_this_thread or self._late is not None:
            return
        wire = self._wire
        assert wire is not None
        try:
            wire.flush()
            wire.receive()
            if not self._unanswered and not wire.should_speak:
                return
            pong: list[Any] = []
            wire.send(pong.append, "PING")
            wire.flush()
            if self._unanswered:  # the answers to what other threads go on acknowledging come later
                self._wait(lambda: bool(pong), list)
        except NotYet:
            self._late = None  # nobody asks for this answer
        except BaseException as exc:
            self.give_up(exc)
            if not isinstance(exc, Exception):
                raise

    def adopt(self) -> None:
        """Let this thread be the one that fetches: the other one does not any more."""
        self._thread = threading.get_ident()

    # -- the end

    def give_up(self, exc: BaseException) -> None:
        """Give up the connection, because of an error: nobody reads what comes on it."""
        if self._late is not None:
            self.has_lost_reply = True  # it may be one to a fetch
        if self._wire is not None:
            self._abandoned.add([self._identity])
        self.close(exc)

    def close(self, exc: BaseException | None = None) -> None:
        """Close the connection. Acknowledgements that have no answer are unknown, because of an error."""
        self._late = None
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close(exc or exceptions.ConnectionError("the consumer is closed"))
            lost, self._lost = self._lost, []
            self._on_unknown(lost, exc or exceptions.ConnectionError("the consumer is closed"))


def _send(wire: Wire, on_reply: OnReply, what: Call[Any] | tuple[Any, ...]) -> None:
    """Send a command, or a call, which is sent again if the server does not know the script yet."""
    if not isinstance(what, Call):
        wire.send(on_reply, *what)
        return

    def on_first(reply: Any) -> None:
        if not isinstance(reply, exceptions.NoScriptError):
            on_reply(reply)
            return
        try:
            wire.send(on_reply, *what.by_text())
        except exceptions.ConnectionError as exc:
            on_reply(exc)
        else:
            wire.flush()

    wire.send(on_first, *what.by_digest())


def _fetched(call: Call[list[bytes] | None], replies: Sequence[Any]) -> list[bytes] | None:
    reply = replies[0]
    if isinstance(reply, exceptions.ResponseError):
        raise unwrapped(reply) from reply.__cause__
    if isinstance(reply, BaseException):
        raise reply
    return call.read(reply)

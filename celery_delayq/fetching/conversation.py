"""Conversation: what a consumer says on the connection that fetches, and what it hears."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal

import redis
from redis import exceptions

from celery_delayq.fetching.abandoned import AbandonedConnections
from celery_delayq.fetching.wire import OnReply, Wire
from celery_delayq.queue import scripts
from celery_delayq.queue.call import Call, unwrapped
from celery_delayq.queue.connections import CONNECTION_ERRORS, connection_of
from celery_delayq.queue.keys import QueueKeys
from celery_delayq.queue.scripts import MAX_FETCH
from celery_delayq.queue.subscription import Identity, identify

#: How many commands are written together at most, and how long one waits for others, in seconds.
TOGETHER, TOGETHER_S = 16, 0.0025

#: When something is written: at once; with what is asked next, or by `flush`; or some ms later, so that others join it.
Urgency = Literal["now", "soon", "later"]

#: An answer that takes longer is late: who has other things to do does them first, in seconds.
LATE_ANSWER_S = 0.02

#: How long whoever has to know what has arrived waits for a server, in seconds.
PATIENCE_S = 1.0

#: A command to the server.
Command = Call[Any] | tuple[Any, ...]

#: What a fetch has found: messages, None if the consumer has no lease, or why there is no answer.
Found = list[bytes] | None | BaseException

#: The connection that hears of lists, or why none does; and that which reads them, with the former.
Told = Identity | exceptions.ResponseError | None
ToldBy = tuple[Identity | None, Told]


class Conversation:
    """The questions of one consumer, and what it says.

    A question is sent at once, and its answer handled when it comes: nobody waits for it, except with `wait`. Nobody
    waits for the answer to what is said either, and any thread may say something (`say`). The rest belongs to the
    thread that fetches.

    Args:
        client: gives the parameters of the connection, which is made when it is needed first.
        abandoned: gets connections whose answers nobody reads.
        on_asking: called with the connection and True when a question is asked on it, and with False as soon as none
            is. Meanwhile it calls `read` when there is something to read.

    Attributes:
        on_closed: called with the error when the connection was closed, and all that had no answer has got the error.
        lost: why the answer to a fetch was lost, so that the server may have moved messages; empty if none was.
        has_timed_out: whether the last connection ended because the server did not answer.
        on_changed: called by the watchdog with names of lists that were written to; None if all may have been.
    """

    def __init__(
        self,
        client: redis.Redis,
        abandoned: AbandonedConnections,
        on_asking: Callable[[Wire, bool], object],
    ) -> None:
        self._client = client
        self._abandoned = abandoned
        self._on_asking = on_asking
        self.on_closed: Callable[[BaseException], object] = bool
        self.on_changed: Callable[[Sequence[str] | None], object] = bool
        self._wire: Wire | None = None
        self._identity: Identity | None = None
        #: The thread that has fetched last.
        self._thread = 0
        self.lost = ""
        self.has_timed_out = False
        #: How many questions have no answer.
        self._questions = 0
        #: Since when the first of what is not written yet waits (monotonic), and whether any of it must not.
        self._unsent_since, self._is_urgent = 0.0, False
        #: The connection that hears of lists, see `hears`, and the one that the server tells of what this one has read.
        self._told: Told = None
        self._tracks: Told = None

    @property
    def identity(self) -> Identity | None:
        """The server's name for the connection; None if there is none, or the server does not tell."""
        return None if self._wire is None else self._identity

    @property
    def is_open(self) -> bool:
        """Whether there is a connection. Safe in any thread."""
        return self._wire is not None

    @property
    def is_of_this_thread(self) -> bool:
        """Whether this thread has fetched last, so that it may use the connection."""
        return self._wire is not None and self._thread == threading.get_ident()

    @property
    def owes_for_s(self) -> float:
        """For how long the server owes an answer, in seconds; 0 if it owes none."""
        return 0.0 if self._wire is None else self._wire.owes_for_s

    @property
    def is_late(self) -> bool:
        """Whether the server takes long to answer."""
        return self.owes_for_s > LATE_ANSWER_S

    # -- questions

    def fetch(self, keys: QueueKeys, *, consumer: str, limit: int, on_found: Callable[[Found], object]) -> None:
        """Take messages from a list, the oldest first. One atomic script.

        Args:
            keys: of the list.
            consumer: its id.
            limit: how many at most.
            on_found: called with the messages; with None if the consumer has no lease (`renew` tells why); or with the
                error, that of a lost connection, too.

        Raises:
            redis.RedisError: there is no connection, so nothing was asked.
        """
        call = scripts.fetch(keys, consumer=consumer, limit=min(limit, MAX_FETCH))

        def on_reply(reply: Any) -> None:
            if not isinstance(reply, BaseException):
                reply = call.read(reply)
            elif isinstance(reply, exceptions.ResponseError):
                reply = unwrapped(reply)
            else:
                self.lost = str(reply) or type(reply).__name__
            on_found(reply)

        self._ask([(call, on_reply)])

    def hears(self, told: Told) -> None:
        """Record which connection hears of lists that are written to, or why none does; None as long as none does."""
        self._told = told
        self.on_changed(())

    @property
    def told_by(self) -> ToldBy:
        """The connection that reads lists, and the one that hears of them: as long as both last, `are_empty` holds."""
        return self.identity, self._told

    def are_empty(self, groups: Sequence[Sequence[str]], on_answer: Callable[[list[int] | Exception], object]) -> bool:
        """Ask whether lists are empty, and let the server tell when one of them is written to, see `on_changed`.

        One command asks about each group of lists. The server tells once of each.

        Args:
            groups: names of lists.
            on_answer: called with how many lists of each group have messages; or with the error.

        Returns:
            False if nobody would hear it now, so that nothing was asked.

        Raises:
            redis.ResponseError: the server does not allow it.
            redis.ConnectionError: the server is away.
        """
        told = self._told
        if isinstance(told, exceptions.ResponseError):
            raise told
        if told is None:
            return False
        self._open()
        # OPTIN: only of what is read after CACHING. Not NOLOOP: with that, Redis may forget a key and not tell.
        first = ("CLIENT", "TRACKING", "ON", "REDIRECT", told.client_id, "OPTIN")
        commands: list[tuple[Any, ...]] = [] if self._tracks == told else [first]
        for names in groups:
            commands += [("CLIENT", "CACHING", "YES"), ("EXISTS", *names)]
        replies: list[Any] = []

        def on_reply(reply: Any) -> None:
            replies.append(reply)
            if isinstance(reply, Exception):
                self._tracks = None
            if len(replies) == len(commands):
                errors = [reply for reply in replies if isinstance(reply, Exception)]
                on_answer(errors[0] if errors else replies[-2 * len(groups) + 1 :: 2])

        self._tracks = told
        self._ask([(command, on_reply) for command in commands])
        return True

    def unblock(self, client_ids: Sequence[str], within_s: float) -> bool:
        """Make the server end the waits of other connections; returns whether it has answered within some seconds.

        Answers to what was asked before come first. Some may not have waited any more, or not yet.

        Raises:
            redis.ResponseError: the server does not allow it.
            redis.ConnectionError: the server is away.
        """
        answers: list[Any] = []
        self._ask([(("CLIENT", "UNBLOCK", client_id), answers.append) for client_id in client_ids])
        if not self.wait(lambda: len(answers) == len(client_ids), within_s):
            return False
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return True

    def _ask(self, questions: Sequence[tuple[Command, OnReply]]) -> None:
        wire = self._open()
        self._thread = threading.get_ident()
        if not self._questions:
            self._on_asking(wire, True)
        self._questions += len(questions)
        try:
            # Together: CLIENT CACHING is about the very next command.
            wire.send_together(
                [_to_send(wire, partial(self._on_answered, wire, on_answer), what) for what, on_answer in questions]
            )
        except exceptions.ConnectionError as exc:
            self.give_up(exc)
            raise
        self.flush()

    def _on_answered(self, wire: Wire, on_answer: OnReply, answer: Any) -> None:
        if wire is self._wire:
            self._questions -= 1
            if not self._questions:
                self._on_asking(wire, False)
        on_answer(answer)

    def _open(self) -> Wire:
        """Return the connection. It is opened if there is none, or it was silent for long: it may be lost unnoticed.

        Raises:
            redis.ResponseError: the server refuses for now.
            redis.ConnectionError: the server is away.
        """
        if self._wire is not None and self._wire.is_silent:
            self.read()
            if self._wire is not None and self._wire.is_silent:
                self.give_up(exceptions.ConnectionError("the connection on which messages are fetched was silent"))
        if self._wire is None:
            connection = connection_of(self._client.connection_pool)
            connection.connect()
            self._identity, self._tracks = identify(connection), None
            self._thread, self._wire = threading.get_ident(), Wire(connection)
            self.has_timed_out = False
        return self._wire

    def read(self) -> None:
        """Handle the answers that have come, and notice that the connection is lost, see `lost`; keep it otherwise.

        Never raises for the network or the server, and waits for nothing.
        """
        wire = self._wire
        if wire is None:
            return
        try:
            wire.flush()
            wire.receive()
            if wire.should_speak:
                wire.send(bool, "PING")
                wire.flush()
        except BaseException as exc:
            self.give_up(exc)
            if not isinstance(exc, CONNECTION_ERRORS):
                raise

    def wait(self, is_there: Callable[[], object], within_s: float | None = None) -> bool:
        """Wait until an answer is there, or some seconds have passed; returns whether it is there.

        Raises:
            redis.ConnectionError: the connection is lost.
        """
        wire = self._wire
        until = None if within_s is None else time.monotonic() + within_s
        try:
            while not is_there():
                if wire is None or wire is not self._wire:
                    raise exceptions.ConnectionError("the connection on which messages are fetched was lost")
                rest_s = 1.0 if until is None else until - time.monotonic()
                wire.flush()
                if wire.has_reply(max(0.0, rest_s)):
                    wire.receive()
                elif rest_s <= 0:
                    return False
        except BaseException as exc:
            self.give_up(exc)
            raise
        return True

    # -- what needs no answer

    def say(self, on_reply: OnReply, what: Command, urgency: Urgency = "now") -> bool:
        """Send a command. Safe in any thread; waits for no reply, and never raises for the network or the server.

        In another thread than that which fetches, it is written at once: nobody knows what that thread waits for.

        Args:
            on_reply: see `Wire`.
            what: the command. What has to arrive now goes by its text: perhaps nobody reads a NOSCRIPT soon.
            urgency: when it is written.

        Returns:
            False if there is no connection.
        """
        is_own = self.is_of_this_thread
        if urgency == "now" and isinstance(what, Call):
            what = what.by_text()
        try:
            wire = self._open() if is_own else self._wire
            if wire is None:
                return False
            if is_own and not wire.unsent:
                self._unsent_since, self._is_urgent = time.monotonic(), False
            wire.send_together([_to_send(wire, on_reply, what)])
        except (exceptions.RedisError, OSError):
            return False
        if is_own:
            self._is_urgent |= urgency != "later"
            if urgency == "now" or wire.unsent >= TOGETHER:
                self.flush()
        else:
            with suppress(exceptions.ConnectionError):  # whoever fetches notices
                wire.flush()
        return True

    def flush(self, *, may_wait: bool = False) -> bool:
        """Write what is not written yet; returns whether some of it still waits. Never raises, see `read`.

        Args:
            may_wait: let it wait for more if nothing of it is urgent, and the first has not waited for long.
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
        return wire is self._wire and wire.unsent > 0  # the server does not take more now

    def read_answers(self, within_s: float = PATIENCE_S) -> bool:
        """Make sure that all that was said has arrived, and that the connection is not lost, see `read`.

        Waits for answers of the server for some seconds at most. In another thread than that which fetches, it does
        nothing.

        Returns:
            False if the server has not answered in time, now or when the connection was lost.
        """
        if self.is_of_this_thread:
            self.read()
        wire = self._wire
        if self.is_of_this_thread and wire is not None and wire.missing:
            pong: list[Any] = []
            with suppress(*CONNECTION_ERRORS):
                wire.send(pong.append, "PING")
                return self.wait(lambda: pong, within_s)
        return not self.has_timed_out

    def adopt(self) -> None:
        """Let this thread be the one that fetches: the other one does not any more."""
        self._thread = threading.get_ident()

    # -- the end

    def give_up(self, exc: BaseException) -> None:
        """Give up the connection, because of an error: nobody reads what comes on it."""
        if self._wire is not None:
            self._abandoned.add([self._identity])
        self.close(exc)

    def end(self) -> None:
        """Close the connection: nobody would handle an answer any more."""
        exc = exceptions.ConnectionError("the consumer is closed")
        if self._questions:
            self.give_up(exc)
        self.close(exc)

    def close(self, exc: BaseException) -> None:
        """Close the connection. What has no answer gets an error instead."""
        self.has_timed_out |= isinstance(exc, exceptions.TimeoutError)
        wire, self._wire = self._wire, None
        if wire is None:
            return
        if self._questions:
            self._questions = 0
            self._on_asking(wire, False)
        wire.close(exc)
        self.on_closed(exc)


def _to_send(wire: Wire, on_reply: OnReply, what: Command) -> tuple[tuple[Any, ...], OnReply]:
    """Return a command for `Wire.send_together`. A call is sent again if the server does not know the script yet."""
    if not isinstance(what, Call):
        return what, on_reply

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

    return what.by_digest(), on_first

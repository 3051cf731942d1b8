"""Conversation: what a consumer says on the connection that fetches, and the answers, which may be late."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

import redis
from redis import exceptions

from celery_delayq.fetching.abandoned import AbandonedConnections
from celery_delayq.fetching.connection import FetchConnection, Identity
from celery_delayq.queue.keys import QueueKeys
from celery_delayq.queue.scripts import MAX_FETCH

T = TypeVar("T")


class NotYet(Exception):
    """The server has not answered yet: do something else meanwhile, see `Conversation.resume`."""


class Conversation:
    """The questions and acknowledgements of one consumer, one after the other. It belongs to the thread that fetches.

    Acknowledgements are sent without waiting; before the answer to anything else, their answers are read.

    Args:
        client: gives the parameters of the connection, which is made when it is needed first.
        patience_s: how long to wait for the server, in seconds, before `NotYet` is raised; None: until there is an
            answer.
        abandoned: gets connections whose answers nobody reads.
        on_acknowledged: called with the tag of each acknowledgement, and whether its message was in flight.
        on_unknown: called with the tags of acknowledgements that the server may not know about, and the error.

    Attributes:
        connection: the one in use; None if there is none.
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
        self.connection: FetchConnection | None = None
        self.has_lost_reply = False
        #: Reads what the server still owes.
        self._late: Callable[[], list[bytes] | None] | None = None

    @property
    def is_of_this_thread(self) -> bool:
        """Whether this thread has fetched last, so that it may use the connection."""
        return self.connection is not None and self.connection.thread == threading.get_ident()

    @property
    def is_late(self) -> bool:
        """Whether the server owes an answer that somebody has waited for."""
        return self._late is not None

    # -- questions

    def fetch(self, keys: QueueKeys, *, consumer: str, limit: int, is_patient: bool) -> list[bytes] | None:
        """Take messages from a list, see `Consumer.fetch`. Returns None if the consumer has no lease.

        Raises:
            NotYet: there is no answer yet.
            redis.ResponseError: the server refuses. Nothing was moved, and the connection still works.
            redis.ConnectionError: the connection is lost, and perhaps an answer with messages.
        """
        if self.connection is None:
            self.connection = FetchConnection(self._client.connection_pool)
        self.connection.thread = threading.get_ident()
        connection = self.connection
        try:
            connection.send_fetch(keys, consumer=consumer, limit=min(limit, MAX_FETCH))
        except exceptions.ResponseError:  # it was idle, and is opened again, which the server refuses for now
            raise
        except BaseException as exc:
            self.has_lost_reply = True
            self.give_up(exc)
            raise
        return self._read_fetched(connection, is_patient=is_patient)

    def _read_fetched(self, connection: FetchConnection, *, is_patient: bool = False) -> list[bytes] | None:
        again = None if is_patient else partial(self._read_fetched, connection)
        try:
            self._take_answers(connection, again)
            return connection.read_fetched()
        except (exceptions.ResponseError, NotYet):  # nothing was moved (so far), and the connection still works
            raise
        except BaseException as exc:
            self.has_lost_reply = True
            self.give_up(exc)
            raise

    def are_empty(self, groups: Sequence[Sequence[str]], *, told: Identity) -> bool:
        """Ask whether lists are empty, see `Consumer.are_empty`."""
        connection = self.connection
        if connection is None:
            return False
        return self._exchange(
            connection, partial(connection.ask_whether_empty, groups, told=told), connection.read_whether_empty
        )

    def unblock(self, client_ids: Sequence[str]) -> list[bool]:
        """Make the server end the waits of other connections, see `Consumer.unblock`."""
        connection = self.connection
        if connection is None:
            return [False] * len(client_ids)
        count = len(client_ids)
        return self._exchange(
            connection, partial(connection.send_unblock, client_ids), partial(connection.read_unblocked, count)
        )

    def _exchange(self, connection: FetchConnection, send: Callable[[], None], read: Callable[[], T]) -> T:
        try:
            send()
            self._take_answers(connection, partial(self._read_in_vain, connection, read))
            return read()
        except (exceptions.ResponseError, NotYet):
            raise
        except BaseException as exc:
            self.give_up(exc)
            raise

    def _read_in_vain(self, connection: FetchConnection, read: Callable[[], object]) -> list[bytes]:
        try:
            self._take_answers(connection, partial(self._read_in_vain, connection, read))
            with suppress(exceptions.ResponseError):
                read()
        except NotYet:
            raise
        except BaseException as exc:
            self.give_up(exc)
            raise
        return []

    # -- acknowledgements

    def acknowledge(self, in_flight: str, message: bytes, tag: str, *, can_wait: bool) -> None:
        """Remove a message from an in-flight list; the answer comes with those to what is asked later.

        It is sent with what is asked next, or by `flush`.
        """
        assert self.connection is not None
        self.connection.ack(in_flight, message, tag, can_wait=can_wait)

    def flush(self, *, may_wait: bool = False) -> bool:
        """Send the acknowledgements that are not sent yet, see `FetchConnection.flush`. Raises no error of it."""
        if self.connection is None:
            return False
        try:
            return self.connection.flush(may_wait=may_wait)
        except BaseException as exc:
            self.give_up(exc)
            if not isinstance(exc, Exception):
                raise
            return False

    def is_unanswered(self, tag: str) -> bool:
        """Return whether the answer to an acknowledgement is missing. Safe in any thread."""
        connection = self.connection
        return connection is not None and tag in tuple(connection.unanswered)

    def read_answers(self) -> None:
        """Read the answers to all acknowledgements, notice that the connection is lost, and keep it. Never raises."""
        if not self.is_of_this_thread or self.is_late:
            return
        connection = self.connection
        assert connection is not None
        if connection.waits_for_pong and not connection.has_reply(0):
            return
        try:
            self._take_acknowledgements(connection, self._read_only_answers)
            connection.check()
            connection.speak()
        except NotYet:
            pass
        except Exception as exc:
            self.give_up(exc)

    def _read_only_answers(self) -> list[bytes]:
        self.read_answers()
        return []

    def _take_answers(self, connection: FetchConnection, again: Callable[[], list[bytes] | None] | None) -> None:
        """Read the replies to all acknowledgements. Then there is, or comes, a reply to what was sent after them.

        Args:
            connection: the one that fetches.
            again: called when there is a reply, if there is none in time; None to wait.

        Raises:
            NotYet: there is none in time.
        """
        self._take_acknowledgements(connection, again)
        self._wait(connection, again)

    def _take_acknowledgements(
        self, connection: FetchConnection, again: Callable[[], list[bytes] | None] | None
    ) -> None:
        connection.flush()
        while connection.unanswered:
            self._wait(connection, again)
            tag, answer = connection.next_answer()
            if not tag:
                continue
            if isinstance(answer, bool):
                self._on_acknowledged(tag, answer)
            else:
                self._on_unknown([tag], answer)

    # -- an answer that is late

    def _wait(self, connection: FetchConnection, again: Callable[[], list[bytes] | None] | None) -> None:
        if again is not None and self._patience_s is not None and not connection.has_reply(self._patience_s):
            self._late = again
            raise NotYet

    def resume(self) -> list[bytes] | None:
        """Read a late answer, once the connection is readable. Returns what `fetch` does; else an empty list.

        Raises:
            NotYet, redis.RedisError: see `fetch`.
        """
        read, self._late = self._late, None
        return [] if read is None else read()

    # -- the end

    def give_up(self, exc: BaseException) -> None:
        """Give up the connection, because of an error: nobody reads what comes on it."""
        connection, self.connection = self.connection, None
        if self._late is not None:
            self._late = None
            self.has_lost_reply = True  # it may be one to a fetch
        if connection is not None:
            self._on_unknown(connection.unanswered, exc)
            connection.disconnect()
            self._abandoned.add([connection.identity])

    def close(self) -> None:
        """Close the connection. No answer may be missing, or nobody cares any more."""
        self._late = None
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.disconnect()

"""Consumer: takes messages from broker lists without losing any. It knows Redis, but neither kombu nor Celery.

Where a message is
    A message is either in the broker list or in the in-flight list of one consumer. One step on the server moves it
    from the broker list to the in-flight list. It leaves the in-flight list when it is acknowledged, or goes back to
    the broker list.

Who owns it
    A consumer has a lease on each list. Its watchdog renews the leases as long as the process lives. If a lease ends,
    other consumers put the messages of that consumer back (see `watchdog`).

How a consumer ends
    `close()` puts back the messages that no task is working on, and ends the leases. If the connection is lost or a
    task still runs, this cannot be done at once; the watchdog then continues until it is done. A consumer is never
    used again after an error. Its successor has another id, so late replies and commands cannot be mistaken for its
    own.

What happens if the server refuses
    A departure (an acknowledgement, for example) is owed if the server refused it or may not have received it. The
    watchdog sends it again, and nothing else is done with that message meanwhile. So an error reply costs time, but
    never a message.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import replace
from logging import getLogger
from types import MappingProxyType

import redis
from redis import exceptions

from celery_delayq.basics.errors import LeaseLost
from celery_delayq.basics.text import plural
from celery_delayq.fetching.abandoned import AbandonedConnections
from celery_delayq.fetching.conversation import LATE_ANSWER_S, PATIENCE_S, Conversation, Found
from celery_delayq.fetching.departure import Departure, Departures, removal
from celery_delayq.fetching.held import DEAD_LETTERS, LOST_LEASES, Held, Redelivery
from celery_delayq.fetching.identity import Identity
from celery_delayq.fetching.isolation import Isolation
from celery_delayq.fetching.lease import Leases
from celery_delayq.fetching.process import consumer_id
from celery_delayq.fetching.unique_keys import UniqueKeys
from celery_delayq.fetching.wire import Wire
from celery_delayq.queue import scripts
from celery_delayq.queue.connections import CONNECTION_ERRORS
from celery_delayq.queue.dead_letters import reason_of
from celery_delayq.queue.delayed_queue import database_of
from celery_delayq.queue.holds import Holder
from celery_delayq.queue.keys import QueueKeys
from celery_delayq.queue.scripts import Renewed

logger = getLogger(__name__)

#: The connection that hears of lists, or why none does; and that which reads them, with the former.
Told = Identity | exceptions.ResponseError | None
ToldBy = tuple[Identity | None, Told]

#: Shared by the whole process: a running task is known by its tag alone, even after its consumer was closed.
#: `next` of it is atomic with the GIL, and without it since Python 3.14.
_TAGS = itertools.count(1)


class Consumer:
    """One consumer of any number of broker lists.

    It belongs to one thread, except for `ack` and for the methods that the watchdog calls with a client of its own:
    under gevent, threads cannot share connections.

    Args:
        connect: returns a context manager that gives a client with a pool of its own, and closes it at the end.
        client: for the thread of the consumer, and for those that acknowledge. By default, it makes one.
        lease_s: how long the consumer may be silent before others take its messages, in seconds.
        redelivery: see `Redelivery`.
        expires_ms: list -> time until an unused list expires, in ms. Only lists that expire are in it. It may change.
        id: readable and unique. The default names the process that made the consumer.
        on_asking: see `Conversation`. By default, nobody but `fetch` and `read_answers` handles answers.
        collects: whether acknowledgements of its thread wait for `send_acks`, or the next fetch, so that they share a
            write. Then an event loop calls it in each turn. By default, each is sent at once.
        slot_of: see `Leases`.

    Every method raises `redis.RedisError` if the server is away or refuses, unless its docstring says otherwise.
    """

    def __init__(
        self,
        connect: Callable[[], AbstractContextManager[redis.Redis]],
        client: redis.Redis | None = None,
        *,
        lease_s: float = 30.0,
        redelivery: Redelivery | None = None,
        expires_ms: Mapping[str, int] | None = None,
        id: str | None = None,
        on_asking: Callable[[Wire, bool], object] = lambda wire, is_asking: None,
        slot_of: Callable[[str], int] = lambda key: 0,
        collects: bool = False,
    ) -> None:
        self.id = id or consumer_id()
        self._collects = collects
        self.connect = connect
        self._stack = ExitStack()
        self.client = client or self._stack.enter_context(connect())
        self.redelivery = redelivery or Redelivery()
        self.db = database_of(self.client)
        self.leases = Leases(
            self.id,
            lease_s,
            self.db,
            self._on_lost,
            self._on_forgotten,
            slot_of,
        )
        #: Names of the lists that it consumes; it may have leases on more lists.
        self.names: set[str] = set()
        self._held: dict[str, Held] = {}
        #: The message that is held alone, if there is one.
        self.isolation = Isolation(self._held, self._rewrite)
        self._departures = Departures(self.id, self.leases.keys_of, {} if expires_ms is None else expires_ms)
        #: Tag -> departure that the server may not know about.
        self.owed = self._departures.owed
        self.is_closed = False
        self._is_retired = False
        #: How many of the messages that it held were deleted in Redis.
        self._deleted = 0
        self._abandoned = AbandonedConnections()
        #: The connection that hears of lists that are written to, or why none does.
        self._told: Told = None
        #: Called by the watchdog with names of lists that were written to; None if all may have been.
        self.on_changed: Callable[[Sequence[str] | None], object] = bool
        #: The connections that wait for messages on the server.
        self.waits: list[Identity | None] = []
        self._conversation = Conversation(
            self.client, self._abandoned, self._on_acknowledged, self._owe_acks, on_asking
        )
        self.unique_keys = UniqueKeys(self._held, self.leases.keys_of, self._conversation.tell)

    # -- leases

    @property
    def is_lost(self) -> bool:
        """Whether other consumers have given it up."""
        return self.leases.is_lost

    @property
    def lists(self) -> MappingProxyType[str, QueueKeys]:
        """Name -> keys of each list with a lease; a view."""
        return self.leases.lists

    def join(self, name: str) -> None:
        """Start consuming a broker list.

        Raises:
            LeaseLost: others have already given the consumer up.
        """
        self.names.add(name)
        self.leases.take(self.client, name)

    def part(self, name: str) -> None:
        """Stop consuming a broker list; `end_leases` ends the lease once no message of the list is held."""
        self.names.discard(name)

    def renew(self, client: redis.Redis | None = None) -> list[tuple[str, Renewed]]:
        """Renew all leases, see `Leases.renew`."""
        return self.leases.renew(client or self.client)

    def check(self) -> None:
        """Make sure that the leases are valid, see `Leases.check`, and that no messages of it were deleted in Redis."""
        self._check_deleted()
        self.leases.check(self.client)

    def end_leases(self, client: redis.Redis | None = None) -> bool:
        """End the leases on lists that are not consumed and have no held message; see `Leases.end`."""
        in_use = {*self.names, *(held.name for held in tuple(self._held.values()))}
        return self.leases.end(client or self.client, keep=in_use)

    def _on_lost(self) -> int:
        count = len(self._held)
        for tag in list(self._held):
            self._let_go(tag)
        for name in self.leases.lists:
            self.redelivery.on_count(name, LOST_LEASES, 1)
        return count

    def _on_forgotten(self, client: redis.Redis, names: Sequence[str]) -> None:
        """Let go the messages that were deleted with the leases: they must not be begun. The others remain its own."""
        logger.warning(
            "Redis did not know consumer %s any more: its data was deleted. The consumer joins again", self.id
        )
        self.read_answers()
        for name in names:
            for tag in self._departures.not_in_flight(client, name, self._held):
                if not self._conversation.is_unanswered(tag) and self._let_go(tag) is not None:
                    self._deleted += 1
        self._check_deleted()

    def _check_deleted(self) -> None:
        # Whoever was given these messages waits for their acknowledgements, so the connection has to start anew.
        if self._deleted and not self.is_closed:
            raise LeaseLost(f"{plural(self._deleted, 'message')} that consumer {self.id} held disappeared from Redis")

    # -- messages

    @property
    def held(self) -> MappingProxyType[str, Held]:
        """Tag -> message that it holds; a view."""
        return MappingProxyType(self._held)

    def fetch(self, name: str, limit: int) -> list[bytes]:
        """Take messages from a joined list, the oldest first, and wait for them. See `ask`.

        Raises:
            LeaseLost: others have given the consumer up.
        """
        found = self._fetch(name, limit)
        if found is None:
            self.renew()  # it has no lease: others have given it up, or its data was deleted
            found = self._fetch(name, limit)
        return found or []

    def _fetch(self, name: str, limit: int) -> list[bytes] | None:
        answers: list[Found] = []
        self.ask(name, limit, answers.append)
        self._conversation.wait(lambda: answers)
        if isinstance(answers[0], BaseException):
            raise answers[0]
        return answers[0]

    def ask(self, name: str, limit: int, on_found: Callable[[Found], object]) -> None:
        """Take messages from a joined list, the oldest first. One atomic script; nobody waits for it.

        Args:
            name: of the list.
            limit: how many at most.
            on_found: called with the messages; with None if the consumer has no lease (`renew` tells why); or with the
                error, that of a lost connection, too.

        Raises:
            redis.RedisError: there is no connection, so nothing was asked.
        """
        self._conversation.fetch(self.lists[name], consumer=self.id, limit=limit, on_found=on_found)

    @property
    def lost(self) -> str:
        """Why a fetch reply was lost, so that the server may have moved messages, see `recover_lost`; else empty."""
        return self._conversation.lost

    @property
    def owes_for_s(self) -> float:
        """For how long the server owes an answer on the connection that fetches, in seconds; 0 if it owes none."""
        return self._conversation.owes_for_s

    @property
    def is_late(self) -> bool:
        """Whether the server takes long to answer. The watchdog puts messages back meanwhile."""
        return self.owes_for_s > LATE_ANSWER_S

    @property
    def reader(self) -> Identity | None:
        """The connection that fetches; None if there is none, or its identity is unknown."""
        return self._conversation.identity

    def hears(self, told: Told) -> None:
        """Record which connection hears of lists that are written to, or why none does; None as long as none does."""
        self._told = told
        self.on_changed(())

    @property
    def told_by(self) -> ToldBy:
        """The connection that reads lists, and the one that hears of them: as long as both last, `are_empty` holds."""
        return self.reader, self._told

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
        """
        told = self._told
        if isinstance(told, exceptions.ResponseError):
            raise told
        if told is not None:
            self._conversation.are_empty(groups, told=told, on_answer=on_answer)
        return told is not None

    def unblock(self, client_ids: Sequence[str], within_s: float) -> bool:
        """Make the server end the waits of other connections; returns whether it has answered within some seconds.

        Answers to what was asked before come first. Some may not have waited any more, or not yet.

        Raises:
            redis.ResponseError: the server does not allow it.
        """
        return self._conversation.unblock(client_ids, within_s)

    def read(self) -> None:
        """Handle the answers that have come, see `Conversation.read`. Never raises."""
        self._conversation.read()

    def read_answers(self, within_s: float = PATIENCE_S) -> None:
        """Make sure that all acknowledgements have arrived, and that the connection that fetches is not lost.

        Waits for some seconds at most. Never raises; the watchdog repeats those that have not arrived.
        """
        self._conversation.read_answers(within_s)

    def _on_acknowledged(self, tag: str, was_in_flight: bool) -> None:
        # Not earlier: `reconcile` puts back every message that is in flight but not held.
        held = self._held.pop(tag, None)
        if was_in_flight:
            return
        if held is not None and not self.is_lost:
            logger.warning(
                "Consumer %s no longer owns a message of %r: unless it was deleted in Redis, its task may run twice",
                self.id,
                held.name,
            )

    def _owe_acks(self, tags: Iterable[str], exc: BaseException) -> None:
        acks = {tag: Departure(self._held[tag], "nowhere") for tag in tags if tag in self._held}
        self._departures.owe(acks, exc)

    def hold(self, name: str, message: bytes, holder: Holder | None = None) -> str:
        """Remember a fetched message; returns its tag, which is used to acknowledge it.

        Args:
            name: of its list.
            message: its bytes.
            holder: if it holds a unique key.
        """
        tag = str(next(_TAGS))
        self._held[tag] = Held(name, message, holder)
        return tag

    def can_wait(self, tag: str) -> None:
        """Let the acknowledgement of a message wait a few ms for others: it comes when its task is done.

        If the process is killed meanwhile, the task runs again.
        """
        held = self._held.get(tag)
        if held is not None and self._collects:
            self._held[tag] = replace(held, can_wait=True)

    def starts(self, tag: str, *, is_early: bool) -> Held | None:
        """Say that the task of a message starts, see `UniqueKeys.starts`. Never raises."""
        return self.unique_keys.starts(tag, with_ack=is_early or self._is_deferring)

    def ends(self, held: Held) -> None:
        """Say that a task is done whose message is acknowledged already, see `UniqueKeys.ends`. Never raises."""
        self.unique_keys.ends(held)

    def _let_go(self, tag: str) -> Held | None:
        """Hold a message no longer whose task does not begin here, or not again."""
        held = self._held.pop(tag, None)
        if held is not None:
            self.unique_keys.leaves(held)
        return held

    def is_held(self, tag: str) -> bool:
        """Return whether a task may work on a message: others have not taken it over, and it was not put back.

        Never raises. Asks the server only if the lease should have ended; if the server cannot be reached, trusts what
        it knows. True for messages that need no acknowledgement: their tags come from kombu and are not numbers.

        Args:
            tag: of the message.
        """
        if not tag.isdecimal():
            return True
        with suppress(LeaseLost, *CONNECTION_ERRORS, exceptions.ResponseError):
            self.check()
        return tag in self._held

    def ack(self, tag: str) -> bool:
        """Acknowledge a message: it is removed for good. One command; O(N) for N messages held for longer.

        The next fetch reads the reply. What its own thread acknowledges is sent by that fetch or by `send_acks`, if the
        consumer `collects`. Never raises; the watchdog repeats what failed.

        Returns:
            False if the message is not held.
        """
        with self.isolation.acknowledging(tag):
            return self._ack(tag)

    def send_acks(self, *, is_busy: bool) -> bool:
        """Send the acknowledgements that it has collected. For the thread that fetches; never raises.

        Args:
            is_busy: whether those that can may wait for more, since there will be more soon, or a fetch that takes them
                along.

        Returns:
            Whether some still wait: call this again within a few ms.
        """
        return self._conversation.flush(may_wait=is_busy)

    def _ack(self, tag: str) -> bool:
        held = self._held.get(tag)
        if held is None or self._conversation.is_unanswered(tag):
            return False
        self.isolation.forget(tag)
        if self._is_deferring:
            self.owed[tag] = Departure(held, "nowhere")
            return True
        what = removal(self.leases.keys_of(held.name), consumer=self.id, held=held)
        if not self._conversation.acknowledge(tag, what, can_wait=held.can_wait):
            left = self._departures.leave(self.client, {tag: Departure(held, "nowhere")})
            if tag not in self.owed:
                self._on_acknowledged(tag, left > 0)
        elif not self._collects and self._conversation.is_of_this_thread:
            self._conversation.flush()
        return True

    @property
    def _is_deferring(self) -> bool:
        """Whether the watchdog tells the server what has become of messages."""
        return self._is_retired or self.is_unanswered

    def _rewrite(self, tag: str, new: bytes) -> bool:
        held = self._held[tag]
        queue_keys = self.leases.keys_of(held.name)
        if not scripts.replace(queue_keys, consumer=self.id, message=held.message, new=new).run(self.client):
            return False
        self._held[tag] = replace(held, message=new)
        return True

    def settle(self, client: redis.Redis | None = None) -> None:
        """Send the server all departures that it may not know about, see `Departures.settle`."""
        for tag in self._departures.settle(client or self.client):
            self._held.pop(tag, None)

    def requeue(self, tag: str) -> bool:
        """Put a message to the back of its list, marked as redelivered. Returns False if the consumer did not own it.

        Never raises for server or network errors; the watchdog tries again later.
        """
        held = self._let_go(tag)
        if held is None:
            return False
        departures = {tag: Departure(held, "back", self.redelivery.put_back(held.message))}
        return bool(self._leave(departures)) or tag in self.owed

    def _leave(self, departures: Mapping[str, Departure]) -> int:
        if self._is_deferring or self.is_late:
            self.owed.update(departures)
            return 0
        return self._departures.leave(self.client, departures)

    def set_aside(self, tag: str, record: bytes) -> None:
        """Let a message be a dead letter with this record. Never raises, see `requeue`."""
        held = self._let_go(tag)
        if held is not None:
            self._leave({tag: Departure(held, "dead", record)})
            self.redelivery.on_count(held.name, DEAD_LETTERS + reason_of(record), 1)

    def give_back(self, name: str, messages: Sequence[bytes]) -> int:
        """Put fetched but undelivered messages back to the front of the list, unchanged. The oldest comes first.

        Never raises, see `requeue`. Returns how many were put back at once.
        """
        back = [Departure(Held(name, message), "front", message) for message in reversed(messages)]
        return self._leave({str(next(_TAGS)): departure for departure in back})

    def put_back(self, tags: Sequence[str]) -> None:
        """Put held messages back to the front of their lists, marked as redelivered. The oldest comes first.

        Never raises, see `requeue`.

        Args:
            tags: tags of the messages, in the order of delivery.
        """
        self.read_answers()
        back: dict[str, Departure] = {}
        for tag in reversed(tags):
            is_done = tag in self.owed or self._conversation.is_unanswered(tag)
            held = None if is_done else self._let_go(tag)
            if held is not None:
                back[tag] = Departure(held, "front", self.redelivery.put_back(held.message))
        back = dict(sorted(back.items(), key=lambda item: item[1].held.name))
        if self._is_retired or self.is_unanswered:
            self.owed.update(back)
        else:  # also while an answer is late: whoever closes a channel may wait for the server
            self._departures.leave(self.client, back)

    def reconcile(self, client: redis.Redis | None = None) -> bool:
        """Put back every message that is in flight but not held.

        Do not call this while a fetch is under way: the consumer would lose the messages that are about to arrive.

        Returns:
            Whether nothing is in flight any more.
        """
        put_back = self.redelivery.put_back
        return self._departures.put_back_unknown(client or self.client, self.lists, self._held, put_back)

    def recover_lost(self) -> None:
        """Put back the messages that the server may have moved for a fetch whose reply was lost; see `reconcile`.

        The consumer stays in use. Call this only if no connection waits for messages and all fetched messages are held.
        """
        if self.lost and not self._abandoned.may_move_messages(self.client):
            self.reconcile()
            self._conversation.lost = ""

    # -- the end

    def abandon(self, connections: Iterable[Identity | None]) -> None:
        """Add connections whose replies nobody reads, see `AbandonedConnections`."""
        self._abandoned.add(connections)

    def close(self, keep: Collection[str] = ()) -> bool:
        """Stop consuming, and put all messages back except those in `keep`, which can still be acknowledged.

        Never raises for server or network errors.

        Args:
            keep: tags of the messages to keep.

        Returns:
            Whether everything is done; if not, the watchdog has to continue.
        """
        self._conversation.adopt()
        self.read_answers()
        self._conversation.end()
        self.is_closed = True
        self.names.clear()
        self.keep_only(keep)
        if self.is_unanswered:
            return False
        try:
            return self.finish()
        except Exception as exc:
            logger.debug("Consumer %s cannot finish closing yet: %s", self.id, exc)
            return False

    @property
    def is_unanswered(self) -> bool:
        """Whether the server has not answered in time: whoever asked it now would wait as long."""
        return self._departures.is_unanswered

    def give_up(self, exc: exceptions.TimeoutError) -> None:
        """Record that the server has not answered in time, as a channel is closed. The watchdog does what is left."""
        self._departures.is_unanswered, self._conversation.lost = True, str(exc)
        self._conversation.give_up(exc)

    def retire(self) -> None:
        """Stop consuming without a command to the server, which may hang or be gone. It keeps all messages it holds.

        They can still be acknowledged. From now on the watchdog tells the server; `close` drops what does not run.
        """
        self.abandon(self.waits)
        self._conversation.give_up(exceptions.ConnectionError("its connection was given up"))
        self.is_closed = self._is_retired = True
        self.names.clear()

    def end(self) -> None:
        """Stop consuming, because nobody can use it any more; the watchdog puts everything back. Sends nothing."""
        if not self.is_closed:
            self.retire()
        self.keep_only()

    @property
    def is_done(self) -> bool:
        """Whether a closed consumer holds and owes nothing any more."""
        return self.is_closed and not self._held and not self.owed

    def finish(self, client: redis.Redis | None = None) -> bool:
        """Finish closing: do what could not be done before. Returns whether everything is done now."""
        if self.is_lost:
            return True
        self.settle(client)
        may_get_more = self._abandoned.may_move_messages(client or self.client)  # first: `reconcile` puts it back
        return self.reconcile(client) and not may_get_more and self.end_leases(client)

    def keep_only(self, keep: Collection[str] = ()) -> None:
        """Hold only these tags any more: no task is left that could acknowledge the rest. `finish` puts that back."""
        kept = {*keep, *self.owed}
        for tag in list(self._held):
            if tag not in kept:
                self._let_go(tag)

    def disconnect(self) -> None:
        """Close all connections; a later acknowledgement opens a new one."""
        self._conversation.end()
        self._stack.close()

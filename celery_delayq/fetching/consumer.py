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
    A departure (an acknowledgement, for example) is owed if the server refused it or may not have received it, see
    `outbox`. The watchdog sends it again, and nothing else is done with that message meanwhile. So an error reply costs
    time, but never a message.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from logging import getLogger

import redis
from redis import exceptions

from celery_delayq.basics.errors import LeaseLost
from celery_delayq.basics.text import plural
from celery_delayq.fetching.abandoned import AbandonedConnections
from celery_delayq.fetching.conversation import Conversation, Found
from celery_delayq.fetching.held import LOST_LEASES, Redelivery
from celery_delayq.fetching.holding import HoldingConsumer
from celery_delayq.fetching.lease import Leases
from celery_delayq.fetching.process import consumer_id
from celery_delayq.fetching.wire import Wire
from celery_delayq.queue.connections import CONNECTION_ERRORS, Connect
from celery_delayq.queue.delayed_queue import database_of
from celery_delayq.queue.scripts import Renewed
from celery_delayq.queue.subscription import Identity

logger = getLogger(__name__)


class Consumer(HoldingConsumer):
    """One consumer of any number of broker lists.

    It belongs to one thread, except for what says that a task starts, ends, or has failed (`ack`, `requeue`,
    `set_aside`, `unique_keys`), and for the methods that the watchdog calls with a client of its own: under gevent,
    threads cannot share connections.

    Args:
        connect: see `Connect`.
        client: for the thread of the consumer. By default, it makes one.
        lease_s: how long the consumer may be silent before others take its messages, in seconds.
        redelivery: see `Redelivery`.
        expires_ms: list -> time until an unused list expires, in ms. Only lists that expire are in it. It may change.
        id: readable and unique. The default names the process that made the consumer.
        on_asking: see `Conversation`. By default, nobody but `fetch` and `Conversation.read_answers` handles answers.
        collects: whether acknowledgements of its thread wait for `Conversation.flush`, or the next fetch, so that they
            share a write. Then an event loop calls it in each turn. By default, each is sent at once.
        slot_of: see `Leases`.

    Attributes, besides those of `HoldingConsumer`:
        names: of the lists that it consumes; it may have leases on more lists.
        lists: name -> keys of each list with a lease; a view.
        is_unanswered: whether the server did not answer in time as this was closed, so that the watchdog does the rest.

    Every method raises `redis.RedisError` if the server is away or refuses, unless its docstring says otherwise.
    """

    def __init__(
        self,
        connect: Connect,
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
        self._stack = ExitStack()
        client = client or self._stack.enter_context(connect())
        abandoned, id = AbandonedConnections(), id or consumer_id()
        super().__init__(
            id,
            client,
            Leases(id, lease_s, database_of(client), self._on_lost, self._on_forgotten, slot_of),
            Conversation(client, abandoned, on_asking),
            redelivery=redelivery or Redelivery(),
            expires_ms={} if expires_ms is None else expires_ms,
            collects=collects,
        )
        self.connect = connect
        self.db = database_of(client)
        self.names: set[str] = set()
        self.lists = self.leases.lists
        self.is_closed = self.is_unanswered = False
        #: How many of the messages that it held were deleted in Redis.
        self._deleted = 0
        self._abandoned = abandoned
        #: The connections that wait for messages on the server.
        self.waits: list[Identity | None] = []

    # -- leases

    @property
    def is_lost(self) -> bool:
        """Whether other consumers have given it up."""
        return self.leases.is_lost

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
        """Make sure that it may be used: its leases are valid, see `Leases.check`, and no message of it was deleted.

        Raises:
            LeaseLost: they are not, or some were.
            redis.ConnectionError: it is closed; on a cluster, another channel may have lost the node.
        """
        self._check_deleted()
        self.leases.check(self.client)
        if self.is_closed:
            raise exceptions.ConnectionError("the connection was given up")

    def end_leases(self, client: redis.Redis | None = None) -> bool:
        """End the leases on lists that are not consumed and have no held message; see `Leases.end`."""
        in_use = {*self.names, *(held.name for held in tuple(self._held.values()))}
        return self.leases.end(client or self.client, keep=in_use)

    def _on_lost(self) -> int:
        count = len(self._held)
        for tag in list(self._held):
            self._let_go(tag)
        for name in self.lists:
            self.redelivery.on_count(name, LOST_LEASES, 1)
        return count

    def _on_forgotten(self, client: redis.Redis, names: Sequence[str]) -> None:
        """Let go the messages that were deleted with the leases: they must not be begun. The others remain its own."""
        logger.warning(
            "Redis did not know consumer %s any more: its data was deleted. The consumer joins again", self.id
        )
        self.conversation.read_answers()
        for name in names:
            for tag in self.outbox.not_in_flight(client, name):
                if self._let_go(tag) is not None:
                    self._deleted += 1
        self._check_deleted()

    def _check_deleted(self) -> None:
        # Whoever was given these messages waits for their acknowledgements, so the connection has to start anew.
        if self._deleted and not self.is_closed:
            raise LeaseLost(f"{plural(self._deleted, 'message')} that consumer {self.id} held disappeared from Redis")

    # -- messages

    def fetch(self, name: str, limit: int) -> list[bytes]:
        """Take messages from a joined list, the oldest first, and wait for them. See `Conversation.fetch`.

        Raises:
            LeaseLost: others have given the consumer up.
        """
        answers: list[Found] = []
        self.ask(name, limit, answers.append)
        self.conversation.wait(lambda: answers)
        if answers == [None]:
            self.renew()  # it has no lease: others have given it up, or its data was deleted
            self.ask(name, limit, answers.append)
            self.conversation.wait(lambda: answers[1:])
        found = answers[-1]
        if isinstance(found, BaseException):
            raise found
        return found or []

    def ask(self, name: str, limit: int, on_found: Callable[[Found], object]) -> None:
        """Take messages from a joined list; nobody waits for them. See `Conversation.fetch`."""
        self.conversation.fetch(self.lists[name], consumer=self.id, limit=limit, on_found=on_found)

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

    def recover_lost(self) -> None:
        """Put back the messages that the server may have moved for a fetch whose reply was lost; see `Outbox`.

        The consumer stays in use. Call this only if no connection waits for messages and all fetched messages are held.
        """
        if self.conversation.lost and not self._abandoned.may_move_messages(self.client):
            self.outbox.reconcile(self.client)
            self.conversation.lost = ""

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
        self.conversation.adopt()
        if not self.conversation.read_answers():
            self.is_unanswered = True
        self.conversation.end()
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

    def give_up(self) -> None:
        """Record that the server has not answered in time, as a channel is closed. The watchdog does what is left."""
        exc = exceptions.TimeoutError("Redis does not answer")
        self.is_unanswered, self.conversation.lost = True, str(exc)
        self.conversation.give_up(exc)

    def retire(self) -> None:
        """Stop consuming without a command to the server, which may hang or be gone. It keeps all messages it holds.

        They can still be acknowledged. From now on the watchdog tells the server; `close` drops what does not run.
        """
        self.abandon(self.waits)
        self.conversation.give_up(exceptions.ConnectionError("its connection was given up"))
        self.is_closed = True
        self.names.clear()

    def end(self) -> None:
        """Stop consuming, because nobody can use it any more; the watchdog puts everything back. Sends nothing."""
        if not self.is_closed:
            self.retire()
        self.keep_only()

    @property
    def is_done(self) -> bool:
        """Whether a closed consumer holds and owes nothing any more."""
        return self.is_closed and not self._held and not self.outbox.owed

    def finish(self, client: redis.Redis | None = None) -> bool:
        """Finish closing: do what could not be done before. Returns whether everything is done now."""
        if self.is_lost:
            return True
        if not self.settle(client):
            return False
        client = client or self.client
        may_get_more = self._abandoned.may_move_messages(client)  # first: `reconcile` puts it back
        return self.outbox.reconcile(client) and not may_get_more and self.end_leases(client)

    def keep_only(self, keep: Collection[str] = ()) -> None:
        """Hold only these tags any more: no task is left that could acknowledge the rest. `finish` puts that back."""
        kept = {*keep, *self.outbox.owed}
        for tag in list(self._held):
            if tag not in kept:
                self._let_go(tag)

    def disconnect(self) -> None:
        """Close the connections of its thread."""
        self.conversation.end()
        self._stack.close()

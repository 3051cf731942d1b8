"""Consumer: takes messages from broker lists so that none can be lost; knows Redis, but neither kombu nor Celery.

Where a message is
    In the broker list, or in the in-flight list of one consumer: one step on the server takes it from the one to the
    other. It leaves the in-flight list by an acknowledgement, or goes back to the broker list.

Whose it is
    A consumer has a lease on each list, which its watchdog renews for as long as the process lives. What a consumer
    with an ended lease holds, the others put back (see `watchdog`).

How it ends
    `close()` puts back what is not being worked on and gives the leases up. Where that cannot be done at once, because
    the connection is lost or because a task still runs, the watchdog goes on until it is. A consumer is never used
    again after an error: its successor has another id, so nothing that was lost on the way can be mistaken.

What the server refuses
    What becomes of a message, and the server refuses or does not hear, is owed: the watchdog tells it again, and no one
    else decides about that message meanwhile. So a reply that says no costs time, and no message.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from logging import getLogger
from typing import NoReturn

import redis
from redis import exceptions

from celery_delayq import keys, scripts
from celery_delayq.connections import CONNECTION_ERRORS
from celery_delayq.delayed_queue import database_of
from celery_delayq.departure import Departure, Departures, remove
from celery_delayq.errors import LeaseLost
from celery_delayq.fetch_connection import FetchConnection, Identity
from celery_delayq.held import Held, Redelivery
from celery_delayq.process import consumer_id
from celery_delayq.scripts import MAX_FETCH, Renewed

logger = getLogger(__name__)

#: Longest single wait of a blocking command on the server, in seconds.
BLOCK_S = 30.0

#: Of the whole process: a task that runs is known by its tag alone, also after its consumer was closed.
_TAGS = itertools.count(1)


class Consumer:
    """One consumer of any number of broker lists.

    All belongs to one thread, but for `ack`, and for what the watchdog calls with a client of its own: under gevent
    and eventlet, connections cannot be shared by threads.

    Args:
        connect: returns a context manager that gives a client with a pool of its own, and closes it in the end.
        lease_s: how long it may be silent before others take its messages, in seconds.
        redelivery: see `Redelivery`.
        expires_ms: list -> when it expires unless it is used, in ms; of lists that do. It may change.
        id: readable, unique; by default it says in which process it was made.

    Every method raises `redis.RedisError` when the server is away or refuses, unless it says otherwise.
    """

    def __init__(
        self,
        connect: Callable[[], AbstractContextManager[redis.Redis]],
        *,
        lease_s: float = 30.0,
        redelivery: Redelivery | None = None,
        expires_ms: Mapping[str, int] | None = None,
        id: str | None = None,
    ) -> None:
        self.id = id or consumer_id()
        self.lease_s = lease_s
        self.redelivery = redelivery or Redelivery()
        #: The lists on which it has leases; it consumes from those in `names`.
        self.joined: dict[str, keys.QueueKeys] = {}
        self.names: set[str] = set()
        self.held: dict[str, Held] = {}
        self._departures = Departures(self.id, self._keys_of, {} if expires_ms is None else expires_ms)
        #: Tag -> what became of a message, of which the server may not know.
        self.owed = self._departures.owed
        #: Tags of messages whose acknowledgement came too late.
        self.too_late: set[str] = set()
        #: The tag of a message beside which nothing is to be fetched, and what guards its bytes (see `last_delivery`).
        self.alone: str | None = None
        self.alone_lock = threading.Lock()
        #: Whether the server may have moved messages for a fetch whose reply was lost; see `recover_lost`.
        self.has_lost_reply = False
        self.is_lost = False
        self._lost = ""
        #: When it was closed, on the monotonic clock; None while it is in use.
        self.closed_at: float | None = None
        #: Until when a blocking command that nobody listens to may still move a message, on the monotonic clock.
        self.haunted_until = 0.0
        self._ghosts: set[Identity | None] = set()
        #: Until when its leases last for sure, on the monotonic clock.
        self.lease_until = 0.0
        self._connection: FetchConnection | None = None
        self.connect = connect
        self._stack = ExitStack()
        self.client = self._stack.enter_context(connect())
        # Threads acknowledge at the same time; kombu's limit of 10 would refuse some of them.
        self.client.connection_pool.max_connections = 2**31
        self.db = database_of(self.client)

    # -- leases

    @property
    def lease_ms(self) -> int:
        """The lease in ms."""
        return round(self.lease_s * 1000)

    def join(self, name: str) -> None:
        """Begin to consume from a broker list.

        Raises:
            LeaseLost: it was given up before.
        """
        self.names.add(name)
        if name in self.joined:
            return
        queue_keys = keys.QueueKeys.of(name, self.db)
        sent = time.monotonic()
        if not scripts.renew(self.client, queue_keys, consumer=self.id, lease_ms=self.lease_ms, join=True).renewed:
            self._lose()
        if not self.joined:
            self.lease_until = sent + self.lease_s
        self.joined[name] = queue_keys

    def part(self, name: str) -> None:
        """Stop consuming from a broker list; `leave_all` gives the lease up once nothing of it is held."""
        self.names.discard(name)

    def renew(self, client: redis.Redis | None = None) -> list[tuple[str, Renewed]]:
        """Prolong all leases; returns what was seen, by list.

        Raises:
            LeaseLost: it was given up.
        """
        sent = time.monotonic()
        seen = []
        for name, queue_keys in list(self.joined.items()):
            renewed = scripts.renew(
                client or self.client, queue_keys, consumer=self.id, lease_ms=self.lease_ms, join=False
            )
            if not renewed.renewed and self.joined.get(name) is queue_keys:  # it has not left meanwhile
                self._lose()
            seen.append((name, renewed))
        self.lease_until = sent + self.lease_s
        return seen

    def check(self) -> None:
        """Make sure that the lease lasts; asks the server only if it should have ended.

        Raises:
            LeaseLost: it was given up.
        """
        if self.is_lost:
            self._lose()
        if self.joined and time.monotonic() > self.lease_until:
            self.renew()

    def _lose(self) -> NoReturn:
        if not self.is_lost:
            self._lost = (
                f"consumer {self.id} was silent for too long (its lease is {self.lease_s:g} s), so others took over "
                f"its messages, or Redis has lost its data ({len(self.held)} held here are not acknowledged any more)"
            )
            self.is_lost = True
            self.held.clear()
        raise LeaseLost(self._lost)

    # -- messages

    def fetch(self, name: str, limit: int) -> list[bytes]:
        """Take messages from a list to which it has joined, the oldest first. One atomic script.

        Raises:
            LeaseLost: it was given up.
        """
        if self._connection is None:
            self._connection = FetchConnection(self.client.connection_pool)
        self._connection.thread = threading.get_ident()
        connection = self._connection
        try:
            connection.send_fetch(self.joined[name], consumer=self.id, limit=min(limit, MAX_FETCH))
            self._take_answers(connection)
            found = connection.read_fetched()
        except exceptions.ResponseError:  # nothing was moved, and the connection is as good as before
            raise
        except BaseException as exc:
            self.has_lost_reply = True
            self._give_up_connection(exc)
            raise
        if found is None:
            self._lose()
        return found

    def read_answers(self) -> None:
        """Make sure that all acknowledgements have arrived. Never raises; the watchdog sends again what has not."""
        if not self._is_fetching_thread:
            return
        assert self._connection is not None
        try:
            self._take_answers(self._connection)
        except Exception as exc:
            self._give_up_connection(exc)

    @property
    def _is_fetching_thread(self) -> bool:
        return self._connection is not None and self._connection.thread == threading.get_ident()

    def _give_up_connection(self, exc: BaseException) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._owe_acks(connection.unanswered, exc)
            connection.disconnect()
            self.haunt([connection.identity])

    def _take_answers(self, connection: FetchConnection) -> None:
        for tag, answer in connection.answers():
            if isinstance(answer, bool):
                self._on_answered(tag, was_in_flight=answer)
            else:
                self._owe_acks([tag], answer)

    def _on_answered(self, tag: str, *, was_in_flight: bool) -> None:
        # Only now: what is in flight and not held is put back by `reconcile`.
        held = self.held.pop(tag, None)
        if was_in_flight:
            return
        self.too_late.add(tag)
        if held is not None and not self.is_lost:
            logger.warning("A message of %r is not this consumer's own any more: its task may run twice", held.name)

    def _owe_acks(self, tags: Iterable[str], exc: BaseException) -> None:
        acks = {tag: Departure(self.held[tag], "nowhere") for tag in tags if tag in self.held}
        self._departures.owe(acks, exc)

    def hold(self, name: str, message: bytes) -> str:
        """Remember a message that was fetched; returns the tag by which it is acknowledged."""
        tag = str(next(_TAGS))
        self.held[tag] = Held(name, message)
        return tag

    def is_held(self, tag: str, *, ask: bool = True) -> bool:
        """Return whether a message may be worked on: others have not taken it over, and it was not put back.

        Never raises. Asks the server only if the lease should have ended; what it cannot ask, it believes. True for
        kombu's tags of messages that need no acknowledgement, which are no numbers.

        Args:
            tag: of the message.
            ask: whether it may ask the server.
        """
        if not tag.isdecimal():
            return True
        if ask:
            with suppress(LeaseLost, *CONNECTION_ERRORS, exceptions.ResponseError):
                self.check()
        return tag in self.held

    def ack(self, tag: str) -> bool:
        """Acknowledge a message: it is gone then. One command, whose cost grows with what is held since then.

        In the thread that fetches, its reply is read with the next fetch. Never raises; the watchdog sends again what
        went wrong.

        Returns:
            False if the message is not held.
        """
        with self.alone_lock if tag == self.alone else nullcontext():
            return self._ack(tag)

    def _ack(self, tag: str) -> bool:
        held = self.held.get(tag)
        if held is None:
            if self.is_lost:
                self.too_late.add(tag)
            return False
        if tag == self.alone:
            self.alone = None
        try:
            if self._is_fetching_thread:
                assert self._connection is not None
                self._connection.ack(self._keys_of(held.name).in_flight(self.id), held.message, tag)
            else:
                self._on_answered(tag, was_in_flight=self._remove(held) > 0)
        except Exception as exc:  # redis-py's ValueError, too, if a thread closes what another one reads from
            self._owe_acks([tag], exc)
            if self._is_fetching_thread:
                self._give_up_connection(exc)
        return True

    @property
    def is_isolated(self) -> bool:
        """Whether it holds a message beside which nothing is to be fetched."""
        return self.alone in self.held

    def came_too_late(self, tag: str) -> bool:
        """Return whether an acknowledgement was of no use: the message was not this consumer's any more.

        Waits for the server's reply. Never raises; what nobody knows counts as in time.
        """
        self.read_answers()
        return tag in self.too_late

    def _remove(self, held: Held) -> int:
        return remove(self.client, self._keys_of(held.name), consumer=self.id, message=held.message)

    def settle(self, client: redis.Redis | None = None) -> None:
        """Tell the server what it may not know, see `Departures.settle`."""
        for tag in self._departures.settle(client or self.client):
            self.held.pop(tag, None)

    def _keys_of(self, name: str) -> keys.QueueKeys:
        return self.joined.get(name) or keys.QueueKeys.of(name, self.db)

    def requeue(self, tag: str) -> bool:
        """Put a message to the back of its list, marked as redelivered. Returns False if it was not this consumer's.

        Never raises for what happens to the server or the network; the watchdog does it later then.
        """
        held = self.held.pop(tag, None)
        if held is None:
            return False
        left = self._departures.leave(
            self.client, {tag: Departure(held, "back", self.redelivery.put_back(held.message))}
        )
        return bool(left) or tag in self.owed

    def set_aside(self, tag: str, record: bytes) -> None:
        """Move a message to the dead list, as `record`. Never raises, see `requeue`."""
        held = self.held.pop(tag, None)
        if held is not None:
            self._departures.leave(self.client, {tag: Departure(held, "dead", record)})

    def give_back(self, name: str, messages: Sequence[bytes]) -> int:
        """Put messages that were fetched and not delivered back to the front, as they are; the oldest comes first.

        Never raises, see `requeue`. Returns how many were put back now.
        """
        back = [Departure(Held(name, message), "front", message) for message in reversed(messages)]
        return self._departures.leave(self.client, {str(next(_TAGS)): departure for departure in back})

    def put_back(self, tags: Sequence[str]) -> None:
        """Put messages that are held back to the front, marked as redelivered; the oldest comes first.

        Never raises, see `requeue`.

        Args:
            tags: in the order of delivery.
        """
        self.read_answers()
        back: dict[str, Departure] = {}
        for tag in reversed(tags):
            held = self.held.pop(tag, None) if tag not in self.owed else None
            if held is not None:
                back[tag] = Departure(held, "front", self.redelivery.put_back(held.message))
        self._departures.leave(self.client, dict(sorted(back.items(), key=lambda item: item[1].held.name)))

    def reconcile(self, client: redis.Redis | None = None) -> bool:
        """Put back whatever is in flight and not held.

        Not for a consumer that is in use, which would lose what it waits for.

        Returns:
            Whether nothing is in flight any more.
        """
        put_back = self.redelivery.put_back
        return self._departures.put_back_unknown(client or self.client, self.joined, self.held, put_back)

    def recover_lost(self) -> None:
        """Put back what the server may have moved for a fetch whose reply was lost; see `reconcile`.

        For a consumer that goes on, while nothing waits for messages, and all that was fetched is held.
        """
        if self.has_lost_reply and not self._is_haunted(self.client):
            self.reconcile()
            self.has_lost_reply = False

    # -- the end

    def haunt(self, identities: Iterable[Identity | None]) -> None:
        """Take note that the server may still move a message to this consumer for a command whose reply nobody reads.

        Args:
            identities: the connections on which it was sent; None for one that is not known.
        """
        self.haunted_until = time.monotonic() + BLOCK_S
        self._ghosts.update(identities)

    def _is_haunted(self, client: redis.Redis) -> bool:
        """Return whether that may be so yet; not once the server has closed those connections."""
        if time.monotonic() >= self.haunted_until:
            return False
        if None in self._ghosts:
            return True
        try:
            for ghost in list(self._ghosts):
                assert ghost is not None
                client.execute_command("CLIENT KILL", "ID", ghost.client_id, "ADDR", ghost.address)
                self._ghosts.discard(ghost)
        except CONNECTION_ERRORS:
            raise
        except exceptions.ResponseError as exc:
            logger.info("Redis does not let this user close its own connections: %s", exc)
            self._ghosts.add(None)
            return True
        return False

    def close(self, keep: Collection[str] = ()) -> bool:
        """Stop consuming: put everything back but the messages of some tags, which may still be acknowledged.

        Never raises for what happens to the server or the network.

        Returns:
            Whether all is done; if not, the watchdog has to go on.
        """
        self.read_answers()
        self._close_connection()  # what is acknowledged from now on, nobody would read the reply of
        if self.closed_at is None:
            self.closed_at = time.monotonic()
            self.names.clear()
        kept = {*keep, *self.owed}
        for tag in list(self.held):
            if tag not in kept:
                del self.held[tag]
        try:
            return self.finish()
        except Exception as exc:
            logger.debug("%s is not done yet: %s", self.id, exc)
            return False

    def finish(self, client: redis.Redis | None = None) -> bool:
        """Do what is left to do of a closed consumer; returns whether that was all."""
        if self.is_lost:
            return True
        self.settle(client)
        is_haunted = self._is_haunted(client or self.client)
        done = self.reconcile(client) and not is_haunted
        return self.leave_all(client) if done else False

    def leave_all(self, client: redis.Redis | None = None) -> bool:
        """Give up the leases on all lists of which nothing is held, and from which it does not consume."""
        for name, queue_keys in list(self.joined.items()):
            held = any(held.name == name for held in list(self.held.values()))
            if name in self.names or held:
                continue
            # Not afterwards: the watchdog would miss the lease, and take the consumer for lost.
            self.joined.pop(name, None)
            has_left = False
            try:
                has_left = scripts.leave(client or self.client, queue_keys, consumer=self.id)
            finally:
                if not has_left:
                    self.joined[name] = queue_keys
        return not self.joined

    def after_fork(self) -> None:
        """Close what a forked child inherited, without a word to the server: it would keep the parent's alive."""
        self._close_connection()
        self.held.clear()
        self.joined.clear()

    def disconnect(self) -> None:
        """Close its connections; an acknowledgement that comes later makes a new one."""
        self._close_connection()
        self._stack.close()

    def _close_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()

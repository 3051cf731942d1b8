"""Waits: the connections of one fetcher that wait on the server, one for each list."""

from __future__ import annotations

import time
from collections.abc import Collection
from logging import getLogger

from redis import exceptions

from celery_delayq.fetching.consumer import Consumer
from celery_delayq.queue.connections import NOT_SERVING, close_idle, passing_refusal, refusals
from celery_delayq.transport.lists import MOST_WAITS, Lists
from celery_delayq.transport.protocols import Cycle, Taker
from celery_delayq.transport.slots import Slot

logger = getLogger(__name__)

#: When the server is told again to end a wait, in seconds. It does not do so if the wait has not begun there yet, since
#: that was sent on another connection.
_UNBLOCK_AGAIN_S = 0.01

#: How long to do without connections that wait, if the server has none left, in seconds.
_SPARING_S = 30.0


class Waits:
    """They belong to the consuming thread.

    Args:
        cycle: polls the connections.
        lists: which of them the server refuses.
        taker: takes what comes.
    """

    def __init__(self, cycle: Cycle, lists: Lists, taker: Taker) -> None:
        self._cycle = cycle
        self._lists = lists
        self._taker = taker
        self._slots: dict[str, Slot] = {}
        self._can_unblock = True
        self._sparing_until = 0.0

    def __bool__(self) -> bool:
        """Whether there are any connections."""
        return bool(self._slots)

    @property
    def all(self) -> Collection[Slot]:
        """All connections."""
        return list(self._slots.values())

    @property
    def are_many(self) -> bool:
        """Whether no further list should have a connection."""
        return len(self._slots) >= MOST_WAITS

    @property
    def are_armed(self) -> bool:
        """Whether any of them waits."""
        return any(slot.is_armed for slot in self.all)

    def has(self, name: str) -> bool:
        """Return whether a list has a connection."""
        return name in self._slots

    def is_armed(self, name: str) -> bool:
        """Return whether the server would say that there is a message in a list.

        Raises:
            redis.ConnectionError: it should have answered long ago.
        """
        slot = self._slots.get(name)
        if slot is not None and slot.is_overdue():
            raise exceptions.ConnectionError(f"Redis did not answer the wait for messages of {name!r}")
        return slot is not None and slot.is_armed

    @property
    def is_sparing(self) -> bool:
        """Whether it does without connections that wait."""
        return time.monotonic() < self._sparing_until

    def spare(self, within_s: float) -> None:
        """Do without connections that wait, for a while: the server has none left for leases and transfers."""
        self._sparing_until = time.monotonic() + _SPARING_S
        self.end(self.all, within_s)
        self.drop_ended(self.all)
        if self._taker.consumer is not None:
            close_idle(self._taker.consumer.client)

    def arm(self, queue: str, name: str) -> None:
        """Wait for a message of a list, on a connection that is made when it is needed first.

        Raises:
            redis.RedisError: the server is away, or refuses the connection.
        """
        consumer = self._taker.consumer
        if self.is_sparing or consumer is None:
            return
        slot = self._slots.get(name)
        if slot is not None and slot.is_forgotten:
            self.drop(slot)
            slot = None
        if slot is None:
            in_flight = consumer.lists[name].in_flight(consumer.id)
            slot = self._slots[name] = Slot(consumer.client.connection_pool, queue, name, in_flight)
            consumer.waits.append(slot.identity)
            self._cycle.add_slot(slot, self._taker)
        slot.arm()

    def receive(self, slot: Slot) -> None:
        """Take the message that a connection has waited for.

        Raises:
            redis.ConnectionError: the connection is lost.
        """
        self._taker.unsettle()
        if not slot.is_armed:  # nothing was lost with its connection
            if slot.is_forgotten:
                self.drop(slot)
            return
        message = self._read(slot)
        if slot.is_armed:
            return
        consumer = self._taker.consumer
        assert consumer is not None
        if message is not None:
            refusals.end(consumer.client, logger, has_added=True)
            self._taker.take(slot.queue, slot.name, [message])
        if not self._taker.is_consumed(slot.queue):
            self.drop(slot)
            self._taker.part(slot.queue, slot.name)
        elif self.is_sparing:
            self.drop(slot)
        elif message is None and not self._lists.was_refused(slot.name) and self._taker.may_wait():
            self._lists.attempt(slot.name, self.arm, slot.queue, slot.name)

    def _read(self, slot: Slot, wait_s: float = 0) -> bytes | None:
        """Return the message that has come within some seconds; None if the wait has ended without one, or goes on."""
        try:
            return self._lists.attempt(slot.name, slot.read) if slot.has_reply(wait_s) else None
        except Exception:
            self.abandon()
            raise

    def end(self, slots: Collection[Slot], within_s: float) -> None:
        """Let the server end waits. A message that has come all the same goes back at once.

        Nobody waits for the rest of a reply that has begun: a message of many MB may take long.

        Args:
            slots: the connections.
            within_s: how long to wait for answers, in seconds. What comes later is not taken either.

        Raises:
            redis.ConnectionError: the connection is lost.
        """
        consumer = self._taker.consumer
        armed = [slot for slot in slots if slot.can_end]
        until = time.monotonic() + within_s
        while consumer is not None and armed and self._can_unblock:
            self._taker.unsettle()
            if not self._unblock(consumer, armed, until - time.monotonic()):
                break
            for slot in armed:
                # What came meanwhile on the connection that fetches may have ended it, too.
                message = self._read(slot, _UNBLOCK_AGAIN_S) if slot.is_armed else None
                if message is not None:
                    consumer.give_back(slot.name, [message])
            armed = [slot for slot in armed if slot.can_end]
            if time.monotonic() >= until:
                break

    def _unblock(self, consumer: Consumer, slots: Collection[Slot], within_s: float) -> bool:
        """Tell the server to end waits; returns whether it has answered, and allows it."""
        try:
            identities = [slot.identity.client_id for slot in slots if slot.identity is not None]
            if len(identities) < len(slots):
                raise exceptions.ResponseError("CLIENT INFO is not allowed")
            return consumer.conversation.unblock(identities, max(0.0, within_s))
        except NOT_SERVING:
            raise
        except exceptions.ResponseError as exc:
            if not passing_refusal(exc):  # otherwise what comes goes back, or is held beyond the limit
                logger.info("Redis does not let this user unblock its own connections: %s. Allow CLIENT UNBLOCK", exc)
                self._can_unblock = False
            return False

    def drop_ended(self, slots: Collection[Slot]) -> None:
        """Close those that do not wait. One that does goes when the server has answered, perhaps with a message."""
        for slot in slots:
            if not slot.is_armed:
                self.drop(slot)

    def drop(self, slot: Slot) -> None:
        """Close a connection."""
        del self._slots[slot.name]
        if self._taker.consumer is not None:
            self._taker.consumer.waits.remove(slot.identity)
        self._taker.unsettle()
        self._cycle.remove_slot(slot)
        slot.disconnect()

    def abandon(self) -> None:
        """Leave all: a reply may be lost, and a message in flight with it. The consumer is not used any more."""
        if self._taker.consumer is not None:
            self._taker.consumer.abandon(slot.identity for slot in self.all)

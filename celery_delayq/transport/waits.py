"""Waits: the connections of one fetcher that wait on the server, one for each list."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from logging import getLogger

from redis import exceptions

from celery_delayq.fetching.consumer import Consumer
from celery_delayq.queue.connections import NOT_SERVING, passing_refusal
from celery_delayq.transport.protocols import Cycle, Owner
from celery_delayq.transport.slots import Slot

logger = getLogger(__name__)

#: When the server is told again to end a wait, in seconds. It does not do so if the wait has not begun there yet, since
#: that was sent on another connection.
_UNBLOCK_AGAIN_S = 0.01


class Waits:
    """They belong to the consuming thread.

    Args:
        cycle: polls the connections.
        owner: reads from them.
    """

    def __init__(self, cycle: Cycle, owner: Owner) -> None:
        self._cycle = cycle
        self._owner = owner
        self._slots: dict[str, Slot] = {}
        self._can_unblock = True

    def __bool__(self) -> bool:
        """Whether there are any connections."""
        return bool(self._slots)

    @property
    def all(self) -> Collection[Slot]:
        """All connections."""
        return list(self._slots.values())

    @property
    def armed(self) -> list[Slot]:
        """Those that wait."""
        return [slot for slot in self._slots.values() if slot.is_armed]

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

    def arm(self, consumer: Consumer, queue: str, name: str) -> None:
        """Wait for a message of a list, on a connection that is made when it is needed first.

        Raises:
            redis.RedisError: the server is away, or refuses the connection.
        """
        slot = self._slots.get(name)
        if slot is not None and slot.is_forgotten:
            self.drop(consumer, slot)
            slot = None
        if slot is None:
            in_flight = consumer.lists[name].in_flight(consumer.id)
            slot = self._slots[name] = Slot(consumer.client.connection_pool, queue, name, in_flight)
            consumer.waits.append(slot.identity)
            self._cycle.add_slot(slot, self._owner)
        slot.arm()

    def end(self, consumer: Consumer, slots: Iterable[Slot], within_s: float) -> list[Slot]:
        """Let the server end waits; returns those that it has ended, so that there is a reply to read.

        Args:
            consumer: tells the server.
            slots: the connections.
            within_s: how long to wait for answers, in seconds.

        Raises:
            redis.ConnectionError: the connection is lost.
        """
        ended: list[Slot] = []
        armed = [slot for slot in slots if slot.is_armed]
        until = time.monotonic() + within_s
        while armed and self._can_unblock:
            try:
                identities = [slot.identity.client_id for slot in armed if slot.identity is not None]
                if len(identities) < len(armed):
                    raise exceptions.ResponseError("CLIENT INFO is not allowed")
                if not consumer.unblock(identities, max(0.0, until - time.monotonic())):
                    break
            except NOT_SERVING:
                raise
            except exceptions.ResponseError as exc:
                if passing_refusal(exc):  # what comes goes back, or is held beyond the limit
                    break
                logger.info("Redis does not let this user unblock its own connections: %s. Allow CLIENT UNBLOCK", exc)
                self._can_unblock = False
            ended += [slot for slot in armed if slot.has_reply(_UNBLOCK_AGAIN_S)]
            armed = [slot for slot in armed if slot not in ended]
            if time.monotonic() >= until:
                break
        return ended

    def drop(self, consumer: Consumer | None, slot: Slot) -> None:
        """Close a connection."""
        del self._slots[slot.name]
        if consumer is not None:
            consumer.waits.remove(slot.identity)
        self._cycle.remove_slot(slot)
        slot.disconnect()

"""Waits: the connections of one fetcher that wait on the server, one for each list."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterable
from functools import partial
from logging import getLogger
from typing import Any

from redis import exceptions

from celery_delayq.basics.weak import call_of
from celery_delayq.fetching.consumer import Consumer
from celery_delayq.queue.connections import passing_refusal
from celery_delayq.transport.protocols import Cycle, Owner
from celery_delayq.transport.slots import Slot

logger = getLogger(__name__)

#: When the server is told again to end a wait, in seconds. It refuses if the wait has not begun there yet, since that
#: was sent on another connection.
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

    def end(self, consumer: Consumer, slots: Iterable[Slot]) -> None:
        """Tell the server to end waits. Its answers come later, and perhaps with messages."""
        for slot in slots:
            if slot.is_armed and not slot.is_ending and self._can_unblock:
                if slot.identity is None:
                    self._on_refused(exceptions.ResponseError("CLIENT INFO is not allowed"))
                    return
                slot.is_ending = True
                consumer.unblock(slot.identity.client_id, partial(call_of, weakref.ref(self), "on_unblocked", slot))

    def on_unblocked(self, slot: Slot, answer: Any) -> None:
        """Handle the answer to `end`."""
        if isinstance(answer, exceptions.ResponseError):
            slot.is_ending = False
            if not passing_refusal(answer):  # otherwise what comes goes back, or is held beyond the limit
                self._on_refused(answer)
        elif answer == 0 and slot.is_armed:
            slot.is_ending = False
            self._cycle.wake_in(_UNBLOCK_AGAIN_S)

    def _on_refused(self, exc: exceptions.ResponseError) -> None:
        logger.info("Redis does not allow this user to unblock its own connections: %s. Allow CLIENT UNBLOCK", exc)
        self._can_unblock = False

    def drop(self, consumer: Consumer | None, slot: Slot) -> None:
        """Close a connection."""
        del self._slots[slot.name]
        if consumer is not None:
            consumer.waits.remove(slot.identity)
        self._cycle.remove_slot(slot)
        slot.disconnect()

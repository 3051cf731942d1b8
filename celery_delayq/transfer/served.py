"""ServedQueues: the delayed queues that a transfer loop serves, and what it knows about each."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Set
from dataclasses import dataclass
from typing import Any

import redis

from celery_delayq.queue.delayed_queue import DelayedQueue

#: Queues that seem empty are looked at every twelfth time at least, if they are in several hash slots.
_LOOKS_A_SLOT = 12


@dataclass
class Served:
    """What a loop knows about one delayed queue."""

    queue: DelayedQueue
    #: Whether this process consumes it, so that messages move before they are due.
    has_lead: bool = False
    #: When to look again, in ms of the server's clock; None to wait for a notification.
    wake_at_ms: float | None = None
    #: When to try again because its hash slot was moving, by the monotonic clock.
    retry_at: float = math.inf
    #: When that was decided, by the monotonic clock.
    armed_at: float = 0.0
    #: Due time of the head, unix time in ms.
    head_due_ms: int | None = None
    #: Id of the punctual loop; empty if there is none.
    punctual: str = ""

    @property
    def is_to_be_looked_at(self) -> bool:
        """Whether the loop is about to look anyway. A look tells more than a notification: also the server's time."""
        return self.wake_at_ms == 0


class ServedQueues:
    """Those of one connection of a loop. For the loop's thread.

    Args:
        client: of the loop's server.
        pubsub: the connection's subscription.
        keyprefix: kombu's `global_keyprefix`.
    """

    def __init__(self, client: redis.Redis, pubsub: Any, keyprefix: str = "") -> None:
        self._client = client
        self._pubsub = pubsub
        self._keyprefix = keyprefix
        self._by_name: dict[str, Served] = {}
        self._by_channel: dict[str, Served] = {}
        self._by_transferrer_channel: dict[str, Served] = {}

    def __iter__(self) -> Iterator[Served]:
        """Yield them; meanwhile, none may be added or removed."""
        return iter(self._by_name.values())

    def __getitem__(self, name: str) -> Served:
        """Return what is known about a queue."""
        return self._by_name[name]

    @property
    def names(self) -> Set[str]:
        """Their names."""
        return self._by_name.keys()

    def of_channel(self, channel: str) -> Served | None:
        """Return the queue of one of Redisson's channels, on which due times of heads are published."""
        return self._by_channel.get(channel)

    def of_transferrer_channel(self, channel: str) -> Served | None:
        """Return the queue of a channel for signs of life."""
        return self._by_transferrer_channel.get(channel)

    def empty(self, slot_of: Callable[[str], int], looks: int, refused: Collection[str]) -> list[list[Served]]:
        """Return the queues that seem empty and have to be looked at now, by hash slot.

        If they are in several slots, these are the queues in the slots whose turn it is.

        Args:
            slot_of: see `TransferLoop`.
            looks: the number of looks so far.
            refused: names of those that the server refuses. They have no known head either, but are tried on their own.
        """
        slots: dict[int, list[Served]] = {}
        for served in self:
            if served.head_due_ms is None and served.queue.name not in refused:
                slots.setdefault(slot_of(served.queue.keys.timeout_set), []).append(served)
        if len(slots) == 1:
            return list(slots.values())
        turn = looks % _LOOKS_A_SLOT
        return [of_slot for slot, of_slot in slots.items() if slot % _LOOKS_A_SLOT == turn]

    def add(self, names: Set[str]) -> None:
        """Serve further queues, and subscribe to their channels."""
        for name in names - self._by_name.keys():
            queue = DelayedQueue(self._client, name, keyprefix=self._keyprefix)
            served = self._by_name[name] = Served(queue)
            self._by_channel[queue.keys.channel] = served
            self._by_transferrer_channel[queue.keys.transferrer_channel] = served
            self._pubsub.subscribe(queue.keys.transferrer_channel, queue.keys.channel)

    def remove(self, names: Set[str]) -> None:
        """Serve some queues no more."""
        for name in names:
            channels = self._by_name.pop(name).queue.keys
            del self._by_channel[channels.channel]
            del self._by_transferrer_channel[channels.transferrer_channel]
            self._pubsub.unsubscribe(channels.channel, channels.transferrer_channel)

"""ServedQueues: which delayed queues a transfer loop serves, and what it knows about each.

It serves those that its process consumes, those of the registry, and those that were announced since.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Set
from dataclasses import dataclass
from logging import getLogger

import redis
from redis import exceptions

from celery_delayq.queue import keys
from celery_delayq.queue.connections import CONNECTION_ERRORS, close_idle, refusals
from celery_delayq.queue.delayed_queue import DelayedQueue
from celery_delayq.queue.registry import Registry
from celery_delayq.queue.subscription import Subscription

logger = getLogger(__name__)

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
    """Those of one loop; they outlive its connections. For the loop's thread.

    Args:
        keyprefix: kombu's `global_keyprefix`.
        registry: where to read which queues there are; by default, the loop does that with its own client.
        serves: returns whether a list is at the loop's server.
    """

    def __init__(
        self, keyprefix: str = "", registry: Registry | None = None, serves: Callable[[str], bool] = lambda name: True
    ) -> None:
        self._keyprefix = keyprefix
        self._is_own = registry is None
        self._registry = registry
        self._serves = serves
        #: The channel on which new names are announced.
        self.channel = keys.registry(keyprefix)
        #: Whether the registry could be read when that was last tried.
        self.is_read = False
        #: Names that are registered, or were announced since.
        self._registered: set[str] = set()
        self._error = ""
        # What belongs to one connection.
        self._client: redis.Redis
        self._subscription: Subscription
        self._by_name: dict[str, Served] = {}
        self._by_channel: dict[str, Served] = {}

    def connect(self, client: redis.Redis, subscription: Subscription) -> None:
        """Use another client and subscription from now on: of the loop's server. Nothing is known of its queues yet."""
        self._client, self._subscription = client, subscription
        if self._is_own:
            self._registry = Registry(client, self._keyprefix)
        self._by_name, self._by_channel = {}, {}
        subscription.subscribe(self.channel)

    def disconnect(self) -> None:
        """Hear no more of queues."""
        self._subscription.unsubscribe(self.channel, *self._by_channel)

    def __iter__(self) -> Iterator[Served]:
        """Yield them; meanwhile, none may be added or removed."""
        return iter(self._by_name.values())

    def of_channel(self, channel: str) -> Served | None:
        """Return the queue of a channel: of Redisson's, for due times of heads, or of that for signs of life."""
        return self._by_channel.get(channel)

    def read(self) -> None:
        """Read the registry, and remove what is of no use any more. If the server refuses, all names are kept.

        Then register the queues that hold messages although the registry does not know them. Whoever stored the
        messages could not do so: on a cluster, the registry's node was away.

        Raises:
            redis.ConnectionError: the loop's own connection is lost.
        """
        assert self._registry is not None
        self.is_read = False
        with self._registry.turn:
            self._read(self._registry)
        for name, served in self._by_name.items() if self.is_read else ():
            if served.head_due_ms is not None and name not in self._registered:
                served.queue.register(again=True)
                self._registered.add(name)

    def _read(self, registry: Registry) -> None:
        try:
            used = {name: used_ms for name, used_ms in registry.read().items() if self._serves(name)}
            self._registered, self.is_read = {name for name, used_ms in used.items() if used_ms > 0}, True
            registry.forget(used)
        except (*CONNECTION_ERRORS, exceptions.ResponseError) as exc:
            self._report(exc)
        else:
            self._error = ""
        finally:
            if not self._is_own:  # with gevent, another thread could not use the connection
                close_idle(registry.client)

    def _report(self, exc: Exception) -> None:
        # A registry that is not the loop's own waits less for the same server than the loop does, which notices itself
        # that it is away.
        if isinstance(exc, CONNECTION_ERRORS) and self._is_own and self._serves(self.channel):
            raise exc
        if str(exc) != self._error and not refusals.note(exc, logger):
            what = "remove names of empty queues from" if self.is_read else "read the names of delayed queues in"
            logger.error("Cannot %s %r: %s", what, self.channel, exc)
        self._error = str(exc)

    def update(self, consumed: Set[str]) -> None:
        """Serve the queues that this process consumes and those that are registered, and no others."""
        names = set(filter(self._serves, self._registered | consumed))
        for name in self._by_name.keys() - names:
            channels = self._by_name.pop(name).queue.keys
            del self._by_channel[channels.channel], self._by_channel[channels.transferrer_channel]
            self._subscription.unsubscribe(channels.channel, channels.transferrer_channel)
        self._add(names)
        for name, served in self._by_name.items():
            served.has_lead = name in consumed

    def announced(self, name: str) -> None:
        """Serve one more queue, if it is at the loop's server: its name is registered from now on."""
        self._registered.add(name)
        if self._serves(name):
            self._add({name})

    def _add(self, names: Set[str]) -> None:
        channels: dict[str, Served] = {}
        for name in names - self._by_name.keys():
            queue = DelayedQueue(self._client, name, keyprefix=self._keyprefix)
            served = self._by_name[name] = Served(queue)
            channels |= {queue.keys.transferrer_channel: served, queue.keys.channel: served}
        self._by_channel |= channels
        if channels:
            self._subscription.subscribe(*channels)

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

"""WatchedQueues: the delayed queues that a transfer loop watches, and what it knows about each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import Any

import redis

from celery_delayq.queue.delayed_queue import DelayedQueue


@dataclass
class Watched:
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
    #: The server's last error for this queue, kept so that it is logged once.
    error: str = ""

    @property
    def is_to_be_looked_at(self) -> bool:
        """Whether the loop is about to look anyway. A look tells more than a notification: also the server's time."""
        return self.wake_at_ms == 0


class WatchedQueues:
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
        self._by_name: dict[str, Watched] = {}
        self._by_channel: dict[str, Watched] = {}
        self._by_transferrer_channel: dict[str, Watched] = {}

    def __iter__(self) -> Iterator[Watched]:
        """Yield them; meanwhile, none may be added or removed."""
        return iter(self._by_name.values())

    def __getitem__(self, name: str) -> Watched:
        """Return what is known about a queue."""
        return self._by_name[name]

    @property
    def names(self) -> Set[str]:
        """Their names."""
        return self._by_name.keys()

    def of_channel(self, channel: str) -> Watched | None:
        """Return the queue of one of Redisson's channels, on which due times of heads are published."""
        return self._by_channel.get(channel)

    def of_transferrer_channel(self, channel: str) -> Watched | None:
        """Return the queue of a channel for signs of life."""
        return self._by_transferrer_channel.get(channel)

    def watch(self, names: Set[str]) -> None:
        """Watch further queues, and subscribe to their channels."""
        for name in names - self._by_name.keys():
            queue = DelayedQueue(self._client, name, keyprefix=self._keyprefix)
            watched = self._by_name[name] = Watched(queue)
            self._by_channel[queue.keys.channel] = watched
            self._by_transferrer_channel[queue.keys.transferrer_channel] = watched
            self._pubsub.subscribe(queue.keys.transferrer_channel, queue.keys.channel)

    def unwatch(self, names: Set[str]) -> None:
        """Watch some queues no more."""
        for name in names:
            channels = self._by_name.pop(name).queue.keys
            del self._by_channel[channels.channel]
            del self._by_transferrer_channel[channels.transferrer_channel]
            self._pubsub.unsubscribe(channels.channel, channels.transferrer_channel)

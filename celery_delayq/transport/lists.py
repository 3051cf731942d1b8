"""Lists: the broker lists of one fetcher's queues, in the order in which they are read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from logging import getLogger
from typing import Any, TypeVar

from kombu.utils.scheduling import cycle_by_name
from redis import exceptions

from celery_delayq.queue.connections import NOT_SERVING, refusals
from celery_delayq.transport.protocols import Channel

logger = getLogger(__name__)

T = TypeVar("T")

#: Pause before a list that the server refused (its memory is full, for example) is tried again, in seconds.
_REFUSED_S = 1.0

#: How many queues have a connection that waits, and how many busy lists of more queues: a worker that gets too busy to
#: wait has to end each wait, and to begin it anew later.
MOST_WAITS = 32

#: The same for a list whose slot is on its way to another node, in seconds.
_MOVING_S = 0.1


class Lists:
    """They belong to the consuming thread.

    Args:
        channel: a `DelayedChannel`.
        queues: returns the queues to read, each once.
        is_elsewhere: whether an error says that a list is on its way to another server; see `Fetchers`.
    """

    def __init__(
        self,
        channel: Channel,
        queues: Callable[[], list[str]],
        is_elsewhere: Callable[[exceptions.ResponseError], bool],
    ) -> None:
        self._channel = channel
        self._queues = queues
        self._is_elsewhere = is_elsewhere
        self._cycle = cycle_by_name(channel.queue_order_strategy)()
        #: Queue -> its lists, one per priority.
        self._names: dict[str, list[str]] = {}
        #: List -> when to try it again (monotonic), and the server's error.
        self._refused: dict[str, tuple[float, str]] = {}

    # -- their order

    def follow(self) -> None:
        """Follow a change of the queues."""
        self._cycle.update(self._queues())

    def rotate(self, queue: str) -> None:
        """Record that a queue had messages: it is the last one now."""
        self._cycle.rotate(queue)

    def in_order(self) -> list[tuple[str, str]]:
        """Return queues with their lists, without those that are refused, in the order in which they are read."""
        queues = self._cycle.consume(len(self._queues()))
        return [(queue, name) for queue, name in self.of(queues) if not self.is_refused(name)]

    def of(self, queues: list[str]) -> Iterator[tuple[str, str]]:
        """Yield queues with their lists, in the order in which kombu reads them."""
        names = [self._names_of(queue) for queue in queues]
        for at_priority in zip(*names, strict=True):
            yield from zip(queues, at_priority, strict=True)

    @property
    def are_of_many_queues(self) -> bool:
        """Whether there are too many queues for a connection each."""
        return len(self._queues()) > MOST_WAITS

    def is_first(self, queue: str, name: str) -> bool:
        """Return whether a list is that of the queue's highest priority."""
        return name == self._names_of(queue)[0]

    def _names_of(self, queue: str) -> list[str]:
        names = self._names.get(queue)
        if names is None:
            names = self._names[queue] = self._channel.broker_lists(queue)
        return names

    def share(self, credit: int) -> int:
        """Return for how many messages to ask one list: with round robin, each queue gets its turn."""
        is_fair = str(self._channel.queue_order_strategy) == "round_robin"
        return max(1, credit // len(self._queues())) if is_fair else credit

    # -- what the server refuses

    def attempt(self, name: str, action: Callable[..., T], *args: Any) -> T | None:
        """Do something that the server may refuse for a list; returns None then. Raises what `refused` raises."""
        try:
            return action(*args)
        except exceptions.ResponseError as exc:
            self.refused(name, exc)
            return None

    def refused(self, name: str, exc: exceptions.ResponseError) -> None:
        """Record that the server refuses a list, and try it again later.

        Raises:
            redis.ConnectionError: it refuses everything.
        """
        if self._is_elsewhere(exc):
            self.put_off(name, exc, _MOVING_S)
            return
        if isinstance(exc, NOT_SERVING):
            raise exceptions.ConnectionError(str(exc)) from exc
        known = self._refused.get(name)
        if not refusals.note(exc, logger) and (known is None or known[1] != str(exc)):
            logger.error("Cannot fetch messages of %r, trying again every second: %s", name, exc)
        self.put_off(name, exc, _REFUSED_S)

    def put_off(self, name: str, exc: Exception, delay_s: float) -> None:
        """Try a list again after some seconds."""
        self._refused[name] = (time.monotonic() + delay_s, str(exc))
        self._channel.connection.cycle.wake_in(delay_s)

    def accepted(self, name: str) -> None:
        """Record that the server does not refuse a list."""
        self._refused.pop(name, None)

    def was_refused(self, name: str) -> bool:
        """Return whether the server has refused a list, and has not accepted it since."""
        return name in self._refused

    def is_refused(self, name: str) -> bool:
        """Return whether a list is not tried now."""
        refused = self._refused.get(name)
        return refused is not None and time.monotonic() < refused[0]

    @property
    def are_refused(self) -> bool:
        """Whether any list is not tried now."""
        return any(map(self.is_refused, self._refused))

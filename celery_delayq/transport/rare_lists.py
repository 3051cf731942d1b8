"""RareLists: lists that are rarely used. None takes a connection: the server tells when there is a message in one.

A connection that waits with BLMOVE is as fast as can be, and takes one list. A queue has one for each priority, and
most priorities of most queues are never used. A list that is used often is not rare, and takes a connection of its own.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from logging import getLogger

from redis import exceptions

from celery_delayq.basics.weak import call_of
from celery_delayq.fetching.consumer import Consumer, ToldBy
from celery_delayq.queue.connections import NOT_SERVING, refusals
from celery_delayq.queue.redirection import REDIRECTIONS, understood
from celery_delayq.transport.protocols import Cycle

logger = getLogger(__name__)

#: How long the server is believed to tell, in seconds. It would not if a connection was lost unnoticed.
TRUST_S = 30.0

#: A cluster is believed for up to so many times as long: to ask again takes two commands for each hash slot.
_MOST_TRUST = 3

#: How soon to look again if nobody hears what the server tells, in seconds. The watchdog wakes the loop once it does.
_DEAF_S = 1.0

#: A list is busy if it was written to so many times within so many seconds. Each time wakes all workers.
_BUSY_TIMES, _BUSY_S = 10, 2.0


class RareLists:
    """Those of one consumer. They belong to the thread that fetches, but for `on_changed`.

    Args:
        cycle: the `Poller` of the connection.
        consumer: asks the server.
        slot_of: see `Leases`.
    """

    def __init__(self, cycle: Cycle, consumer: Consumer, slot_of: Callable[[str], int]) -> None:
        self._cycle = cycle
        self._consumer = consumer
        self._slot_of = slot_of
        self._is_allowed = True
        #: The lists of which the server will tell, the connections that see to that, and until when it is believed.
        self._awaited: set[str] = set()
        self._told_by: ToldBy | None = None
        self._believed_until = 0.0
        self._times: dict[str, deque[float]] = {}
        consumer.on_changed = partial(call_of, weakref.ref(self), "on_changed")

    def may_have(self, name: str) -> bool:
        """Return whether a list may be one of them: the server allows it, and the list is not used often."""
        times = self._times.get(name)
        is_busy = times is not None and len(times) == _BUSY_TIMES and time.monotonic() - times[0] < _BUSY_S
        return self._is_allowed and not is_busy

    def are_awaited(self, names: Sequence[str]) -> bool:
        """Return whether lists were empty, and the server would have told that one of them no longer is."""
        return self._awaited.issuperset(names) and self._is_believed

    @property
    def _is_believed(self) -> bool:
        return self._told_by == self._consumer.told_by and time.monotonic() < self._believed_until

    def look(self, names: list[str]) -> None:
        """Ask the server about those that it may have told of, in one command. Raises what `wait` raises."""
        if self._told_by is not None and self._consumer.reader is not None:
            self._ask(names)

    def wait(self, names: list[str]) -> bool:
        """Make the server tell of messages in these lists; returns False if it does not, or if there is one already.

        Raises:
            redis.ConnectionError: the server is away.
        """
        are_empty = self._ask(names)
        if are_empty is None:
            self._cycle.wake_in(_DEAF_S)
        elif not are_empty:  # there is a message by now, or each list takes a connection
            self._cycle.wake()
        return bool(are_empty)

    def _ask(self, names: list[str]) -> bool | None:
        """Return whether the lists are empty, and the server will tell; None if nobody would hear it now."""
        if not self._is_believed:
            self._awaited.clear()
        unknown = [name for name in names if name not in self._awaited]
        if not unknown:
            return True
        groups = self._together(unknown)
        if not self._awaited:
            self._told_by = self._consumer.told_by
            self._believed_until = time.monotonic() + TRUST_S * min(len(groups), _MOST_TRUST)
        self._awaited.update(unknown)  # first: the server may tell before it is known here that they were empty
        are_empty: bool | None = False
        try:
            are_empty = self._consumer.are_empty(groups)
        except NOT_SERVING:
            raise
        except exceptions.ResponseError as exc:
            if isinstance(understood(exc), REDIRECTIONS):
                raise
            if "redirect to does not exist" in str(exc):  # the connection that hears was lost
                are_empty = None
            elif not refusals.note(exc, logger):
                self._on_refused(exc)
        finally:
            if not are_empty:
                self._awaited.difference_update(unknown)
        return are_empty and self.are_awaited(names)

    def _together(self, names: list[str]) -> list[list[str]]:
        """Return the names by hash slot: a node of a cluster refuses a command with keys of several slots."""
        slots: dict[int, list[str]] = {}
        for name in names:
            slots.setdefault(self._slot_of(name), []).append(name)
        return list(slots.values())

    def on_changed(self, names: Sequence[str] | None) -> None:
        """Hear which lists are no longer empty; None if any may be. The next fetch looks at them. In any thread."""
        if names is None:  # FLUSHALL, or FLUSHDB of any database
            self._awaited.clear()
        for name in names or ():
            if name in self._awaited:  # otherwise it was already told, and is not read yet
                self._awaited.discard(name)
                self._times.setdefault(name, deque(maxlen=_BUSY_TIMES)).append(time.monotonic())
        self._cycle.on_told()

    def _on_refused(self, exc: exceptions.ResponseError) -> None:
        logger.info(
            "Redis does not tell of messages in rarely used lists, so each list takes a connection: %s. Allow CLIENT "
            "TRACKING, CLIENT CACHING, CLIENT INFO and EXISTS",
            exc,
        )
        self._is_allowed = False

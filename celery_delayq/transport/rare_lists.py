"""RareLists: lists that are rarely used. None takes a connection: the server tells when there is a message in one.

A connection that waits with BLMOVE is as fast as can be, and takes one list. A queue has one for each priority, and
most priorities of most queues are never used. A list that is used often is not rare, and takes a connection of its own.
With more queues than a worker should wait for, the first list of a queue is rare, too, until it is used often.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from logging import getLogger

from redis import exceptions

from celery_delayq.basics.weak import call_of
from celery_delayq.fetching.conversation import Conversation, ToldBy
from celery_delayq.queue.connections import NOT_SERVING, refusals
from celery_delayq.queue.redirection import REDIRECTIONS, understood
from celery_delayq.transport.protocols import Cycle

logger = getLogger(__name__)

#: How long the server is believed to tell, in seconds. It would not if a connection was lost unnoticed.
TRUST_S = 30.0

#: A cluster is believed for up to so many times as long: to ask again takes two commands for each hash slot.
_MOST_TRUST = 3

#: How soon to look again if the server does not tell now, in seconds. The watchdog wakes the loop once it hears.
_DEAF_S = 1.0

#: What the server answers if it does not tell now: the connection that hears was lost.
_DEAF = ("redirect to does not exist", "client is in tracking mode")

#: A list is busy if it was written to so many times within so many seconds. Each time wakes all workers. The same holds
#: for how often it was told in vain.
_BUSY_TIMES, _BUSY_S = 10, 2.0


class RareLists:
    """Those of one consumer. They belong to the thread that fetches, but for `on_changed`.

    A list is either awaited, or known to have messages, or unknown.

    Args:
        cycle: the `Poller` of the connection.
        conversation: asks the server.
        slot_of: see `Leases`.
    """

    def __init__(self, cycle: Cycle, conversation: Conversation, slot_of: Callable[[str], int]) -> None:
        self._cycle = cycle
        self._conversation = conversation
        self._slot_of = slot_of
        #: Whether there may be any: the server tells of them.
        self.are_allowed = True
        #: The lists of which the server will tell, the connections that see to that, and until when it is believed.
        self._awaited: set[str] = set()
        self._told_by: ToldBy | None = None
        self._believed_until = 0.0
        #: The lists that have messages, or may have some.
        self._filled: set[str] = set()
        #: When the server told of a list, and when that was in vain: it was empty.
        self._times: dict[str, deque[float]] = {}
        self._vain: dict[str, deque[float]] = {}
        self._told: set[str] = set()
        conversation.on_changed = partial(call_of, weakref.ref(self), "on_changed")

    def is_busy(self, name: str) -> bool:
        """Return whether a list is used so often that it should have a connection of its own."""
        return _are_often(self._times.get(name))

    def is_told_in_vain(self, name: str) -> bool:
        """Return whether the list is empty so often when the server has told of it that it must have a connection.

        Others were faster; or the server tells because it forgets a list, since it remembers only so many.
        """
        return _are_often(self._vain.get(name))

    def may_have_messages(self, name: str) -> bool:
        """Return whether there may be a message in a list."""
        return name in self._filled

    def is_not_empty(self, name: str) -> None:
        """Record that there was a message in a list, so that the server has not told of it in vain."""
        self._told.discard(name)

    def is_empty(self, name: str) -> None:
        """Record that there was no message in a list. Call `wait` next."""
        self._filled.discard(name)
        if name in self._told:
            self._told.discard(name)
            self._vain.setdefault(name, deque(maxlen=_BUSY_TIMES)).append(time.monotonic())

    def wait(self, names: Collection[str]) -> None:
        """Ask the server whether there are messages in these lists, and otherwise to tell when there are.

        Those that have messages, or of which it does not tell, `may_have_messages` from then on.

        Raises:
            redis.ConnectionError: the server is away.
        """
        if self._told_by != self._conversation.told_by or time.monotonic() >= self._believed_until:
            self._awaited.clear()
        unknown = [name for name in names if name not in self._awaited and name not in self._filled]
        if not unknown:
            return
        groups = self._together(unknown)
        is_first = not self._awaited
        self._awaited.update(unknown)  # first: the server may tell before it is known here that they are empty
        is_asked = False
        try:
            is_asked = self._conversation.are_empty(groups, partial(call_of, weakref.ref(self), "on_answer", groups))
        except NOT_SERVING:
            raise
        except exceptions.ResponseError as exc:
            self._on_refused(exc)
        finally:
            if not is_asked:
                self._may_have_messages(unknown)
        if is_asked and is_first:
            self._told_by = self._conversation.told_by
            self._believed_until = time.monotonic() + TRUST_S * min(len(groups), _MOST_TRUST)
        if not is_asked and self.are_allowed:
            self._cycle.wake_in(_DEAF_S)

    def on_answer(self, groups: Sequence[Sequence[str]], answer: list[int] | Exception) -> None:
        """Handle the answer to `wait`."""
        if not isinstance(answer, Exception):
            filled = [name for names, count in zip(groups, answer, strict=True) if count for name in names]
            if filled:
                self._may_have_messages(filled)
                self._cycle.on_told()
            return
        self._may_have_messages([name for names in groups for name in names])
        if any(text in str(answer) for text in _DEAF) or refusals.note(answer, logger):
            # The connection that hears was lost, or the server refuses this for now.
            self._cycle.wake_in(_DEAF_S)
            return
        if isinstance(answer, exceptions.ResponseError) and not isinstance(understood(answer), REDIRECTIONS):
            self._on_refused(answer)
        self._cycle.on_told()

    def _may_have_messages(self, names: Sequence[str]) -> None:
        self._filled.update(names)
        self._awaited.difference_update(names)

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
                self._filled.add(name)
                self._told.add(name)
                self._awaited.discard(name)
                self._times.setdefault(name, deque(maxlen=_BUSY_TIMES)).append(time.monotonic())
        self._cycle.on_told()

    def _on_refused(self, exc: exceptions.ResponseError) -> None:
        if refusals.note(exc, logger):
            return
        logger.info(
            "Redis does not tell of messages in rarely used lists, so each list takes a connection: %s. Allow CLIENT "
            "TRACKING, CLIENT CACHING, CLIENT INFO and EXISTS",
            exc,
        )
        self.are_allowed = False


def _are_often(times: deque[float] | None) -> bool:
    return times is not None and len(times) == _BUSY_TIMES and time.monotonic() - times[0] < _BUSY_S

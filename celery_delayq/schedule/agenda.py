"""Agenda: which entries a planner looks at, and in which order.

The most urgent entries come first: those with a message that is due already, then those whose next occurrence is
earliest. So an entry that runs every second does not wait for thousands that run every minute, or for new ones.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Mapping

from celery_delayq.schedule.entry import Entry
from celery_delayq.schedule.occurrences import usual_interval_ms


class Agenda:
    """Two heaps. For one thread at a time. An entry is at most once in one of them; what is outdated there is skipped.

    Args:
        entries: the entries by name.
    """

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        self._entries = entries
        #: Entries by the time of their next step, unix time in ms.
        self._waiting: list[tuple[int, str]] = []
        #: Entries that are ready, by their deadlines, unix time in ms. Equal deadlines are in random order, so that
        #: several planners do not all begin with the same entry.
        self._ready: list[tuple[int, float, str]] = []

    def wake(self, entry: Entry, wake_ms: int | None) -> None:
        """Look at an entry at this time, unix time in ms; None for never."""
        entry.wake_ms = wake_ms
        if wake_ms is not None:
            heapq.heappush(self._waiting, (wake_ms, entry.name))

    def wake_now(self, entry: Entry, now_ms: int) -> None:
        """Look at an entry as soon as possible."""
        entry.wake_ms = 0
        heapq.heappush(self._ready, (_until_ms(entry, now_ms), random.random(), entry.name))

    @property
    def next_ms(self) -> int | None:
        """When the next entry is ready, unix time in ms: 0 for now, None if there is none."""
        if self._ready:
            return 0
        while self._waiting and self._current(self._waiting[0]) is None:
            heapq.heappop(self._waiting)
        return self._waiting[0][0] if self._waiting else None

    def pick(self, now_ms: int, most: int) -> list[str]:
        """Return the names of ready entries, the most urgent first. They are on the agenda no more."""
        while self._waiting and self._waiting[0][0] <= now_ms:
            if entry := self._current(heapq.heappop(self._waiting)):
                self.wake_now(entry, now_ms)
        names: list[str] = []
        while self._ready and len(names) < most:
            name = heapq.heappop(self._ready)[2]
            if entry := self._current((0, name)):
                entry.wake_ms = None  # the heap may contain the entry several times
                names.append(name)
        return names

    def _current(self, item: tuple[int, str]) -> Entry | None:
        """Return the entry that is to be looked at at this time; None if that is outdated."""
        wake_ms, name = item
        entry = self._entries.get(name)
        return entry if entry is not None and entry.wake_ms == wake_ms else None


def _until_ms(entry: Entry, now_ms: int) -> int:
    """Return the deadline of an entry's next step, unix time in ms."""
    state, due_ms = entry.state, entry.moves_on_ms
    usual_ms = usual_interval_ms(entry.definition.schedule)
    if state is None or state.at_ms is None or due_ms is None:
        return now_ms + usual_ms
    if due_ms > now_ms:  # the entry has changed: the waiting message must not run
        return min(due_ms, now_ms + usual_ms)
    if not state.task_id:
        return due_ms
    return due_ms + (usual_ms if state.last_ms is None else state.at_ms - state.last_ms)

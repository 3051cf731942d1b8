"""Ahead: the messages that a worker has received before they are due. It holds them for the rest of the lead."""

from __future__ import annotations

import heapq
import math
import time
from typing import Any
from weakref import WeakKeyDictionary

from celery_delayq.transfer.settings import LONGEST_LEAD_S

#: The last part of the time until a message is due, in seconds. An event loop waits in steps of a millisecond, and ends
#: half a millisecond late on average; a sleep is exact.
LAST_PART_S = 0.0005

#: No message is longer before its due time, in seconds: twice the longest lead, as clocks differ.
LONGEST_AHEAD_S = 2 * LONGEST_LEAD_S

#: The longest sleep, in seconds: a timer may be a little early, but nothing else may wait for long.
_LONGEST_SLEEP_S = 0.005


class Ahead:
    """The messages of one connection. It belongs to the thread that consumes, or that runs the timers of the worker."""

    def __init__(self) -> None:
        #: Message -> when it is due, on the monotonic clock.
        self._due_at: WeakKeyDictionary[Any, float] = WeakKeyDictionary()
        #: The same times as a heap, without those that are past.
        self._times: list[float] = []
        self._is_full = False

    def hold(self, message: Any, for_s: float) -> None:
        """Record that a message is due so many seconds from now."""
        due_at = time.monotonic() + for_s
        self._due_at[message] = due_at
        heapq.heappush(self._times, due_at)

    def wait(self, message: Any) -> bool:
        """Wait for the last part of the time until a message is due; returns whether it was held."""
        due_at = self._due_at.pop(message, None) if self._due_at else None
        if due_at is None:
            return False
        rest_s = due_at - time.monotonic()
        if rest_s > 0:
            time.sleep(min(rest_s, _LONGEST_SLEEP_S))
        return True

    def room(self, most: int) -> float:
        """Return how many more messages may be held. Once it is full, half of them must go.

        So several messages are fetched at once, and not one each time that a task begins.

        Args:
            most: how many may be held in all; 0 stands for any number.
        """
        now = time.monotonic()
        while self._times and self._times[0] <= now:
            heapq.heappop(self._times)
        if not most:
            return math.inf
        held = len(self._times)
        self._is_full = held >= most or (self._is_full and held > most // 2)
        return 0 if self._is_full else most - held

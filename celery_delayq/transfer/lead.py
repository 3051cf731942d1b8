"""Lead: how long before they are due messages move to the queues of this process.

A message takes some milliseconds from its delayed queue to a worker that holds it. On a busy machine, it takes longer.
The lead makes up for that: it rises at once to what a message has taken that came too late, and sinks slowly.

The loop that moves messages and the thread that receives them use it. A message that another process has moved tells
nothing: that process has a lead of its own.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

from celery_delayq.transfer.settings import LONGEST_LEAD_S

#: A loop wakes when this part of the lead is left. What is due within the whole lead moves with it, and wakes nobody.
WAKE_AT = 0.75

#: A message that comes so long before it is due came in time, in seconds.
_IN_TIME_S = 0.003

#: After so long without a late message, a third of what the lead has risen is left, in seconds.
_SINKS_S = 10.0

#: How many moves are remembered: those of some seconds.
_MOVES = 256


class Lead:
    """Follows how long messages take.

    Args:
        least_s: what it sinks to, in seconds; 0 for no lead at all.
        monotonic: this process's clock in seconds; tests pass their own clock.
    """

    def __init__(self, least_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._least_s = least_s
        #: What it rises to at most, in seconds.
        self.most_s = max(least_s, LONGEST_LEAD_S) if least_s else 0.0
        self._monotonic = monotonic
        #: How much longer than the least one it was when it last rose, and when that was.
        self._extra_s = self._rose_at = 0.0
        #: First and last due time of the messages moved (unix time in ms), and when they should have been (monotonic).
        self._moves: deque[tuple[float, float, float]] = deque(maxlen=_MOVES)

    @property
    def seconds(self) -> float:
        """The lead at this moment, in seconds."""
        if not self._extra_s:
            return self._least_s
        return self._least_s + self._extra_s * math.exp((self._rose_at - self._monotonic()) / _SINKS_S)

    def moved(self, first_ms: float, last_ms: float, planned_at: float) -> None:
        """Record that messages were moved; for the thread that moves them.

        Args:
            first_ms: when the first of them is due, in ms.
            last_ms: when the last of them is due at the latest, in ms.
            planned_at: when they should have been moved, on the monotonic clock.
        """
        self._moves.append((first_ms, last_ms, planned_at))

    def arrived(self, due_ms: float, early_s: float) -> None:
        """Record that a message arrived, and rise if it came too late; for the thread that receives.

        Args:
            due_ms: when it is due, in ms.
            early_s: how long before that it arrived, in seconds; negative if it came later.
        """
        if early_s >= _IN_TIME_S or not self._least_s:
            return
        now = self._monotonic()
        for first_ms, last_ms, planned_at in reversed(tuple(self._moves)):
            if first_ms - 1 <= due_ms <= last_ms:
                self._rise((now - planned_at + _IN_TIME_S) / WAKE_AT, now)
                return

    def _rise(self, wanted_s: float, now: float) -> None:
        wanted_s = min(wanted_s, self.most_s)
        if wanted_s > self.seconds:
            self._extra_s, self._rose_at = wanted_s - self._least_s, now

"""Attendance: what planners of one Redis database know of each other, and the server's time, which comes with it.

Which configuration counts, see `Roster`; and since when planners have been there without a gap: an occurrence of that
time is not missed, however late a planner reaches it.
"""

from __future__ import annotations

import time
from logging import getLogger

from redis.exceptions import ReadOnlyError, ResponseError

from celery_delayq.clock import ServerClock
from celery_delayq.schedule.configured import Configured
from celery_delayq.schedule.records import Record
from celery_delayq.schedule.store import ScheduleStore

logger = getLogger(__name__)

#: A configuration whose planners were silent for so long counts no more, in seconds.
CONFIGURATION_LIFETIME_S = 30.0

#: Planners that were silent for longer, and are connected no more, were not there, in seconds; see announce.lua.
GAP_S = 3.0

#: How often a planner that has something to do says that it lives, in ms; one that has not may be silent for longer.
_SIGN_MS = 1000


class Attendance:
    """Says that a planner lives; for one thread at a time. Methods that call the server may raise `redis.RedisError`.

    Args:
        store: where the schedule is.
        configured: what the configuration of this process says.
        is_back: whether this process had a connection before, and lost it.

    Attributes:
        clock: the server's.
        counts: whether the configuration of this process counts.
    """

    def __init__(self, store: ScheduleStore, configured: Configured, *, is_back: bool = False) -> None:
        self.clock = ServerClock()
        self.counts = True
        self._store = store
        self._configured = configured
        #: When this planner said that it lives, ms; see announce.lua for 0 and -1.
        self._announced_ms = -1 if is_back else 0
        #: Since when planners of its app and of any have been there, ms.
        self._since_ms = self._since_of_any_ms = 0

    def now_ms(self) -> int:
        """Return the server's time, unix time in ms."""
        return int(-self.clock.seconds_until(0) * 1000)

    def attended_ms(self, record: Record) -> int:
        """Return since when a planner could have planned an entry at any time, unix time in ms."""
        return self._since_of_any_ms if record.app is None else self._since_ms

    def give_sign(self, *, at_once: bool) -> None:
        """Say that this planner lives, unless it just did; nothing happens if the server refuses, out of memory.

        Args:
            at_once: also if it just did.
        """
        if not at_once and abs(self.now_ms() - self._announced_ms) < _SIGN_MS:
            return
        try:
            self.announce()
        except ReadOnlyError:
            raise
        except ResponseError:  # what it refuses besides is an error of the entry
            return

    def announce(self) -> None:
        """Say that this planner lives; learn which configuration counts, and since when planners have been there."""
        sent = time.monotonic()
        found = self._store.announce(
            self._configured.app,
            self._configured.fingerprint,
            lifetime_s=CONFIGURATION_LIFETIME_S,
            gap_s=GAP_S,
            previous_ms=self._announced_ms,
        )
        self.clock.observe(found.now_ms * 1000, sent, time.monotonic())
        self._announced_ms = found.now_ms
        self._since_ms, self._since_of_any_ms = found.since_ms, found.since_of_any_ms
        counted, self.counts = self.counts, found.configuration == self._configured.fingerprint
        if counted and not self.counts:
            logger.warning(
                "The periodic tasks in the configuration of app %r differ from those of another worker that was "
                "deployed later: its configuration counts, and only what is the same in both is planned here.",
                self._configured.app,
            )

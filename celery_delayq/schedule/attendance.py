"""Attendance: what the planners of one Redis database know of each other, and the server's time.

They know which configuration counts (see `Entries`), and since when planners have been running without a gap. An
occurrence in that time does not count as missed, however late a planner reaches it.
"""

from __future__ import annotations

import time
from logging import getLogger

from redis.exceptions import ReadOnlyError, ResponseError

from celery_delayq.queue.clock import ServerClock
from celery_delayq.schedule.configured import Configured
from celery_delayq.schedule.records import Record
from celery_delayq.schedule.scripts import Announced
from celery_delayq.schedule.store import ScheduleStore

logger = getLogger(__name__)

#: A configuration no longer counts after its planners were silent for this long, in ms.
CONFIGURATION_LIFETIME_MS = 30_000

#: A planner counts as absent if it was silent for longer, in ms, and is not connected; see announce.lua.
GAP_MS = 3000

#: How often a busy planner gives a sign of life, in ms. An idle planner may be silent for longer.
_SIGN_MS = 1000


class Attendance:
    """Gives a planner's signs of life. For one thread at a time. Methods that call the server raise `redis.RedisError`.

    Args:
        store: store of the schedule.
        configured: entries in the configuration of this process.
        is_back: whether this process had a connection before and lost it.

    Attributes:
        clock: the server's clock.
        counts: whether the configuration of this process counts.
    """

    def __init__(self, store: ScheduleStore, configured: Configured, *, is_back: bool = False) -> None:
        self.clock = ServerClock()
        self.counts = True
        self._store = store
        self._configured = configured
        #: The reply to this planner's last sign of life; see announce.lua for the times 0 and -1.
        self._last = Announced("", -1 if is_back else 0, 0, 0)

    def now_ms(self) -> int:
        """Return the server's time, unix time in ms."""
        return int(-self.clock.seconds_until(0) * 1000)

    def attended_ms(self, record: Record) -> int:
        """Return the start of the time in which a planner could always have planned an entry, unix time in ms."""
        return self._last.since_of_any_ms if record.app is None else self._last.since_ms

    def give_sign(self, *, at_once: bool) -> None:
        """Give a sign of life, unless the last one is recent. Does nothing if the server is out of memory and refuses.

        Args:
            at_once: give it even if the last one is recent.
        """
        if not at_once and abs(self.now_ms() - self._last.now_ms) < _SIGN_MS:
            return
        try:
            self.announce()
        except ReadOnlyError:
            raise
        except ResponseError:  # if the server also refuses the entry's own command, that becomes the entry's error
            return

    def announce(self) -> None:
        """Give a sign of life. Learn which configuration counts, and since when planners have been running."""
        sent = time.monotonic()
        found = self._store.announce(
            app=self._configured.app,
            configuration=self._configured.fingerprint,
            lifetime_ms=CONFIGURATION_LIFETIME_MS,
            gap_ms=GAP_MS,
            previous_ms=self._last.now_ms,
        )
        self.clock.observe(found.now_ms * 1000, sent, time.monotonic())
        self._last = found
        counted, self.counts = self.counts, found.configuration == self._configured.fingerprint
        if counted and not self.counts:
            logger.warning(
                "The periodic tasks in the configuration of app %r differ from those of a worker that was deployed "
                "later. The later configuration counts. This worker plans only entries that are the same in both.",
                self._configured.app,
            )

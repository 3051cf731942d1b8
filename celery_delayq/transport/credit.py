"""Credit: how many messages a fetcher may fetch now, and whether the pool needs any yet."""

from __future__ import annotations

import math
import time

from celery_delayq.transfer.lead import LONGEST_LEAD_S
from celery_delayq.transport.protocols import Channel

#: Messages that a worker fetches at once if there is no prefetch limit; others fetch what they ask for.
_UNLIMITED = 20

#: How long to fetch nothing for a busy pool, in seconds.
PATIENCE_S = 0.1


class Credit:
    """Knows the limits of one channel. It belongs to the consuming thread.

    Args:
        channel: a `DelayedChannel`.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        #: Fetch nothing for a busy pool until this time (monotonic); infinite while the pool is not busy.
        self._patient_until = math.inf

    def left(self) -> int:
        """Return how many messages may be fetched while the prefetch limit is not reached.

        Messages that came before they are due take room, see `ahead`.
        """
        qos = self._channel.qos
        connection = self._channel.connection
        room = connection.ahead.room(connection.program.most_ahead())
        if not room:
            connection.cycle.wake_in(LONGEST_LEAD_S)  # a task that is due need not begin: it may be rate-limited
        if "can_consume" in vars(qos):  # Celery's worker_disable_prefetch: one by one
            return int(min(1, room))
        limit = qos.can_consume_max_estimate()
        if limit is None:
            limit = _UNLIMITED if connection.fetches_ahead else 1
        return int(min(max(limit, 1), room))

    @property
    def is_patient(self) -> bool:
        """Whether nothing is fetched for now, see `can_wait`."""
        return time.monotonic() < self._patient_until < math.inf

    def can_wait(self, credit: int) -> bool:
        """Return whether the fetch can wait: the pool is busy, and has more tasks waiting than a fetch could add.

        With early acknowledgement, each task that begins gives credit for one message. Fetching them one by one would
        cost a round trip each. No process is idle while the fetch waits, and whenever a process ends a task, there is
        another look. If tasks take long, the prefetch limit is still used up, a moment later.
        """
        if not self._channel.qos.prefetch_count or self._channel.connection.program.tasks_waiting() <= credit:
            self._patient_until = math.inf
            return False
        now = time.monotonic()
        if self._patient_until == math.inf:
            self._patient_until = now + PATIENCE_S
        if now < self._patient_until:
            self._channel.connection.cycle.wake_in(self._patient_until - now)
            return True
        self._patient_until = math.inf
        return False

"""How transfer loops behave."""

from __future__ import annotations

from dataclasses import dataclass

from celery_delayq.queue import scripts
from celery_delayq.queue.delayed_queue import BATCH_SIZE

#: The largest `batch_size`.
MAX_BATCH_SIZE = scripts.MAX_BATCH_SIZE

#: The longest lead, in seconds, unless the least one is longer.
LONGEST_LEAD_S = 0.1


@dataclass(frozen=True)
class TransferSettings:
    """How transfer loops behave.

    Attributes:
        grace_s: how long the other loops leave due messages to the punctual one, in seconds.
        interval_s: how often a loop looks at its queues without being told, in seconds.
        batch_size: maximum number of messages that one script call moves.
        lead_s: how long before they are due messages move to the queues that this process consumes, in seconds, at
            least; see `Lead`. The consumer has to wait for the rest itself.
    """

    grace_s: float = 0.25
    interval_s: float = 5.0
    batch_size: int = BATCH_SIZE
    lead_s: float = 0.0

    @property
    def grace_ms(self) -> int:
        """The grace period in ms."""
        return round(self.grace_s * 1000)

"""Delayed Celery tasks that wait in Redis, in the layout of Redisson's RDelayedQueue.

Importing the package connects nothing and registers nothing; `DelayQ(app)` does.
"""

from celery_delayq._version import __version__
from celery_delayq.app import DelayQ
from celery_delayq.dead_letters import DeadLetter, DeadLetters
from celery_delayq.delayed_queue import DelayedQueue, Entry
from celery_delayq.errors import (
    ConfigurationError,
    DelayqError,
    DeliveryLimitReached,
    EntryExists,
    InvalidEntry,
    InvalidEta,
    InvalidSchedule,
    LeaseLost,
    UnknownEntry,
    UnsupportedServer,
)
from celery_delayq.schedule.api import PeriodicTask, Schedule

__all__ = [
    "ConfigurationError",
    "DeadLetter",
    "DeadLetters",
    "DelayQ",
    "DelayedQueue",
    "DelayqError",
    "DeliveryLimitReached",
    "Entry",
    "EntryExists",
    "InvalidEntry",
    "InvalidEta",
    "InvalidSchedule",
    "LeaseLost",
    "PeriodicTask",
    "Schedule",
    "UnknownEntry",
    "UnsupportedServer",
    "__version__",
]

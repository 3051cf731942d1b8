"""Delayed Celery tasks that wait in Redis, in the layout of Redisson's RDelayedQueue.

Importing the package connects nothing and registers nothing; `DelayQ(app)` does.
"""

from celery_delayq._version import __version__
from celery_delayq.app import DelayQ
from celery_delayq.dead_letters import DeadLetter, DeadLetters
from celery_delayq.delayed_queue import DelayedQueue
from celery_delayq.entry import Entry
from celery_delayq.errors import (
    ConfigurationError,
    DelayqError,
    DeliveryLimitReached,
    EntryExists,
    InvalidEntry,
    InvalidEta,
    InvalidExport,
    InvalidSchedule,
    LeaseLost,
    NotAllSent,
    UnknownEntry,
    UnsupportedServer,
)
from celery_delayq.inspector.backup import Imported, Released
from celery_delayq.inspector.counts import Counts
from celery_delayq.inspector.pages import Page
from celery_delayq.inspector.task import ScheduledTask
from celery_delayq.schedule.api import Schedule
from celery_delayq.schedule.periodic_task import PeriodicTask

__all__ = [
    "ConfigurationError",
    "Counts",
    "DeadLetter",
    "DeadLetters",
    "DelayQ",
    "DelayedQueue",
    "DelayqError",
    "DeliveryLimitReached",
    "Entry",
    "EntryExists",
    "Imported",
    "InvalidEntry",
    "InvalidEta",
    "InvalidExport",
    "InvalidSchedule",
    "LeaseLost",
    "NotAllSent",
    "Page",
    "PeriodicTask",
    "Released",
    "Schedule",
    "ScheduledTask",
    "UnknownEntry",
    "UnsupportedServer",
    "__version__",
]

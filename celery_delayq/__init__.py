"""Delayed Celery tasks that wait in Redis, in the layout of Redisson's RDelayedQueue.

Importing the package connects nothing and registers nothing; `DelayQ(app)` and `register()` do. If neither was called,
the use of a `delayq` URL is an error that says so. A public name is imported when it is asked for: kombu imports this
package wherever it is installed, and most processes need none of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from celery_delayq.basics.version import __version__

if TYPE_CHECKING:
    from celery_delayq.app import DelayQ
    from celery_delayq.basics.errors import (
        ConfigurationError,
        DelayqError,
        DeliveryLimitReached,
        EntryExists,
        InvalidEntry,
        InvalidEta,
        InvalidExport,
        InvalidSchedule,
        KeyHeld,
        LeaseLost,
        NaiveEtaWarning,
        NotAllSent,
        UnknownEntry,
        UnknownQueue,
        UnknownTask,
        UnsupportedServer,
    )
    from celery_delayq.basics.finding import Finding
    from celery_delayq.inspector.backup import Imported, Released
    from celery_delayq.inspector.bulk import Chunk
    from celery_delayq.inspector.consumers import Consumers
    from celery_delayq.inspector.counts import Counts
    from celery_delayq.inspector.histogram import Histogram
    from celery_delayq.inspector.history import History
    from celery_delayq.inspector.pages import Page
    from celery_delayq.inspector.task import ScheduledTask
    from celery_delayq.options.task import Task
    from celery_delayq.options.throttle import Throttle
    from celery_delayq.options.unique import Unique
    from celery_delayq.queue.dead_letter import DeadLetter
    from celery_delayq.queue.dead_letters import DeadChunk, DeadLetters, DeadPage
    from celery_delayq.queue.delayed_queue import DelayedQueue
    from celery_delayq.queue.entry import Entry
    from celery_delayq.schedule.api import Schedule
    from celery_delayq.schedule.periodic_task import PeriodicTask
    from celery_delayq.schemes import register
    from celery_delayq.transport.replicas import NotReplicated

__all__ = [
    "Chunk",
    "ConfigurationError",
    "Consumers",
    "Counts",
    "DeadChunk",
    "DeadLetter",
    "DeadLetters",
    "DeadPage",
    "DelayQ",
    "DelayedQueue",
    "DelayqError",
    "DeliveryLimitReached",
    "Entry",
    "EntryExists",
    "Finding",
    "Histogram",
    "History",
    "Imported",
    "InvalidEntry",
    "InvalidEta",
    "InvalidExport",
    "InvalidSchedule",
    "KeyHeld",
    "LeaseLost",
    "NaiveEtaWarning",
    "NotAllSent",
    "NotReplicated",
    "Page",
    "PeriodicTask",
    "Released",
    "Schedule",
    "ScheduledTask",
    "Task",
    "Throttle",
    "Unique",
    "UnknownEntry",
    "UnknownQueue",
    "UnknownTask",
    "UnsupportedServer",
    "__version__",
    "register",
]

#: Which module has a public name; errors has the others.
_MODULES = {
    "Chunk": "inspector.bulk",
    "Consumers": "inspector.consumers",
    "Counts": "inspector.counts",
    "DeadChunk": "queue.dead_letters",
    "DeadLetter": "queue.dead_letter",
    "DeadLetters": "queue.dead_letters",
    "DeadPage": "queue.dead_letters",
    "DelayQ": "app",
    "DelayedQueue": "queue.delayed_queue",
    "Entry": "queue.entry",
    "Finding": "basics.finding",
    "Histogram": "inspector.histogram",
    "History": "inspector.history",
    "Imported": "inspector.backup",
    "NotReplicated": "transport.replicas",
    "Page": "inspector.pages",
    "PeriodicTask": "schedule.periodic_task",
    "Released": "inspector.backup",
    "Schedule": "schedule.api",
    "ScheduledTask": "inspector.task",
    "Task": "options.task",
    "Throttle": "options.throttle",
    "Unique": "options.unique",
    "register": "schemes",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_MODULES.get(name, 'basics.errors')}"), name)
    globals()[name] = found
    return found

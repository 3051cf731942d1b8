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
    InvalidEntry,
    InvalidEta,
    LeaseLost,
    NotAllSent,
    UnsupportedServer,
)

__all__ = [
    "ConfigurationError",
    "DeadLetter",
    "DeadLetters",
    "DelayQ",
    "DelayedQueue",
    "DelayqError",
    "DeliveryLimitReached",
    "Entry",
    "InvalidEntry",
    "InvalidEta",
    "LeaseLost",
    "NotAllSent",
    "UnsupportedServer",
    "__version__",
]

"""What can go wrong, one class per thing a caller can act on."""

from __future__ import annotations


class DelayqError(Exception):
    """Base of all errors that this package raises by itself."""


class ConfigurationError(DelayqError, ValueError):
    """An option or setting is misspelt, of the wrong type, out of range or contradictory."""


class InvalidEta(DelayqError, ValueError):
    """The eta of a message is not a time."""


class UnsupportedServer(DelayqError, RuntimeError):
    """The Redis server lacks a feature that the package cannot do without."""


class InvalidEntry(DelayqError, ValueError):
    """The bytes are not an entry in either of Redisson's packings."""


class LeaseLost(DelayqError, ConnectionError):
    """A consumer was silent for longer than its lease, and others took over its messages.

    A `ConnectionError`, so that Celery and kombu connect anew, and drop what they have not begun.
    """


class DeliveryLimitReached(DelayqError, RuntimeError):
    """A message was delivered too often without an acknowledgement; the result of its task fails with this."""


class InvalidSchedule(DelayqError, ValueError):
    """A periodic task is not defined as it must be; says what is wrong."""


class UnknownEntry(DelayqError, LookupError):
    """There is no periodic task of that name."""


class EntryExists(DelayqError, ValueError):
    """There is a periodic task of that name already, or the configuration has it."""

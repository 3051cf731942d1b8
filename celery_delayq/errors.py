"""What can go wrong, one class per thing a caller can act on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


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


class InvalidExport(DelayqError, ValueError):
    """A file of exported tasks is cut off, of another version, or garbage; the message names the line."""


class LeaseLost(DelayqError, ConnectionError):
    """A consumer was silent for too long, and others took over its messages.

    A `ConnectionError`, so that Celery and kombu connect anew, and drop what they have not begun.
    """


class DeliveryLimitReached(DelayqError, RuntimeError):
    """A message was delivered too often without an acknowledgement; the result of its task fails with this."""


class NotAllSent(DelayqError, RuntimeError):
    """Of many tasks, some were not sent; the message names the first error.

    To go on: send what is in `failed` (once it can be), and the rest.

    Attributes:
        sent: how many tasks were sent.
        results: of the tasks that were sent, in order; empty if the caller wanted none.
        failed: signature and error of tasks that were not sent.
        uncertain: signatures of tasks that were sent or not: the connection was lost, or a message was for several
            queues. They have their task ids: `cancel(signature.id)` before a delayed one is sent again.
    """

    def __init__(
        self,
        message: str,  # alone, so that the error of a task can be stored as its result
        *,
        sent: int = 0,
        results: Sequence[Any] = (),
        failed: Sequence[tuple[Any, Exception]] = (),
        uncertain: Sequence[Any] = (),
    ) -> None:
        self.sent = sent
        self.results = list(results)
        self.failed = list(failed)
        self.uncertain = list(uncertain)
        super().__init__(message)


class InvalidSchedule(DelayqError, ValueError):
    """A periodic task is not defined as it must be; says what is wrong."""


class UnknownEntry(DelayqError, LookupError):
    """There is no periodic task of that name."""


class EntryExists(DelayqError, ValueError):
    """There is a periodic task of that name already, or the configuration has it."""

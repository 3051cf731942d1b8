"""The errors of this package: one class for each problem that a caller can act on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class DelayqError(Exception):
    """Base class of all errors that this package defines."""


class ConfigurationError(DelayqError, ValueError):
    """An option or setting is misspelt, of the wrong type, out of range or contradictory."""


class InvalidEta(DelayqError, ValueError):
    """The eta of a message cannot be parsed as a time."""


class NaiveEtaWarning(UserWarning):
    """An eta without a time zone is taken as UTC, as in Celery, and local time is another."""


class UnsupportedServer(DelayqError, RuntimeError):
    """The Redis server lacks a feature that the package needs."""


class InvalidEntry(DelayqError, ValueError):
    """The bytes are not a valid entry in either of Redisson's two packings."""


class InvalidExport(DelayqError, ValueError):
    """An export file is cut off, has an unknown version, or is garbage. The message names the line.

    Attributes:
        imported: how many tasks of the lines before it were stored, or waited already.
    """

    imported = 0


class LeaseLost(DelayqError, ConnectionError):
    """A consumer did not renew its lease in time, and others took over its messages; or these were deleted.

    It is a `ConnectionError`, so that Celery and kombu reconnect and drop the tasks that they have not started.
    """


class DeliveryLimitReached(DelayqError, RuntimeError):
    """A message was delivered too often without being acknowledged. The result of its task fails with this error."""


class NotAllSent(DelayqError, RuntimeError):
    """A bulk call sent only some of its tasks. The message names the first error.

    To continue, send the tasks in `failed` again (once the cause is gone), and then the rest.

    Attributes:
        sent: number of tasks that were sent.
        results: results of the tasks that were sent, in order. Empty if the caller asked for none.
        failed: signature and error of each task that was not sent.
        uncertain: signatures of tasks that may or may not have been sent: the connection was lost, or the message
            goes to several queues. They have task ids: call `cancel(signature.id)` before you send a delayed one
            again.
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


class KeyHeld(DelayqError, RuntimeError):
    """A task was not sent: another one holds its unique key, and `on_conflict` is "raise".

    Attributes:
        key: the key.
        task_id: id of the task that holds it.
    """

    def __init__(self, key: str, task_id: str) -> None:
        self.key = key
        self.task_id = task_id
        super().__init__(key, task_id)

    def __str__(self) -> str:
        return f"the task was not sent: task {self.task_id} holds the unique key {self.key!r}"


class InvalidSchedule(DelayqError, ValueError):
    """The definition of a periodic task is invalid. The message says what is wrong."""


class UnknownEntry(DelayqError, LookupError):
    """There is no periodic task of that name."""


class _Unknown(DelayqError, LookupError):
    def __init__(self, message: str, near: Sequence[str] = ()) -> None:
        self.near = tuple(near)
        super().__init__(message)


class UnknownQueue(_Unknown):
    """There is no queue of that name: the app has none, no task was published to it, and nothing waits for it.

    Attributes:
        near: similar names.
    """


class UnknownTask(_Unknown):
    """Nothing was found for a name of a task that the app does not know, and it knows a similar one.

    If another program has the task, name it by a signature, which is not checked: `app.signature(name)`.

    Attributes:
        near: similar names.
    """


class EntryExists(DelayqError, ValueError):
    """A periodic task of that name exists already, at run time or in the configuration."""

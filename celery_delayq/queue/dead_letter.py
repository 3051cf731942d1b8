"""A dead letter, or a failed task that is kept: what is known of it, and how it is stored. Knows only Redis.

The record of a letter is a line of JSON with what is known of it, a newline, and the message. Readers ignore further
fields.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from types import NoneType
from typing import Any

from celery_delayq.basics.times import to_datetime

#: Reasons.
DELIVERY_LIMIT = "delivery-limit"
NOT_A_MESSAGE = "not-a-message"
NOT_AN_ENTRY = "not-an-entry"
INVALID_TASK = "invalid-task"
FAILED = "failed"

#: Those of dead letters, and all.
DEAD = (DELIVERY_LIMIT, NOT_A_MESSAGE, NOT_AN_ENTRY, INVALID_TASK)
REASONS = (*DEAD, FAILED)


@dataclass(frozen=True)
class DeadLetter:
    """A message that was set aside, or whose task has failed.

    Attributes:
        list_name: full name of its broker list.
        at: when it was set aside, by the server's clock: aware, in UTC.
        id: identifies it in its list.
        reason: `delivery-limit`, `not-a-message` (not a kombu message), `invalid-task` (no Celery worker can process
            it), `not-an-entry` (not an entry of a delayed queue, or its record is damaged), or `failed`.
        message: bytes of the message.
        deliveries: how many deliveries, or rejections, counted towards the limit; None if unknown.
        error: what is wrong with an invalid task, what the task did that was delivered too often, or type and text of
            the exception with which it failed; None if unknown.
        traceback: the last 20 kB of that of a failed task.
        worker: name of the worker in which a task failed.
        runs: how many times a failed task has run.
        is_failure: whether it is a failed task, even if its record is damaged.
    """

    list_name: str
    at: datetime
    id: str
    reason: str
    message: bytes
    deliveries: int | None = None
    error: str | None = None
    traceback: str | None = None
    worker: str | None = None
    runs: int | None = None
    is_failure: bool = False

    @cached_property
    def headers(self) -> dict[str, Any]:
        """All headers of the message; empty if it is none."""
        try:
            headers = json.loads(self.message)["headers"]
        except (ValueError, TypeError, KeyError, RecursionError):
            return {}
        return headers if isinstance(headers, dict) else {}

    @property
    def task(self) -> Any:
        """The name of the task, as the message states it; None if it does not."""
        return self.headers.get("task")

    @property
    def task_id(self) -> Any:
        """The id of the task, as the message states it; None if it does not."""
        return self.headers.get("id")

    def __repr__(self) -> str:
        task = f" {self.task}[{self.task_id}]" if self.task else ""
        return f"<DeadLetter {self.id!r}{task} {self.reason} at {self.at.isoformat()} in {self.list_name!r}>"


#: What a record may say, and of which type it is.
_FIELDS = {"deliveries": int, "error": str, "traceback": str, "worker": str, "runs": int}


def pack(message: bytes, *, reason: str, **known: str | int | None) -> bytes:
    """Return the record of a message.

    Args:
        message: its bytes.
        reason: one of `REASONS`.
        known: other attributes of a `DeadLetter`.
    """
    head = {"reason": reason, **{name: value for name, value in known.items() if value is not None}}
    return json.dumps(head).encode() + b"\n" + message


def unpack(list_name: str, at_ms: int, letter_id: str, record: bytes, *, is_failure: bool = False) -> DeadLetter:
    """Return the letter with this record."""
    at = to_datetime(at_ms)
    first, _, message = record.partition(b"\n")
    try:
        head: Any = json.loads(first)
        known = {name: head.get(name) for name in _FIELDS}
        if type(head["reason"]) is str and all(type(known[name]) in (kind, NoneType) for name, kind in _FIELDS.items()):
            return DeadLetter(list_name, at, letter_id, head["reason"], message, is_failure=is_failure, **known)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    return DeadLetter(list_name, at, letter_id, NOT_AN_ENTRY, record, is_failure=is_failure)


def reason_of(record: bytes) -> str:
    """Return the reason that a record states."""
    return unpack("", 0, "", record).reason

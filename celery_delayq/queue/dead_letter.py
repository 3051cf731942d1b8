"""A dead letter: a message that was set aside, and its record.

A record is a line of JSON with what is known of the letter, a newline, and the message. Readers ignore further fields.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

#: Reasons.
DELIVERY_LIMIT = "delivery-limit"
NOT_A_MESSAGE = "not-a-message"
NOT_AN_ENTRY = "not-an-entry"
INVALID_TASK = "invalid-task"

#: All of them.
REASONS = (DELIVERY_LIMIT, NOT_A_MESSAGE, NOT_AN_ENTRY, INVALID_TASK)

_NONE = type(None)


@dataclass(frozen=True)
class DeadLetter:
    """A message that was set aside.

    Attributes:
        id: identifies it; the server chose it.
        at_ms: when it was set aside, unix time in ms, by the server's clock.
        reason: `delivery-limit`, `not-a-message` (not a kombu message), `invalid-task` (no Celery worker can process
            it), or `not-an-entry` (not an entry of a delayed queue, or its record is damaged).
        message: bytes of the message.
        deliveries: how many times it was delivered without an acknowledgement; None if unknown.
        error: what is wrong with an invalid task; None for other reasons.
    """

    id: str
    at_ms: int
    reason: str
    message: bytes
    deliveries: int | None = None
    error: str | None = None


def pack(message: bytes, *, reason: str, deliveries: int | None = None, error: str | None = None) -> bytes:
    """Return the record of a message. When it is written, the server adds its id and its time."""
    head = {"reason": reason, "deliveries": deliveries, "error": error}
    return json.dumps({name: value for name, value in head.items() if value is not None}).encode() + b"\n" + message


def unpack(letter_id: str, at_ms: int, record: bytes) -> DeadLetter:
    """Return the letter with this record."""
    first, _, message = record.partition(b"\n")
    try:
        head: Any = json.loads(first)
        reason, deliveries, error = head["reason"], head.get("deliveries"), head.get("error")
        if type(reason) is str and type(deliveries) in (int, _NONE) and type(error) in (str, _NONE):
            return DeadLetter(letter_id, at_ms, reason, message, deliveries, error)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    return DeadLetter(letter_id, at_ms, NOT_AN_ENTRY, record)


def reason_of(record: bytes) -> str:
    """Return the reason that a record states."""
    return unpack("", 0, record).reason

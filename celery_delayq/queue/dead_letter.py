"""A dead letter: a message that was set aside, and how it is stored.

A dead list holds two kinds of elements:

    b'{"reason": ..., "at_ms": ..., "deliveries": ...}' + newline + message    written by consumers; may have "error"
    anything else                                                             entries that `transfer.lua` set aside
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
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
        id: identifies it in its list; a hash of the stored bytes.
        reason: `delivery-limit`, `not-a-message` (not a kombu message), `invalid-task` (no Celery worker can process
            it), or `not-an-entry` (not an entry of a delayed queue).
        at_ms: when it was set aside, unix time in ms; None if unknown.
        deliveries: how many times it was delivered without an acknowledgement; None if unknown.
        message: bytes of the message.
        raw: the stored bytes.
        error: what is wrong with an invalid task; None for other reasons.
        position: its index in the list when it was read, 0 for the oldest; None if it was not read from a list. Letters
            move to lower positions when others before them are requeued or purged.
    """

    id: str
    reason: str
    at_ms: int | None
    deliveries: int | None
    message: bytes
    raw: bytes
    error: str | None = None
    position: int | None = field(default=None, compare=False, repr=False)


def pack(message: bytes, *, reason: str, at_ms: int, deliveries: int | None = None, error: str | None = None) -> bytes:
    """Return the bytes to store for a message."""
    head = {"reason": reason, "at_ms": at_ms, "deliveries": deliveries}
    if error is not None:
        head["error"] = error
    return json.dumps(head).encode() + b"\n" + message


def id_of(raw: bytes) -> str:
    """Return the id of the letter that is stored as `raw`."""
    return hashlib.blake2b(raw, digest_size=8).hexdigest()


def unpack(raw: bytes, position: int | None = None) -> DeadLetter:
    """Return the letter that is stored as `raw`, at this index of its list."""
    letter_id = id_of(raw)
    first, newline, message = raw.partition(b"\n")
    try:
        head: Any = json.loads(first) if newline else None
        reason, at_ms, deliveries, error = head["reason"], head["at_ms"], head["deliveries"], head.get("error")
        if isinstance(reason, str) and {type(at_ms), type(deliveries)} <= {int, _NONE} and type(error) in (str, _NONE):
            return DeadLetter(letter_id, reason, at_ms, deliveries, message, raw, error, position)
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    return DeadLetter(letter_id, NOT_AN_ENTRY, None, None, raw, raw, position=position)


def reason_of(raw: bytes) -> str:
    """Return the reason of the letter that is stored as `raw`."""
    return unpack(raw).reason

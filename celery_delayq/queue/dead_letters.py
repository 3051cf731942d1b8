"""Dead letters: messages of a broker list that were set aside, with the reason. Knows only Redis.

A dead list holds two kinds of elements:

    b'{"reason": ..., "at_ms": ..., "deliveries": ...}' + newline + message    written by consumers; may have "error"
    anything else                                                             entries that `transfer.lua` set aside
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import redis
from redis.client import NEVER_DECODE

from celery_delayq.queue import keys, scripts

#: Reasons.
DELIVERY_LIMIT = "delivery-limit"
NOT_A_MESSAGE = "not-a-message"
NOT_AN_ENTRY = "not-an-entry"
INVALID_TASK = "invalid-task"

#: All of them.
REASONS = (DELIVERY_LIMIT, NOT_A_MESSAGE, NOT_AN_ENTRY, INVALID_TASK)

_NONE = type(None)

#: Number of elements that one command reads from a dead list.
_PAGE = 100


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
    """

    id: str
    reason: str
    at_ms: int | None
    deliveries: int | None
    message: bytes
    raw: bytes
    error: str | None = None


def pack(message: bytes, *, reason: str, at_ms: int, deliveries: int | None = None, error: str | None = None) -> bytes:
    """Return the bytes to store for a message."""
    head = {"reason": reason, "at_ms": at_ms, "deliveries": deliveries}
    if error is not None:
        head["error"] = error
    return json.dumps(head).encode() + b"\n" + message


def unpack(raw: bytes) -> DeadLetter:
    """Return the letter that is stored as `raw`."""
    letter_id = hashlib.blake2b(raw, digest_size=8).hexdigest()
    first, newline, message = raw.partition(b"\n")
    try:
        head: Any = json.loads(first) if newline else None
        reason, at_ms, deliveries, error = head["reason"], head["at_ms"], head["deliveries"], head.get("error")
        if isinstance(reason, str) and {type(at_ms), type(deliveries)} <= {int, _NONE} and type(error) in (str, _NONE):
            return DeadLetter(letter_id, reason, at_ms, deliveries, message, raw, error)
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    return DeadLetter(letter_id, NOT_AN_ENTRY, None, None, raw, raw)


def reason_of(raw: bytes) -> str:
    """Return the reason of the letter that is stored as `raw`."""
    return unpack(raw).reason


class DeadLetters:
    """The dead list of a broker list. Safe to share between threads if the client is.

    Every method raises `redis.RedisError` if the server is away or refuses a command.

    Args:
        client: any `redis.Redis`.
        name: full name of the broker list.
        writer: executes `requeue`; by default `client`. See `DelayedQueue`.
    """

    def __init__(self, client: redis.Redis, name: str, *, writer: redis.Redis | None = None) -> None:
        self.client = client
        self.writer = client if writer is None else writer
        self.name = name
        self.keys = keys.QueueKeys.of(name)

    def __len__(self) -> int:
        return int(self.client.llen(self.keys.dead))

    def __iter__(self) -> Iterator[DeadLetter]:
        """Yield the letters, oldest first."""
        start = 0
        while True:
            page: list[bytes] = self.client.execute_command(
                "LRANGE", self.keys.dead, start, start + _PAGE - 1, **{NEVER_DECODE: True}
            )
            yield from map(unpack, page)
            if len(page) < _PAGE:
                return
            start += len(page)

    def find(self, letter_id: str) -> DeadLetter | None:
        """Return a letter by its id, or None."""
        return next((letter for letter in self if letter.id == letter_id), None)

    def requeue(self, letter: DeadLetter, message: bytes | None = None) -> bool:
        """Move a message to the back of its broker list. One atomic script.

        Args:
            letter: the letter.
            message: replaces the letter's message.

        Returns:
            False if the letter is no longer in the dead list.

        Raises:
            ValueError: the letter is not a message, so no worker could process it.
        """
        if letter.reason == NOT_AN_ENTRY:
            raise ValueError(f"cannot requeue dead letter {letter.id}: it is not a message. To delete it, use purge()")
        return scripts.revive(self.writer, self.keys, raw=letter.raw, message=message or letter.message)

    def purge(self, letter: DeadLetter | None = None) -> int:
        """Remove one letter, or all. Returns how many were removed. Atomic."""
        if letter is not None:
            return int(self.client.lrem(self.keys.dead, 1, letter.raw))  # type: ignore[arg-type]
        with self.client.pipeline(transaction=True) as pipe:
            pipe.llen(self.keys.dead)
            pipe.unlink(self.keys.dead)
            return int(pipe.execute()[0])

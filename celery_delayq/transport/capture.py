"""Catch task messages instead of sending them, so that a caller can let Celery build a message and offer it itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from celery_delayq.queue.holds import Claim


@dataclass(frozen=True)
class Caught:
    """A message that was not sent.

    Attributes:
        broker_list: the full name of the list that it was meant for.
        message_id: the id of the task.
        due_ms: its eta, unix time in ms; None if it has no eta.
        payload: the message in the form in which it would have been stored.
        message: the same as a dict.
        claim: the unique key that it claims.
    """

    broker_list: str
    message_id: str
    due_ms: int | None
    payload: bytes
    message: Mapping[str, Any]
    claim: Claim | None = None


@dataclass
class Captured:
    """The caught messages of one task.

    Attributes:
        task_id: id of the task whose messages are caught; all other messages are sent.
        messages: the caught messages, one per broker list.
        broadcast: whether the message would also have gone to a fanout exchange.
    """

    task_id: str
    messages: list[Caught] = field(default_factory=list)
    broadcast: bool = False


_captured: ContextVar[Captured | None] = ContextVar("celery_delayq.captured", default=None)


@contextmanager
def capture(task_id: str) -> Iterator[Captured]:
    """Catch the messages of a task that this thread or greenlet publishes within the block, on any channel."""
    captured = Captured(task_id)
    token = _captured.set(captured)
    try:
        yield captured
    finally:
        _captured.reset(token)


def captured_for(message: dict[str, Any]) -> Captured | None:
    """Return the capture that catches a message; None if the message has to be sent."""
    captured = _captured.get()
    if captured is None:
        return None
    # With Celery's protocol 1, the id of a task is not in the headers.
    ids = (message.get("headers") or {}).get("id"), message["properties"].get("correlation_id")
    return captured if captured.task_id in ids else None

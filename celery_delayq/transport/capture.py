"""Catch task messages instead of sending them: for whoever lets Celery build a message, and offers it himself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Caught:
    """A message that was not sent.

    Attributes:
        broker_list: the full name of the list for which it was meant.
        message_id: the id of the task.
        due_ms: when it is due by its eta, unix time in ms; None if it has none.
        payload: the message as it would have been stored.
        message: the same as a dict.
    """

    broker_list: str
    message_id: str
    due_ms: int | None
    payload: bytes
    message: Mapping[str, Any]


@dataclass
class Net:
    """What is caught.

    Attributes:
        task_id: of the task whose messages are caught; all others are sent.
        messages: what was caught, one for each broker list.
        broadcast: whether it would have gone to a fanout exchange, too.
    """

    task_id: str
    messages: list[Caught] = field(default_factory=list)
    broadcast: bool = False


_net: ContextVar[Net | None] = ContextVar("celery_delayq.net", default=None)


@contextmanager
def capture(task_id: str) -> Iterator[Net]:
    """Catch the messages of a task that this thread or greenlet publishes in this block, on whatever channel."""
    net = Net(task_id)
    token = _net.set(net)
    try:
        yield net
    finally:
        _net.reset(token)


def net_for(message: dict[str, object]) -> Net | None:
    """Return where a message is to be caught, None if it is to be sent."""
    net = _net.get()
    headers = message.get("headers")
    if net is None or not isinstance(headers, dict) or headers.get("id") != net.task_id:
        return None
    return net

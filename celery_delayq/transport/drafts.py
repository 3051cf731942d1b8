"""Drafts: what Celery would publish, as Redis commands for a transaction of the caller's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery_delayq import codec, scripts
from celery_delayq.transport.capture import Caught, capture


def drafts(channel: Any, task_id: str, publish: Callable[[], object]) -> list[tuple[Any, ...]]:
    """Return one command for each message of a task that `publish` publishes, and send nothing.

    A message with an eta is offered to its delayed queue, also where that is past: it is transferred at once then.

    Args:
        channel: one of our transport.
        task_id: of the task.
        publish: called once.
    """
    with capture(task_id) as net:
        publish()
    return [_command(channel, caught) for caught in net.messages]


def _command(channel: Any, caught: Caught) -> tuple[Any, ...]:
    if caught.due_ms is None:
        return "lpush", caught.broker_list, caught.payload
    queue = channel.delayed_queue(caught.broker_list)
    queue.register()
    keys, args = scripts.offer_command(
        queue.keys,
        due_ms=caught.due_ms,
        message_key=codec.message_key(caught.message_id),
        payload=caught.payload,
        mirrored=channel.mirror_list,
    )
    # EVAL and not EVALSHA: in a transaction no one could answer NOSCRIPT.
    return "eval", scripts.load("offer").text, len(keys), *keys, *args

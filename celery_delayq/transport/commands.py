"""Messages that Celery would publish, as Redis commands for a pipeline of the caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery_delayq.queue import codec, scripts
from celery_delayq.queue.attempt import Attempt
from celery_delayq.transport.capture import Caught, capture


def publish_commands(
    channel: Any, task_id: str, publish: Callable[[], object], attempt: Attempt | None = None
) -> list[tuple[Any, ...]]:
    """Return one command for each message that `publish` publishes for a task; send nothing.

    A message with an eta is offered to its delayed queue. If the eta is past, it is transferred at once.

    Args:
        channel: a channel of our transport.
        task_id: id of the task.
        publish: function that publishes the task; called once.
        attempt: makes a message with an eta the same publication each time, whatever its task id; None if it is
            published once.
    """
    with capture(task_id) as captured:
        publish()
    return [_command(channel, caught, attempt) for caught in captured.messages]


def _command(channel: Any, caught: Caught, attempt: Attempt | None) -> tuple[Any, ...]:
    if caught.due_ms is None:
        return "lpush", caught.broker_list, caught.payload
    queue = channel.delayed_queue(caught.broker_list)
    queue.register()
    call = scripts.offer(
        queue.keys,
        due_ms=caught.due_ms,
        message_key=codec.message_key(caught.message_id),
        payload=caught.payload,
        mirrored=channel.mirror_list,
        attempt=attempt,
    )
    # By its text: a pipeline has no answer to NOSCRIPT.
    return call.by_text()

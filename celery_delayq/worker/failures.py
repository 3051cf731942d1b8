"""Store the failure of tasks whose messages were set aside, so that nobody waits for their results for ever."""

from __future__ import annotations

from logging import getLogger
from typing import Any

from celery_delayq.basics.errors import DeliveryLimitReached
from celery_delayq.transport.messages import decode_task, request_of
from celery_delayq.transport.redelivery import deliveries

logger = getLogger(__name__)


def fail_task(app: Any, name: str, raw: bytes) -> None:
    """Set the result of a task to FAILURE, with DeliveryLimitReached. Its chord, chain and errbacks are told.

    Never raises, so that the caller, who set the message aside, can go on. Only a task message of Celery's protocol 2
    has a result; other messages are ignored.

    Args:
        app: the Celery app.
        name: the broker list.
        raw: the message as it was last delivered.
    """
    message = decode_task(raw)
    if message is None:
        return
    headers = message["headers"]
    task_id, task = headers["id"], headers["task"]
    error = DeliveryLimitReached(
        f"task {task}[{task_id}] was delivered {deliveries(message) + 1} times without an acknowledgement: it probably "
        f"killed its workers. Its message is in the dead list of {name!r}"
    )
    try:
        request = request_of(app, message, unpickles=True)
        app.backend.mark_as_failure(task_id, error, request=request, store_result=not headers.get("ignore_result"))
    except Exception as exc:
        logger.error("Cannot store the failure of task %s[%s]: %s: %s", task, task_id, type(exc).__name__, exc)

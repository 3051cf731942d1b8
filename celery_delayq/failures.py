"""Store the failure of tasks whose messages were set aside, so that nobody waits for their results for ever."""

from __future__ import annotations

import base64
from logging import getLogger
from typing import Any

from celery.app.task import Context
from kombu.message import Message
from kombu.serialization import prepare_accept_content

from celery_delayq.errors import DeliveryLimitReached
from celery_delayq.transport.redelivery import decode, deliveries

logger = getLogger(__name__)


def fail_task(app: Any, name: str, raw: bytes) -> None:
    """Make the result of a task FAILURE, with DeliveryLimitReached; its chord, chain and errbacks learn of it.

    Never raises: whoever set the message aside goes on. What is no task message of Celery's protocol 2 has no result.

    Args:
        app: the Celery app.
        name: the broker list.
        raw: the message as it was delivered last.
    """
    message = decode(raw)
    headers = (message or {}).get("headers")
    if message is None or not isinstance(headers, dict) or not {"id", "task"} <= headers.keys():
        return
    task_id, task = headers["id"], headers["task"]
    error = DeliveryLimitReached(
        f"task {task}[{task_id}] was delivered {deliveries(message) + 1} times without an acknowledgement, as if it "
        f"killed its workers; its message is in the dead list of {name!r}"
    )
    try:
        request = Context({**headers, **_body(app, message)}, delivery_info=message["properties"].get("delivery_info"))
        app.backend.mark_as_failure(task_id, error, request=request, store_result=not headers.get("ignore_result"))
    except Exception:
        logger.exception("Cannot store the failure of task %s[%s]", task, task_id)


def _body(app: Any, message: dict[str, Any]) -> dict[str, Any]:
    """Return arguments, callbacks, chain and chord of a task; nothing if its body cannot be decoded here."""
    body = message.get("body")
    if message["properties"].get("body_encoding") == "base64":
        body = base64.b64decode(body or b"")
    try:
        args, kwargs, embed = Message(
            body=body,
            content_type=message.get("content-type"),
            content_encoding=message.get("content-encoding"),
            headers=message["headers"],
            properties=message["properties"],
            accept=prepare_accept_content(app.conf.accept_content),
        ).payload
    except Exception:
        logger.warning(
            "Cannot decode the body of task %s: its chord and chain do not learn of its failure",
            message["headers"]["id"],
        )
        return {}
    return {"args": args, "kwargs": kwargs, **embed}

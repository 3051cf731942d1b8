"""Celery's task messages (protocol 2) as they are stored in Redis, and the request that a worker makes of one."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from logging import getLogger
from typing import Any

from celery.app.task import Context
from kombu.message import Message
from kombu.serialization import prepare_accept_content

from celery_delayq.transport.redelivery import decode

logger = getLogger(__name__)


def task_message(raw: bytes) -> dict[str, Any] | None:
    """Return a stored message, its body as it is; None if it is not that of a task, with texts for id and name."""
    message = decode(raw)
    headers = message.get("headers") if message is not None else None
    if not isinstance(headers, dict):
        return None
    return message if isinstance(headers.get("id"), str) and isinstance(headers.get("task"), str) else None


def request_of(app: Any, message: dict[str, Any]) -> Context:
    """Return the request of a task, with arguments, callbacks, chain and chord.

    A body that cannot be decoded here, since `accept_content` does not allow it for example, is left out, with a
    warning.
    """
    try:
        args, kwargs, embed = body_of(message, prepare_accept_content(app.conf.accept_content))
        body = {"args": args, "kwargs": kwargs, **embed}
    except Exception:
        logger.warning(
            "Cannot decode the body of task %s: its chord and chain do not learn what became of it",
            message["headers"]["id"],
        )
        body = {}
    # As `celery.worker.request.Request` has them; the rpc result backend answers to `reply_to`.
    properties = {name: message["properties"].get(name) for name in ("delivery_info", "reply_to", "correlation_id")}
    return Context({**message["headers"], **body, **properties})


def body_of(message: Mapping[str, Any], accept: Iterable[str]) -> tuple[Any, Any, dict[str, Any]]:
    """Decode the body of a task message: args, kwargs and the rest, if its content type is one of `accept`.

    Raises:
        Exception: of any kind; `kombu.exceptions.ContentDisallowed` if the type is another.
    """
    args, kwargs, embed = payload_of(message, accept)
    return args, kwargs, embed


def payload_of(message: Mapping[str, Any], accept: Iterable[str]) -> Any:
    """Decode the body of a message, whatever it is; see `body_of`."""
    body = message.get("body")
    if message["properties"].get("body_encoding") == "base64":
        body = base64.b64decode(body or b"")
    return Message(
        body=body,
        content_type=message.get("content-type"),
        content_encoding=message.get("content-encoding"),
        headers=message.get("headers"),
        properties=message["properties"],
        accept=set(accept),
    ).payload

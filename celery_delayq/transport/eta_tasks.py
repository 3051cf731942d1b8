"""Tasks that a worker fetches long before their eta: they wait in Redis, like those that were delayed.

A stock producer sent them, or `release`, or a stock worker left them in `unacked`. Celery would hold each of them in
the worker's memory, and its message in flight, until it is due.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from logging import getLogger
from typing import Any

from redis import exceptions

from celery_delayq.connections import NOT_SERVING
from celery_delayq.consumer import Consumer
from celery_delayq.errors import InvalidEta
from celery_delayq.transport.eta import DUE_PROPERTY, eta_ms_of, seconds_until

logger = getLogger(__name__)

#: A worker holds what is due sooner, in seconds: it would hardly have left the worker when it comes back.
_SOON_S = 1.0


class EtaTasks:
    """Sends tasks with an eta from a consumer to their delayed queues. For the thread that consumes.

    Args:
        channel: a `DelayedChannel`.
    """

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        #: List -> what the server said when it refused to store one.
        self._refused: dict[str, str] = {}

    def wait_in_redis(self, consumer: Consumer, name: str, raw: bytes, payload: Mapping[str, Any]) -> bool:
        """Move a message that was fetched to its delayed queue if it is long before its eta. One atomic script.

        It is registered before, at most once a minute. Messages without an eta cost nothing.

        Args:
            consumer: has the message in flight.
            name: of its list.
            raw: the message as it was fetched.
            payload: what was decoded of it.

        Returns:
            True if it waits now, or is not in flight any more since others have taken it over. False if it is to be
            delivered: it is for now or soon, a delayed queue has held it, no worker would hold it (see
            `Transport.may_wait`), or the server refuses to store it, because its memory is full for example.

        Raises:
            redis.RedisError: the connection is lost, or the server cannot serve now; the message is in one of the two
                places.
        """
        due_ms = _due_ms_of(payload)
        transport = self._channel.connection
        if due_ms is None or seconds_until(due_ms, transport.transfer_loop) <= _SOON_S:
            return False
        headers = payload["headers"]
        if not transport.may_wait(headers):
            return False
        queue = self._channel.delayed_queue(name)
        try:
            queue.offer_fetched(
                raw,
                _with_due(raw, due_ms),
                consumer=consumer.id,
                due_ms=due_ms,
                message_id=headers["id"],
            )
        except NOT_SERVING:
            raise
        except exceptions.ResponseError as exc:
            if self._refused.get(name) != str(exc):
                self._refused[name] = str(exc)
                logger.warning(
                    "Redis refuses to delay tasks of %r, which are held in memory until their eta: %s", name, exc
                )
            return False
        self._refused.pop(name, None)
        return True


def _due_ms_of(payload: Mapping[str, Any]) -> int | None:
    """Return the eta of a task, unix time in ms, if no delayed queue has held it; None of all else."""
    headers = payload.get("headers")
    if not isinstance(headers, dict) or not headers.get("eta") or DUE_PROPERTY in payload["properties"]:
        return None
    if not isinstance(headers.get("id"), str):
        return None
    try:
        return eta_ms_of(payload)
    except InvalidEta:
        return None


def _with_due(message: bytes, due_ms: int) -> bytes:
    """Return a message as it is offered; objects that kombu marked stay as marked."""
    found = json.loads(message)
    found["properties"][DUE_PROPERTY] = due_ms
    return json.dumps(found).encode()

"""Tasks that a worker fetches long before their eta: they wait in Redis, like delayed tasks.

Such a task was sent by a stock producer or by `release`, or a stock worker left it in `unacked`. Celery would hold each
of them in the worker's memory, and its message in flight, until it is due.
"""

from __future__ import annotations

from collections.abc import Mapping
from logging import getLogger
from typing import Any

from redis import exceptions

from celery_delayq.basics.errors import InvalidEta
from celery_delayq.basics.times import to_datetime
from celery_delayq.fetching.consumer import Consumer
from celery_delayq.queue.connections import NOT_SERVING, hurried
from celery_delayq.transport.eta import eta_ms_of, seconds_until
from celery_delayq.transport.messages import DUE_PROPERTY, encode, headers_of
from celery_delayq.transport.protocols import Channel

logger = getLogger(__name__)

#: A worker itself holds tasks that are due sooner than this, in seconds: they would come back almost at once.
_SOON_S = 1.0


class EtaTasks:
    """Moves tasks with an eta from a consumer to their delayed queues. For the consuming thread.

    Args:
        channel: a `DelayedChannel`.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        #: List -> the server's last error when it refused to store a task.
        self._refused: dict[str, str] = {}

    def wait_in_redis(self, consumer: Consumer, name: str, raw: bytes, payload: Mapping[str, Any]) -> bool:
        """Move a fetched message to its delayed queue if its eta is far away. One atomic script.

        The queue is registered first, at most once a minute. Messages without an eta cost nothing.

        Args:
            consumer: the consumer that has the message in flight.
            name: name of its list.
            raw: the message as it was fetched.
            payload: the decoded message.

        Returns:
            True if the message waits now, or others have taken it over so that it is no longer in flight. False if it
            has to be delivered: it is due now or soon, a delayed queue has already held it, no worker would hold it
            (see `Program.may_wait`), or the server refuses to store it (its memory is full, for example).

        Raises:
            redis.RedisError: the connection is lost, or the server cannot serve now. The message is in flight or in the
                delayed queue.
        """
        due_ms, headers = undelayed_eta_ms_of(payload), headers_of(payload)
        if due_ms is None or not isinstance(headers["id"], str):
            return False
        transport = self._channel.connection
        if seconds_until(due_ms, transport.loops.of(name)) <= _SOON_S:
            return False
        if not transport.options["delay_eta_tasks"] or not transport.program.may_wait(headers):
            return False
        queue = self._channel.delayed_queue(name)
        properties = {**payload["properties"], DUE_PROPERTY: due_ms}
        try:
            queue.offer_fetched(
                raw,
                encode({**payload, "properties": properties}),
                consumer=consumer.id,
                eta=to_datetime(due_ms),
                message_id=headers["id"],
                client=hurried(self._channel.plain_client),
            )
        except NOT_SERVING:
            raise
        except exceptions.ResponseError as exc:
            if self._refused.get(name) != str(exc):
                self._refused[name] = str(exc)
                logger.warning(
                    "Cannot delay tasks of %r in Redis, so they are held in memory until their eta: %s", name, exc
                )
            return False
        self._refused.pop(name, None)
        return True


def undelayed_eta_ms_of(payload: Mapping[str, Any]) -> int | None:
    """Return the eta of a task, unix time in ms, if no delayed queue has held it; None for all other messages."""
    if not headers_of(payload).get("eta") or DUE_PROPERTY in payload["properties"]:
        return None
    try:
        return eta_ms_of(payload)
    except InvalidEta:
        return None

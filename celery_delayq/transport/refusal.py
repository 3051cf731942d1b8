"""Refusal: sets aside messages that no consumer can take, as dead letters, so that the consumer goes on.

Without it, a message that raises in its consumer's callback would end a worker, be put back, and end the next worker.
`Program.defect_of` tells whether the message is to blame. All other errors are raised as usual.
"""

from __future__ import annotations

from logging import getLogger
from typing import Any

from celery_delayq.fetching.consumer import Consumer
from celery_delayq.queue import dead_letter
from celery_delayq.queue.connections import CONNECTION_ERRORS
from celery_delayq.transport import messages, redelivery
from celery_delayq.transport.protocols import Channel

logger = getLogger(__name__)


class Refusal:
    """Sets aside messages of one channel. It belongs to the consuming thread.

    Args:
        channel: a `DelayedChannel`.

    Every method raises `redis.RedisError` if the server is away or refuses.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def of_no_message(self, consumer: Consumer, tag: str) -> None:
        """Set aside bytes that are not a kombu message."""
        held = consumer.held[tag]
        logger.error(
            "A value in %r is not a message. It became a dead letter in the list %r",
            held.name,
            _dead_list(consumer, held.name),
        )
        consumer.set_aside(tag, redelivery.not_a_message(held.message))

    def before(self, consumer: Consumer, tag: str, payload: dict[str, Any]) -> bool:
        """Set a message aside if it has a defect that would show too late; returns whether it has one."""
        defect = self._channel.connection.program.late_defect_of(payload)
        if defect is None:
            return False
        self._of_invalid_task(consumer, tag, payload, defect)
        return True

    def after(self, consumer: Consumer, tag: str, raw: bytes, exc: Exception) -> bool:
        """Set a message aside after its delivery raised, if the message is to blame; returns whether it is.

        An acknowledged message is not set aside.
        """
        payload = messages.decode(raw, objects=True)
        if payload is None or isinstance(exc, (*CONNECTION_ERRORS, MemoryError)):
            return False
        payload["properties"]["delivery_tag"] = tag
        if self.to_message(payload) is None:
            self.of_no_message(consumer, tag)
            return True
        connection = self._channel.connection
        defect = connection.program.defect_of(payload)
        if defect is None:
            return False
        error = f"{defect} ({type(exc).__name__}: {exc})"
        if connection.program.forget(tag):
            self._of_invalid_task(consumer, tag, payload, error)
            self._channel.qos.forget(tag)
        else:
            logger.error("Task %r[%r] raised an error outside its own code: %s", *_names(payload), error)
        return True

    def to_message(self, payload: dict[str, Any]) -> Any:
        """Return the kombu message; None if its body does not have the encoding that it states."""
        try:
            return self._channel.Message(payload, channel=self._channel)
        except Exception:
            return None

    def _of_invalid_task(self, consumer: Consumer, tag: str, payload: dict[str, Any], error: str) -> None:
        consumer.conversation.read_answers()  # the message may have been rejected
        held = consumer.held.get(tag)
        if held is None:
            logger.error("Task %r[%r] was dropped, because no worker can take it: %s", *_names(payload), error)
            return
        logger.error(
            "Task %r[%r] became a dead letter in the list %r, because no worker can take it: %s",
            *_names(payload),
            _dead_list(consumer, held.name),
            error,
        )
        message = redelivery.not_alone(held.message)
        consumer.set_aside(tag, dead_letter.pack(message, reason=dead_letter.INVALID_TASK, error=error))


def _names(payload: dict[str, Any]) -> tuple[object, object]:
    """Return the task name and the id that a message states."""
    headers = payload.get("headers")
    return (headers.get("task"), headers.get("id")) if isinstance(headers, dict) else (None, None)


def _dead_list(consumer: Consumer, name: str) -> str:
    return consumer.leases.keys_of(name).dead

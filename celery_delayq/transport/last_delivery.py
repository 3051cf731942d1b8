"""Last deliveries: a message that is one delivery short of the limit is delivered alone.

All messages in flight at a crash are counted, since nobody knows which of them was the cause. So harmless ones that
wait beside one that kills its workers come as near to the limit as that one. The last delivery tells them apart: it
begins when nothing else runs in the worker, nothing is fetched beside it, and before it begins, the message is marked
in the in-flight list. Only a message with that mark becomes a dead letter (`redelivery.recover`).

A worker that is busy offers the message to others for a second, and meanwhile takes nothing else. If it meets the
message again, it keeps it until its own tasks have ended; so the workers do not all wait for the same message. Where
tasks run for longer than some minutes, the message is delivered beside them, without the mark: that delivery does not
count, and the worker goes on.

What was held before and begins meanwhile, for a rate limit or an eta, takes the mark off again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from logging import getLogger
from typing import Any

from redis import exceptions

from celery_delayq import keys, scripts
from celery_delayq.connections import CONNECTION_ERRORS, NOT_SERVING
from celery_delayq.consumer import Consumer
from celery_delayq.errors import InvalidEta
from celery_delayq.held import Held
from celery_delayq.transport import redelivery
from celery_delayq.transport.eta import DUE_PROPERTY, due_ms_of

logger = getLogger(__name__)

#: How long a busy worker leaves a message to others before it keeps it, in seconds.
OFFER_S = 1.0

#: How long it then keeps the message and waits for its own tasks, in seconds.
KEEP_S = 300.0

#: Between two looks at whether the worker is still busy, in seconds.
LOOK_S = 0.1

#: A message that waits longer for its eta in the worker than so many ms is not isolated: its worker would wait with it.
_LONGEST_ETA_MS = 1000


class Turn(Enum):
    """What is to be done with a message on its last delivery."""

    #: Deliver it alone.
    ALONE = auto()
    #: Deliver it beside what runs; it does not count.
    BESIDE = auto()
    #: Put it back, and take nothing for a moment.
    OFFER = auto()
    #: Keep it, and take nothing until it can be delivered.
    KEEP = auto()


class LastDelivery:
    """When the channels of one connection may deliver such messages. It belongs to the thread that consumes.

    Args:
        delivery_limit: 0 for no limit, and no last delivery.
        is_busy: returns whether tasks run that were delivered before.
        wake_in: makes the thread fetch in so many seconds.
    """

    def __init__(self, delivery_limit: int, is_busy: Callable[[], bool], wake_in: Callable[[float], None]) -> None:
        self._limit = delivery_limit
        self._is_busy = is_busy
        self._wake_in = wake_in
        self._offered: bytes | None = None
        self._was_kept = False
        #: Until when nothing is taken while the worker is busy (monotonic); None where no such message waits.
        self._until: float | None = None

    def concerns(self, message: dict[str, Any]) -> bool:
        """Return whether a message is to be delivered alone."""
        return redelivery.is_last_delivery(message, self._limit) and not _waits_here(message)

    @property
    def is_waiting(self) -> bool:
        """Whether nothing is to be fetched or delivered now, since such a message waits for the worker's tasks."""
        if self._until is None:
            return False
        if time.monotonic() >= self._until or not self._is_busy():
            self._until = None
            return False
        self._wake_in(LOOK_S)
        return True

    def turn(self, raw: bytes) -> Turn:
        """Return what is to be done with such a message."""
        was_offered = raw == self._offered
        if not self._is_busy() or (was_offered and self._was_kept):
            self._offered = None
            return Turn.BESIDE if self._is_busy() else Turn.ALONE
        self._until = time.monotonic() + (KEEP_S if was_offered else OFFER_S)
        self._offered, self._was_kept = raw, was_offered
        return Turn.KEEP if was_offered else Turn.OFFER

    def forget(self) -> None:
        """Take note that the message was put back: the worker does not wait for it any more."""
        self._until = None


def isolate(consumer: Consumer, tag: str) -> bool:
    """Mark a message that is held as alone. One atomic script.

    Returns:
        False if it is not the consumer's any more.

    Raises:
        redis.RedisError: the server is away. If it refuses, there is no mark, and the delivery does not count.
    """
    held = consumer.held[tag]
    try:
        if not _replace(consumer, tag, redelivery.alone(held.message)):
            return False
    except NOT_SERVING:
        raise
    except exceptions.ResponseError as exc:
        logger.warning("Redis refuses to mark a message of %r, whose delivery does not count: %s", held.name, exc)
        return True
    consumer.alone = tag
    return True


def on_begin(consumer: Consumer, tag: str) -> None:
    """Take the mark off what is held alone, before something else begins beside it. Safe in any thread.

    Never raises: if the server is away, the message keeps its mark.

    Args:
        consumer: that may hold it.
        tag: of the message that begins.
    """
    if consumer.alone is None or consumer.alone == tag:
        return
    with suppress(*CONNECTION_ERRORS, exceptions.ResponseError), consumer.alone_lock:
        alone = consumer.alone
        held = consumer.held.get(alone) if alone is not None else None
        try:
            if alone is not None and held is not None:  # it may have been acknowledged just now
                _replace(consumer, alone, redelivery.not_alone(held.message))
        finally:
            consumer.alone = None  # not before: whoever acknowledges it has to wait until then


def _replace(consumer: Consumer, tag: str, new: bytes) -> bool:
    held = consumer.held[tag]
    queue_keys = keys.QueueKeys.of(held.name, consumer.db)
    if not scripts.replace(consumer.client, queue_keys, consumer=consumer.id, message=held.message, new=new):
        return False
    consumer.held[tag] = Held(held.name, new)
    return True


def _waits_here(message: dict[str, Any]) -> bool:
    """Return whether a worker that takes a message waits for its eta, since no delayed queue has."""
    if DUE_PROPERTY in message["properties"]:
        return False
    try:
        due_ms = due_ms_of(message)
    except InvalidEta:
        return False
    return due_ms is not None and due_ms - time.time() * 1000 > _LONGEST_ETA_MS

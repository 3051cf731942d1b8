"""Last deliveries: a message that is one delivery short of the limit is delivered alone.

A crash counts against all messages in flight, since nobody knows which of them caused it. So harmless messages that
wait beside one that kills its workers come as near to the limit as that one. The last delivery tells them apart. It
begins only when nothing else runs in the worker, and nothing is fetched beside it. Before it begins, the message is
marked in the in-flight list. Only a message with that mark becomes a dead letter (`redelivery.recover`).

A busy worker offers the message to others for a second, and takes nothing else in that time. If it gets the message
again, it keeps it until its own tasks have ended. So not all workers wait for the same message. If tasks run for longer
than some minutes, the message is delivered beside them, without the mark. That delivery does not count, and the worker
goes on.

Tasks that the worker already held, because of a rate limit or an eta, may begin meanwhile. Then the mark is removed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from logging import getLogger
from typing import Any

from redis import exceptions

from celery_delayq.fetching.consumer import Consumer
from celery_delayq.queue.connections import CONNECTION_ERRORS, NOT_SERVING, refusals
from celery_delayq.transport import redelivery
from celery_delayq.transport.eta_tasks import undelayed_eta_ms_of

logger = getLogger(__name__)

#: How long a busy worker leaves a message to others before it keeps it, in seconds.
OFFER_S = 1.0

#: How long it then keeps the message and waits for its own tasks, in seconds.
KEEP_S = 300.0

#: Interval between two looks whether the worker is still busy, in seconds.
LOOK_S = 0.1

#: A message that waits for its eta in the worker longer than this, in ms, is not isolated: the worker would wait too.
_LONGEST_ETA_MS = 1000


class Turn(Enum):
    """What to do with a message on its last delivery."""

    #: Deliver it alone.
    ALONE = auto()
    #: Deliver it beside running tasks; this delivery does not count.
    BESIDE = auto()
    #: Put it back, and take nothing for a moment.
    OFFER = auto()
    #: Keep it, and take nothing until it can be delivered.
    KEEP = auto()


class LastDelivery:
    """Decides when the channels of one connection may deliver such messages. It belongs to the consuming thread.

    Args:
        delivery_limit: 0 for no limit, and no last delivery.
        is_busy: returns whether tasks that were delivered earlier still run.
        wake_in: makes the thread fetch after a delay in seconds.
    """

    def __init__(self, delivery_limit: int, is_busy: Callable[[], bool], wake_in: Callable[[float], None]) -> None:
        self._limit = delivery_limit
        self._is_busy = is_busy
        self._wake_in = wake_in
        self._offered: bytes | None = None
        self._was_kept = False
        #: Take nothing until this time while the worker is busy (monotonic); None if no such message waits.
        self._until: float | None = None

    def concerns(self, message: dict[str, Any]) -> bool:
        """Return whether a message has to be delivered alone."""
        return redelivery.is_last_delivery(message, self._limit) and not _waits_here(message)

    @property
    def is_waiting(self) -> bool:
        """Whether such a message waits for the worker's tasks, so that nothing may be fetched or delivered now."""
        if self._until is None:
            return False
        if time.monotonic() >= self._until or not self._is_busy():
            self._until = None
            return False
        self._wake_in(LOOK_S)
        return True

    def turn(self, raw: bytes) -> Turn:
        """Return what to do with such a message."""
        was_offered = raw == self._offered
        if not self._is_busy() or (was_offered and self._was_kept):
            self._offered = None
            return Turn.BESIDE if self._is_busy() else Turn.ALONE
        self._until = time.monotonic() + (KEEP_S if was_offered else OFFER_S)
        self._offered, self._was_kept = raw, was_offered
        return Turn.KEEP if was_offered else Turn.OFFER

    def forget(self) -> None:
        """Record that the message was put back: the worker no longer waits to deliver it."""
        self._until = None


def isolate(consumer: Consumer, tag: str) -> bool:
    """Mark a held message as delivered alone. One atomic script.

    Returns:
        False if the consumer no longer owns the message.

    Raises:
        redis.RedisError: the server is away. If it only refuses the mark, the delivery goes on but does not count.
    """
    held = consumer.held[tag]
    try:
        return consumer.isolation.begin(tag, redelivery.alone(held.message))
    except NOT_SERVING:
        raise
    except exceptions.ResponseError as exc:
        if not refusals.note(exc, logger):
            logger.warning(
                "Cannot mark a message of %r for its last delivery, so this delivery does not count: %s", held.name, exc
            )
        return True


def on_begin(consumer: Consumer, tag: str) -> None:
    """Remove the mark from a message that is held alone, before another task begins beside it. Safe in any thread.

    Never raises: if the server is away, the message keeps its mark.

    Args:
        consumer: the consumer that may hold such a message.
        tag: tag of the message whose task begins.
    """
    with suppress(*CONNECTION_ERRORS, exceptions.ResponseError):
        consumer.isolation.end(redelivery.not_alone, beside=tag)


def _waits_here(message: dict[str, Any]) -> bool:
    """Return whether a worker would wait for the eta of a message itself, because no delayed queue did."""
    eta_ms = undelayed_eta_ms_of(message)
    return eta_ms is not None and eta_ms - time.time() * 1000 > _LONGEST_ETA_MS

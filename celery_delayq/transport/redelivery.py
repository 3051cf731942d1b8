"""Redelivery: rewrites kombu messages that are delivered again, and decides when a message is dead."""

from __future__ import annotations

from typing import Any

from kombu.utils.encoding import safe_repr

from celery_delayq.basics.text import plural
from celery_delayq.queue import dead_letter
from celery_delayq.queue.holds import Holder
from celery_delayq.transport import keyed, messages
from celery_delayq.transport.messages import encode, headers_of

#: Header of a message: how often its consumer was gone before it acknowledged the message. RabbitMQ's name.
DELIVERY_COUNT = "x-delivery-count"

#: Header of a message: how often its task has rejected it with `requeue=True`.
REQUEUE_COUNT = "x-requeue-count"

#: The most characters of the error and of the traceback of a failed task that are kept.
_LONGEST_ERROR, _LONGEST_TRACEBACK = 2_000, 18_000

#: Header of a message in flight that was delivered alone. If its consumer dies now, this message is to blame.
ALONE = "x-delivered-alone"


def put_back(raw: bytes) -> bytes:
    """Return a message marked as redelivered, as kombu does. Bytes that are not a message are returned unchanged."""
    message = messages.decode(raw, objects=True)
    if message is None:
        return raw
    _mark(message)
    _pop_header(message, ALONE)
    return encode(message)


def is_last_delivery(message: dict[str, Any], delivery_limit: int) -> bool:
    """Return whether a message has to be delivered alone: one more crash would reach the limit.

    False for a message that was never in flight at a crash, whatever the limit.
    """
    if not delivery_limit or DELIVERY_COUNT not in headers_of(message):
        return False
    return deliveries(message) >= delivery_limit - 1


def alone(raw: bytes) -> bytes:
    """Return a message on its last delivery with the mark that says that nothing else runs beside it."""
    message = messages.decode(raw, objects=True)
    if message is None or not isinstance(message.get("headers"), dict):
        return raw
    message["headers"][ALONE] = True
    return encode(message)


def not_alone(raw: bytes) -> bytes:
    """Return such a message without the mark, because something else runs beside it."""
    message = messages.decode(raw, objects=True)
    if message is None or not _pop_header(message, ALONE):
        return raw
    return encode(message)


def recover(raw: bytes, delivery_limit: int) -> tuple[bytes, bool]:
    """Return a message whose consumer is gone in the form to store: as redelivered, or as the record of a dead letter.

    A crash counts against every message that was in flight, since nobody knows which of them caused it. But the count
    only rises to one less than the limit. The message becomes a dead letter after its last delivery, if nothing else
    ran beside it.

    Args:
        raw: the message as it was in flight.
        delivery_limit: number of deliveries after which a message is dead; 0 for no limit.

    Returns:
        The bytes to store, and whether they are the record of a dead letter.
    """
    message = messages.decode(raw, objects=True)
    if message is None:
        return not_a_message(raw), True
    before, count = deliveries(message), deliveries(message) + 1
    if _pop_header(message, ALONE) and delivery_limit and count >= delivery_limit:
        return dead_letter.pack(encode(message), reason=dead_letter.DELIVERY_LIMIT, deliveries=count), True
    _mark(message)
    if not isinstance(message.get("headers"), dict):
        message["headers"] = {}
    message["headers"][DELIVERY_COUNT] = max(before, min(count, delivery_limit - 1)) if delivery_limit else count
    return encode(message), False


def again(raw: bytes, *, counted: str, limit: int, what: str) -> tuple[bytes, int, bool]:
    """Return a message whose task has ended without an acknowledgement, so that it has to run again.

    Args:
        raw: the message as it is in flight.
        counted: the header that counts this, `DELIVERY_COUNT` or `REQUEUE_COUNT`.
        limit: the count at which a message is dead; 0 for no limit.
        what: what its task has done, for the record.

    Returns:
        The bytes to store, the count, and whether the bytes are the record of a dead letter.
    """
    message = messages.decode(raw, objects=True)
    if message is None or not isinstance(message.get("headers"), dict):
        return put_back(raw), 1, False
    _pop_header(message, ALONE)
    count = _count(message, counted) + 1
    if limit and count >= limit:
        error = f"its task {what} {plural(count, 'time')}"
        reason = dead_letter.DELIVERY_LIMIT
        return dead_letter.pack(encode(message), reason=reason, deliveries=count, error=error), count, True
    _mark(message)
    message["headers"][counted] = count
    return encode(message), count, False


def failed(raw: bytes, exc: BaseException, traceback: str, *, worker: str) -> bytes:
    """Return the record of a task that has failed. Its message is stored so that all retries are left again.

    Args:
        raw: the message as it was fetched.
        exc: what the task raised, or why its process ended; perhaps in celery's wrapper, which knows the type's name.
        traceback: of the exception.
        worker: the name of the worker.
    """
    message = messages.decode(raw, objects=True) or {"properties": {}}
    headers = headers_of(message)
    retries, stored = headers.get("retries"), not_alone(raw)
    runs = 1 + deliveries(message) + _count(message, REQUEUE_COUNT)
    if isinstance(retries, int) and retries:
        runs += retries
        headers["retries"] = 0
        _pop_header(message, ALONE)
        stored = encode(message)
    return dead_letter.pack(
        stored,
        reason=dead_letter.FAILED,
        error=f"{getattr(exc, 'exc_cls_name', type(exc).__name__)}: {_text_of(exc)}"[:_LONGEST_ERROR],
        traceback=traceback[-_LONGEST_TRACEBACK:],
        worker=worker,
        runs=runs,
    )


def _text_of(exc: BaseException) -> str:
    try:
        return str(exc)
    except Exception:
        return str(safe_repr(exc))


def hide(message: dict[str, Any]) -> None:
    """Remove from a decoded message what counts its deliveries: Celery would send it on with a retry of the task."""
    for name in (DELIVERY_COUNT, REQUEUE_COUNT, ALONE):
        _pop_header(message, name)


def holder_of(raw: bytes) -> Holder | None:
    """Return who holds a unique key by a message; None if nobody does."""
    message = messages.decode(raw, objects=True)
    return None if message is None else keyed.holder_of(message)


def not_a_message(raw: bytes) -> bytes:
    """Return the record of a dead letter with bytes that are not a kombu message."""
    return dead_letter.pack(raw, reason=dead_letter.NOT_A_MESSAGE)


def revived(raw: bytes) -> bytes:
    """Return a dead message in the form to requeue: its delivery count starts again, and it has no unique key.

    Its task gave the key up. With it in the message, a retry would claim it, and fail if another task has it by then.
    """
    message = messages.decode(raw, objects=True)
    if message is None:
        return raw
    message["properties"].pop(keyed.UNIQUE_PROPERTY, None)
    _pop_header(message, DELIVERY_COUNT)
    _pop_header(message, REQUEUE_COUNT)
    return encode(message)


def deliveries(message: dict[str, Any]) -> int:
    """Return how often a message was delivered without an acknowledgement."""
    return _count(message, DELIVERY_COUNT)


def _count(message: dict[str, Any], header: str) -> int:
    count = headers_of(message).get(header)
    return count if isinstance(count, int) and count > 0 else 0


def _pop_header(message: dict[str, Any], name: str) -> Any:
    return headers_of(message).pop(name, None)


def _mark(message: dict[str, Any]) -> None:
    if isinstance(message.get("headers"), dict):
        message["headers"]["redelivered"] = True
    if isinstance(message["properties"].get("delivery_info"), dict):
        message["properties"]["delivery_info"]["redelivered"] = True

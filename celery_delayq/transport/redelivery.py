"""Redelivery: how a kombu message is written when it is delivered again, and when that is once too often."""

from __future__ import annotations

import time
from typing import Any

from kombu.utils.json import dumps, loads

from celery_delayq import dead_letters

#: Header of a message: how often it was delivered to a consumer that was gone before it acknowledged. RabbitMQ's name.
DELIVERY_COUNT = "x-delivery-count"

#: Header of a message in flight beside which nothing else runs: if its consumer is gone now, this message is to blame.
ALONE = "x-delivered-alone"


def decode(raw: bytes) -> dict[str, Any] | None:
    """Return a message as kombu stores it, or None if it is none."""
    try:
        message = loads(raw.decode())
    except Exception:  # not only ValueError: kombu makes objects of what says that it is one
        return None
    if isinstance(message, dict) and isinstance(message.get("properties"), dict):
        return message
    return None


def encode(message: dict[str, Any]) -> bytes:
    """Return a message as kombu stores it."""
    return str(dumps(message)).encode()


def put_back(raw: bytes) -> bytes:
    """Return a message marked as redelivered, as kombu marks it; what is no message, as it is."""
    message = decode(raw)
    if message is None:
        return raw
    _mark(message)
    _pop_header(message, ALONE)
    return encode(message)


def is_last_delivery(message: dict[str, Any], delivery_limit: int) -> bool:
    """Return whether a message is to be delivered alone: it was in flight at so many crashes that one more decides.

    A message that was never in flight at a crash is none, whatever the limit.
    """
    headers = message.get("headers")
    if not delivery_limit or not isinstance(headers, dict) or DELIVERY_COUNT not in headers:
        return False
    return deliveries(message) >= delivery_limit - 1


def alone(raw: bytes) -> bytes:
    """Return a message on its last delivery as it is in flight while nothing else runs beside it."""
    message = decode(raw)
    if message is None or not isinstance(message.get("headers"), dict):
        return raw
    message["headers"][ALONE] = True
    return encode(message)


def not_alone(raw: bytes) -> bytes:
    """Return such a message as it is in flight once something else runs beside it."""
    message = decode(raw)
    if message is None or not _pop_header(message, ALONE):
        return raw
    return encode(message)


def recover(raw: bytes, delivery_limit: int) -> tuple[bytes, bool]:
    """Return a message whose consumer is gone as it is to be stored: redelivered, or as a dead letter.

    Every message that was in flight is counted, since nobody knows which of them was the cause; but only up to one less
    than the limit. It dies of its last delivery, if nothing else ran beside it.

    Args:
        raw: the message as it was in flight.
        delivery_limit: after so many deliveries it is dead; 0 for no limit.

    Returns:
        What to store, and whether in the dead list.
    """
    message = decode(raw)
    if message is None:
        return not_a_message(raw), True
    before, count = deliveries(message), deliveries(message) + 1
    if _pop_header(message, ALONE) and delivery_limit and count >= delivery_limit:
        letter = dead_letters.pack(
            encode(message), reason=dead_letters.DELIVERY_LIMIT, at_ms=int(time.time() * 1000), deliveries=count
        )
        return letter, True
    _mark(message)
    if not isinstance(message.get("headers"), dict):
        message["headers"] = {}
    message["headers"][DELIVERY_COUNT] = max(before, min(count, delivery_limit - 1)) if delivery_limit else count
    return encode(message), False


def not_a_message(raw: bytes) -> bytes:
    """Return the dead letter of bytes that are no kombu message."""
    return dead_letters.pack(raw, reason=dead_letters.NOT_A_MESSAGE, at_ms=int(time.time() * 1000))


def revived(raw: bytes) -> bytes:
    """Return a dead message as it is to be requeued: nothing is counted against it any more."""
    message = decode(raw)
    if message is None:
        return raw
    _pop_header(message, DELIVERY_COUNT)
    return encode(message)


def deliveries(message: dict[str, Any]) -> int:
    """Return how often a message was delivered in vain."""
    headers = message.get("headers")
    count = headers.get(DELIVERY_COUNT) if isinstance(headers, dict) else None
    return count if isinstance(count, int) and count > 0 else 0


def _pop_header(message: dict[str, Any], name: str) -> Any:
    headers = message.get("headers")
    return headers.pop(name, None) if isinstance(headers, dict) else None


def _mark(message: dict[str, Any]) -> None:
    if isinstance(message.get("headers"), dict):
        message["headers"]["redelivered"] = True
    if isinstance(message["properties"].get("delivery_info"), dict):
        message["properties"]["delivery_info"]["redelivered"] = True

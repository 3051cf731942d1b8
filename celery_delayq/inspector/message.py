"""The envelope of a stored message: kombu's JSON around a body, which stays closed.

Only headers and properties are read and written here. The body is a string that is handed on as it is. Who asks may see
it if it is JSON; nothing else of it is ever decoded. Objects that kombu marked (`__type__`) stay as marked.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from celery_delayq.transport.eta import DUE_PROPERTY

_JSON = "application/json"


def read(payload: bytes) -> dict[str, Any] | None:
    """Return a message as kombu stores it, with dicts for headers and properties; None if it is none."""
    try:
        message = json.loads(payload.decode())
    except (ValueError, RecursionError):
        return None
    if not isinstance(message, dict) or not isinstance(message.get("properties"), dict):
        return None
    if not isinstance(message.get("headers"), dict):
        message["headers"] = {}
    return message


def is_task(message: dict[str, Any] | None) -> bool:
    """Return whether a message is one of Celery's protocol 2, whose eta is in the headers."""
    return message is not None and {"task", "id"} <= message["headers"].keys()


def marks_of(name: str) -> tuple[bytes, ...]:
    r"""Return byte strings of which a message holds one if its task has this name; none if that cannot be told.

    So a search need not decode what cannot match. JSON has the name as it is and a quote behind it, or escapes one of
    its characters: those of ASCII as `\u00XX`, whose first digit is that of the character. (The quote before the name
    would slow the search down: a message has many.)
    """
    try:
        json.loads(name)
    except (ValueError, RecursionError):
        plain = name.isascii() and name.isprintable() and not set(name) & set('"\\/')
        escapes = {f"\\u00{ord(char) >> 4:x}" for char in name} if plain else {"\\"}
        return tuple(mark.encode("utf-8", "surrogatepass") for mark in (f'{name}"', *sorted(escapes)))
    return ()  # a header that is no text is named by its JSON, which may be written in many ways


def json_body(message: dict[str, Any]) -> Any:
    """Return the body of a message if it is JSON: of a task its args, kwargs and callbacks. None if it is not.

    Objects that kombu marked stay as marked. A body of another kind (pickle), or a compressed one, stays closed.
    """
    if message.get("content-type") != _JSON or "compression" in message["headers"]:
        return None
    try:
        body = message["body"]
        if message["properties"].get("body_encoding") == "base64":
            body = base64.b64decode(body)
        return json.loads(body)
    except (KeyError, TypeError, ValueError, RecursionError):
        return None


def with_eta(payload: bytes, eta: str | None, due_ms: int | None) -> bytes:
    """Return a message with another eta; what is no task message, as it is.

    Args:
        payload: the message.
        eta: the new header; None for now.
        due_ms: when it is due in a delayed queue, unix time in ms; None if it is not to go through one, so that a
            worker waits for the eta by itself.
    """
    message = read(payload)
    if message is None or not is_task(message):
        return payload
    message["headers"]["eta"] = eta
    message["properties"].pop(DUE_PROPERTY, None)
    if due_ms is not None:
        message["properties"][DUE_PROPERTY] = due_ms
    return json.dumps(message).encode()

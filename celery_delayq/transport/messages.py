"""Celery's task messages (protocol 2) as Redis stores them: kombu's JSON around a body.

decode, encode         the message; its body stays encoded
json_body, body_of     the decoded body: for people, if it is JSON; and for a worker
marks_of, marks_within what a message with a task's name, or with a text, contains
with_eta               the message with a new time
cancelled              a message that takes the place of another one, whose task is cancelled
updated                a task message with other arguments, or another priority
message_of             the message as kombu's consumers get it
request_of             the request that a worker would build from the message
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from logging import getLogger
from math import prod
from typing import TYPE_CHECKING, Any

from kombu.compression import compress
from kombu.message import Message
from kombu.serialization import prepare_accept_content, registry
from kombu.utils.encoding import bytes_to_str, str_to_bytes
from kombu.utils.json import dumps, object_hook

if TYPE_CHECKING:
    from celery.app.task import Context

logger = getLogger(__name__)

#: Property of a delayed message: its due time, unix time in ms. It tells the worker that the message has waited
#: already, whatever the worker's own clock says.
DUE_PROPERTY = "delayq_due"

#: Property of a message without a task. Whoever fetches it drops it, see `cancelled`.
CANCELLED_PROPERTY = "delayq_cancelled"

#: `json.loads` would make one for each message.
_DECODER, _WITH_OBJECTS = json.JSONDecoder(), json.JSONDecoder(object_hook=object_hook)

#: When the task of such a message expired.
_LONG_AGO = "2000-01-01T00:00:00+00:00"

#: What Celery needs to know of any task.
_EMPTY_BODY = base64.b64encode(b"[[], {}, {}]").decode()

_JSON = "application/json"

#: Content types whose decoding runs no code of the message.
_HARMLESS = {_JSON, "application/x-yaml", "application/x-msgpack"}


def decode(raw: bytes, *, objects: bool = False) -> dict[str, Any] | None:
    """Return a message with a dict of properties, or None if the bytes are not such a message.

    Args:
        raw: the stored bytes.
        objects: convert values that kombu marked with `__type__` to objects (UUIDs, datetimes), as for a consumer of
            kombu. Otherwise they stay marked, and `encode` writes them back unchanged.
    """
    try:
        message = (_WITH_OBJECTS if objects else _DECODER).decode(raw.decode())
    except Exception:  # not only ValueError: a value marked as an object may be invalid
        return None
    return message if isinstance(message, dict) and isinstance(message.get("properties"), dict) else None


def encode(message: Mapping[str, Any]) -> bytes:
    """Return the bytes of a message that `decode` returned, with or without objects."""
    return str(dumps(message)).encode()


def headers_of(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the headers of a message; an empty dict if they are not a dict."""
    headers = message.get("headers")
    return headers if isinstance(headers, dict) else {}


def is_task(message: Mapping[str, Any]) -> bool:
    """Return whether a message is a task message, which has its eta in the headers."""
    return {"task", "id"} <= headers_of(message).keys()


def decode_task(raw: bytes) -> dict[str, Any] | None:
    """Return a task message as a worker gets it; None if its id or its name is not a string."""
    message = decode(raw, objects=True)
    headers = headers_of(message or {})
    return message if isinstance(headers.get("id"), str) and isinstance(headers.get("task"), str) else None


def marks_of(name: str) -> tuple[bytes, ...]:
    r"""Return byte strings: each message whose task has this name contains at least one. Empty if that is unknown.

    With them, a search need not decode messages that cannot match. JSON contains the name followed by a quote, or it
    escapes one of its characters: an ASCII character as `\u00XX`, with the first hex digit of the character. (A search
    for the quote before the name would be slower, because a message has many quotes.)
    """
    try:
        json.loads(name)
    except (ValueError, RecursionError):
        plain = name.isascii() and name.isprintable() and not set(name) & set('"\\/')
        escapes = {f"\\u00{ord(char) >> 4:x}" for char in name} if plain else {"\\"}
        return tuple(mark.encode("utf-8", "surrogatepass") for mark in (f'{name}"', *sorted(escapes)))
    return ()  # the name of a non-string header is its JSON, which has many spellings


#: ASCII characters that JSON need not escape, and that its writers do not.
_PLAIN = re.compile(r"[ !#-.0-\[\]-~]+")

#: A plain text of so many characters is rare enough to search for it alone.
_RARE = 3

#: The most spellings of a text to search for: each takes time for each message.
_MOST_SPELLINGS = 32

_SHORT_ESCAPES = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\", "/": "\\/"}


def marks_within(text: str) -> tuple[bytes, ...]:
    r"""Return byte strings: each message with a string that contains this text contains at least one of them.

    JSON has several spellings of a text: `\u00e9`, `\u00E9` and `é` are the same. So the marks are all spellings of a
    part of the text: of its longest part in plain ASCII, which writers of JSON leave as it is; or, if that is too
    short, of as many of its characters as have few spellings.

    Args:
        text: not empty.
    """
    plain = max(_PLAIN.findall(text), key=len, default="")
    if len(plain) >= min(_RARE, len(text)):
        escapes = {f"\\u00{ord(char) >> 4:x}" for char in plain}
        return tuple(mark.encode() for mark in (plain, *sorted(escapes)))
    return max((_spelled(text[start : start + 5]) for start in range(len(text))), key=lambda found: found[0])[1]


def _spelled(text: str) -> tuple[int, tuple[bytes, ...]]:
    """Return how many characters at the beginning of a text have few spellings, and all spellings of these."""
    parts: list[list[str]] = []
    for char in text:
        spellings = list(_spellings(char, is_first=not parts))
        if parts and prod(map(len, parts)) * len(spellings) > _MOST_SPELLINGS:
            break
        parts.append(spellings)
    return len(parts), tuple("".join(one).encode() for one in product(*parts))


def _spellings(char: str, is_first: bool) -> Iterator[str]:
    """Yield the spellings of a character in JSON; if it is the first one, the ends of them are enough."""
    if char >= " " and char not in '"\\' and not "\ud800" <= char <= "\udfff":
        yield char
    if char in _SHORT_ESCAPES:
        yield _SHORT_ESCAPES[char]
    units = char.encode("utf-16-be", "surrogatepass")
    units = units[-2:] if is_first else units  # the second half of a pair is the rarer one
    digits = [sorted({digit, digit.upper()}) for digit in units.hex()]
    escapes = ("".join(spelling) for spelling in product(*digits))
    yield from (re.sub("....", r"\\u\g<0>", escape) for escape in escapes)


# -- a new time


def with_eta(raw: bytes, eta: str | None, due_ms: int | None) -> bytes:
    """Return a task message with a new eta. A message that is not a task message is returned unchanged.

    Args:
        raw: the message.
        eta: the new header; None means now.
        due_ms: its due time in a delayed queue, unix time in ms. None if it does not pass through one; then the worker
            itself waits for the eta.
    """
    message = decode(raw)
    if message is None or not is_task(message):
        return raw
    message["headers"]["eta"] = eta
    message["properties"].pop(DUE_PROPERTY, None)
    if due_ms is not None:
        message["properties"][DUE_PROPERTY] = due_ms
    return encode(message)


# -- none


def cancelled(raw: bytes) -> bytes:
    """Return what may take the place of a task's message if the task is cancelled; empty bytes if it is of no task.

    Workers drop it without a trace. One with kombu's own transport takes it for that of a task that has expired.
    """
    message = decode(raw)
    if message is None or not is_task(message):
        return b""
    headers, properties = message["headers"], message["properties"]
    kept = {name: properties[name] for name in ("delivery_info", "delivery_tag") if name in properties}
    return encode(
        {
            "body": _EMPTY_BODY,
            "content-type": _JSON,
            "content-encoding": "utf-8",
            "headers": {"task": headers["task"], "id": headers["id"], "expires": _LONG_AGO, "ignore_result": True},
            "properties": {**kept, "body_encoding": "base64", CANCELLED_PROPERTY: True},
        }
    )


def is_cancelled(message: Mapping[str, Any]) -> bool:
    """Return whether a message is one that `cancelled` made."""
    return CANCELLED_PROPERTY in message["properties"]


# -- other arguments


def updated(
    app: Any, raw: bytes, *, args: Any = None, kwargs: Any = None, priority: int | None = None, **shown: str | None
) -> bytes:
    """Return a task message with other arguments, or another priority. Everything else stays, also its serializer.

    Source: Celery 5.7 `AMQP.as_task_v2` and `Task.apply_async`, kombu 5.7 `Producer._prepare`.

    Args:
        app: the Celery app.
        raw: the message.
        args: positional arguments; None leaves them as they are.
        kwargs: keyword arguments; None leaves them as they are.
        priority: 0 to 9; None leaves it as it is.
        shown: `argsrepr` and `kwargsrepr`, see Celery.

    Raises:
        TypeError: the app knows the task, which does not take these arguments.
        ValueError: it is no task message, or the app does not accept its content, or cannot decode it.
        kombu.exceptions.EncodeError: its serializer cannot encode the arguments.
    """
    message = decode(raw)
    if message is None or not is_task(message):
        raise ValueError("cannot update a message that is not a task message of protocol 2")
    if priority is not None:
        message["properties"]["priority"] = priority
    if args is not None or kwargs is not None:
        _give_arguments(app, message, args, kwargs, shown)
    return encode(message)


def _give_arguments(app: Any, message: dict[str, Any], args: Any, kwargs: Any, shown: Mapping[str, str | None]) -> None:
    headers = message["headers"]
    try:
        old_args, old_kwargs, embed = body_of(message, prepare_accept_content(app.conf.accept_content) or ())
        serializer = registry.type_to_name[message["content-type"]]
    except Exception as exc:
        raise ValueError(f"cannot read the arguments of task {headers['id']}, so they stay as they are: {exc}") from exc
    given = {"args": old_args if args is None else args, "kwargs": old_kwargs if kwargs is None else kwargs}
    if isinstance(given["args"], list):  # shown as those of a call
        given["args"] = tuple(given["args"])
    made = app.amqp.as_task_v2(headers["id"], headers["task"], **given, **shown)
    task = app.tasks.get(headers["task"])
    check = getattr(task, "__header__", None)
    if check is not None and task.typing:
        check(*given["args"], **given["kwargs"])
    headers.update(
        {name: made.headers[name] for name, new in (("argsrepr", args), ("kwargsrepr", kwargs)) if new is not None}
    )
    body = (given["args"], given["kwargs"], embed)
    message["content-type"], message["content-encoding"], encoded = registry.dumps(body, serializer)
    if "compression" in headers:
        encoded, headers["compression"] = compress(encoded, headers["compression"])
    message["body"] = bytes_to_str(base64.b64encode(str_to_bytes(encoded)))
    message["properties"]["body_encoding"] = "base64"


# -- the body


def json_body(message: Mapping[str, Any]) -> Any:
    """Return the body of a message, if it is JSON; otherwise None. The body of a task has args, kwargs and callbacks.

    Values that kombu marked as objects stay marked. Other bodies (pickle, compressed) are not decoded.
    """
    if message.get("content-type") != _JSON or "compression" in headers_of(message):
        return None
    try:
        return json.loads(_body(message))
    except (TypeError, ValueError, RecursionError):
        return None


def json_arguments(message: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]] | None:
    """Return the arguments of a task as a worker gets them, if its body is JSON; otherwise None.

    None also if a value is of a type for which this process has no decoder, see `kombu.utils.json.register_type`.
    """
    if message.get("content-type") != _JSON or "compression" in headers_of(message):
        return None
    try:
        args, kwargs, _ = body_of(message, (_JSON,))
    except Exception:  # of any decoder: whoever wrote the message may have written anything
        return None
    return (args, kwargs) if isinstance(args, list) and isinstance(kwargs, dict) else None


def body_of(message: Mapping[str, Any], accept: Iterable[str]) -> tuple[Any, Any, dict[str, Any]]:
    """Decode the body of a task message into args, kwargs and the rest, if `accept` contains its content type.

    Raises:
        Exception: any exception of a decoder; `kombu.exceptions.ContentDisallowed` for other content types.
    """
    args, kwargs, embed = message_of(message, accept).payload
    return args, kwargs, embed


def message_of(message: Mapping[str, Any], accept: Iterable[str]) -> Message:
    """Return a message as kombu gives it to a consumer who acknowledges nothing; see `body_of`."""
    return Message(
        body=_body(message),
        content_type=message.get("content-type"),
        content_encoding=message.get("content-encoding"),
        delivery_info=message["properties"].get("delivery_info"),
        headers=message.get("headers"),
        properties=message["properties"],
        accept=set(accept),
    )


def _body(message: Mapping[str, Any]) -> Any:
    body = message.get("body")
    return base64.b64decode(body or b"") if message["properties"].get("body_encoding") == "base64" else body


def request_of(app: Any, message: dict[str, Any], *, unpickles: bool) -> Context:
    """Return the request of a task, with arguments, callbacks, chain and chord.

    If the body is not decoded, for example because `accept_content` does not allow it, it is left out. A warning is
    logged if somebody waits for it.

    Args:
        app: the Celery app.
        message: the message.
        unpickles: whether the body may run code here as it is decoded, if `accept_content` allows that: in a worker,
            where it would run anyway.
    """
    accepted = set(prepare_accept_content(app.conf.accept_content) or ())
    try:
        args, kwargs, embed = body_of(message, accepted if unpickles else accepted & _HARMLESS)
        body = {"args": args, "kwargs": kwargs, **embed}
    except Exception:
        if unpickles or message["headers"].get("group"):  # each member of a chord is one of a group
            logger.warning(
                "Cannot decode the body of task %s: its chord and chain will not be told about its outcome",
                message["headers"]["id"],
            )
        body = {}
    # The same names as in `celery.worker.request.Request`. The rpc result backend answers to `reply_to`.
    properties = {name: message["properties"].get(name) for name in ("delivery_info", "reply_to", "correlation_id")}
    from celery.app.task import Context

    return Context({**message["headers"], **body, **properties})

"""Finds the defect of a message that Celery's worker cannot take.

Celery checks little of a message. A header of a wrong type raises in the worker's main loop, and the worker ends. The
message is put back, and ends the next worker. These functions tell whether the message is to blame. They look only at
the message. So they never blame a valid message for an error of the worker (a broken extension, a closed pool, a
backend that is away).

They may also report defects that Celery handles itself, for example an eta that cannot be parsed. They are not called
in these cases.

Source: Celery 5.6 and 5.7, `celery.worker.strategy`, `celery.worker.request.Request`, `celery.app.trace`; the structure
of messages is in its manual, "Message Protocol".
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from celery_delayq.transport.messages import headers_of, message_of

#: A check, and a description of a right value.
_Check = tuple[Callable[[Any], bool], str]

#: Longest time limit, in seconds. The event loop cannot wait for longer.
_LONGEST_S = 1e9

#: Deepest nesting in the headers and properties of a message. A prefork worker pickles them for its processes, and
#: pickle gives up at a depth of 900 or less with Python 3.11.
_DEEPEST = 100

#: How much deeper a worker nests what it pickles.
_DEEPER_IN_WORKER = 50

#: What nests values; and what most values are, which is found out faster.
_NESTED = (dict, list, tuple)
_SCALARS = frozenset({str, int, float, bool, type(None)})


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _is_time(value: Any) -> bool:
    return value is None or bool(value)


def _is_time_limit(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and abs(value) <= _LONGEST_S)  # False for infinity, NaN


def _are_time_limits(value: Any) -> bool:
    if not value or value == [None, None]:
        return True
    return isinstance(value, (list, tuple)) and len(value) == 2 and all(map(_is_time_limit, value))


def _are(kind: type) -> Callable[[Any], bool]:
    """Return a check for nothing, or a list of values of a type."""
    return lambda value: not value or (isinstance(value, (list, tuple)) and all(isinstance(it, kind) for it in value))


def _is_mapping(value: Any) -> bool:
    return not value or isinstance(value, dict)


#: Fields that Celery reads only when a process of the pool is free, perhaps long after it received the message.
_LATE: Mapping[str, _Check] = {
    "timelimit": (_are_time_limits, "two numbers"),
    "stamped_headers": (_are(str), "a list of strings"),
    "stamps": (_is_mapping, "a mapping"),
    "shadow": (lambda value: value is None or isinstance(value, str), "a string"),
}

_FIELDS: Mapping[str, _Check] = {
    "task": (_is_text, "a non-empty string"),
    "id": (_is_text, "a non-empty string"),
    "eta": (_is_time, "a time"),
    "expires": (_is_time, "a time"),
    **_LATE,
}

#: Fields of the body: what is embedded, and the arguments.
_OF_BODY: Mapping[str, _Check] = {
    "callbacks": (_are(dict), "a list of signatures"),
    "errbacks": (_are(dict), "a list of signatures"),
    "chain": (_are(dict), "a list of signatures"),
    "chord": (_is_mapping, "a signature"),
    "args": (lambda value: isinstance(value, (list, tuple, type(None))), "a list"),
    "kwargs": (lambda value: isinstance(value, (dict, type(None))), "a mapping"),
}

_OF_MESSAGE: Mapping[str, _Check] = {
    "content-type": (_is_text, "a non-empty string"),
    "content-encoding": (_is_text, "a non-empty string"),
}


def defect_of(message: Mapping[str, Any], accept: Iterable[str]) -> str | None:
    """Return what is wrong with a message; None if a worker can take it. Call this after the message has raised.

    Args:
        message: the message as kombu stores it, with its body not decoded.
        accept: the content types that the worker decodes.
    """
    headers, properties = message.get("headers") or {}, message["properties"]
    if not isinstance(headers, dict):
        return f"its headers must be a mapping, not {headers!r:.100}"
    defect = (
        _too_deep(headers, properties)
        or _wrong(properties, {"delivery_info": (_is_mapping, "a mapping")})
        or _wrong(headers, _FIELDS if "task" in headers else {})
        or _wrong(message, _OF_MESSAGE)
    )
    if defect:
        return defect
    try:
        payload = message_of(message, accept).payload
    except Exception as exc:
        return f"its body cannot be decoded: {type(exc).__name__}: {exc}"
    if isinstance(payload, dict) and ("args" in payload or "task" not in headers):  # protocol 1, or half of it
        return _wrong({**payload, **headers}, {**_FIELDS, **_OF_BODY})
    if not isinstance(payload, (list, tuple)) or len(payload) != 3:
        return "its body must be a list of args, kwargs and embed"
    args, kwargs, embed = payload
    if not _is_mapping(embed):
        return f"the embed of its body must be a mapping, not {embed!r:.100}"
    return _wrong({**(embed or {}), "args": args, "kwargs": kwargs}, _OF_BODY)


def late_defect_of(message: Mapping[str, Any], accept: Iterable[str]) -> str | None:
    """Return a defect that would show only when a process is free, or even when it begins the task; None if none.

    Call this for every message. Messages of protocol 2, which Celery sends, are not decoded for it.
    """
    headers = headers_of(message)
    if defect := _too_deep(headers, message["properties"]):
        return defect
    if "task" in headers:
        return _wrong(headers, _LATE)
    try:
        payload = message_of(message, accept).payload
    except Exception:  # Celery reports it
        return None
    if not isinstance(payload, dict):
        return None
    return _wrong(payload, _LATE) or _not_picklable(payload)


def _not_picklable(payload: dict[str, Any]) -> str | None:
    """Say so if a body of protocol 1 is nested too deep: a prefork worker decodes it, and pickles it for a process.

    A chain nests its tasks, three levels for each, so there is no limit but that of pickle.
    """
    if not _is_deeper(payload, _DEEPEST):
        return None
    nested: Any = payload
    for _ in range(_DEEPER_IN_WORKER):
        nested = [nested]
    try:
        pickle.dumps(nested)
    except RecursionError:
        return "its body is nested too deep for the processes of a worker"
    except Exception:  # Celery reports it
        pass
    return None


def _too_deep(*fields: Mapping[str, Any]) -> str | None:
    for some in fields:
        for name, value in some.items():
            if type(value) not in _SCALARS and _is_deeper(value, _DEEPEST):
                return f"its {name:.100} is nested deeper than {_DEEPEST} levels"
    return None


def _is_deeper(value: Any, levels: int) -> bool:
    if not isinstance(value, _NESTED):
        return False
    if not levels:
        return True
    for inner in value.values() if isinstance(value, dict) else value:
        if type(inner) not in _SCALARS and _is_deeper(inner, levels - 1):
            return True
    return False


def _wrong(fields: Mapping[str, Any], checks: Mapping[str, _Check]) -> str | None:
    for name, (is_right, wanted) in checks.items():
        value = fields.get(name)
        if not is_right(value):
            return f"its {name} must be {wanted}, not {value!r:.100}"
    return None

"""Messages that a broken or malicious producer may send: one of Celery's, with something wrong in it."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Iterator
from typing import Any

#: One value of each JSON type, and what is nearly right somewhere.
VALUES: list[Any] = [
    *(None, True, 0, 5, -1.5, 1e308, 10**400, "", "x", "ab", "2030-13-01", [], [1], ["a", "b"], [[], {}], {}, {"a": 1}),
    {"a": {}, "b": []},
]

HEADERS = [
    *("lang", "task", "id", "shadow", "eta", "expires", "group", "group_index", "retries", "timelimit", "root_id"),
    *("parent_id", "argsrepr", "kwargsrepr", "origin", "ignore_result", "replaced_task_nesting", "stamped_headers"),
    *("stamps", "compression", "redelivered", "x-delivery-count", "args", "meth", "hostname"),
]
PROPERTIES = ["correlation_id", "reply_to", "delivery_mode", "delivery_info", "priority", "body_encoding", "delayq_due"]
DELIVERY_INFO = ["exchange", "routing_key", "redelivered", "priority", "consumer_tag"]
PARTS = ["body", "headers", "content-type", "content-encoding"]

#: Bodies of protocol 2.
BODIES: list[Any] = [
    *VALUES,
    *([[], {}], [5, {}, {}], [None, {}, {}], [{}, {}, {}], ["ab", {}, {}], [[], 5, {}], [[], None, {}], [[], [1], {}]),
    *([[], {}, 5], [[], {}, None], [[], {}, [1]], [[], {}, "x"], [[], {}, {}, {}], [[], {}, {"id": {}, "task": 5}]),
    *([[], {}, {"callbacks": 5}], [[], {}, {"callbacks": [5]}], [[], {}, {"errbacks": 5}], [[], {}, {"chord": 5}]),
    *(
        [[], {}, {"chain": 5}],
        [[], {}, {"chain": [5]}],
        {"args": [], "kwargs": {}},
        {"args": 5},
        {"args": [], "task": 5},
    ),
]

#: Fields of a body of protocol 1.
PROTOCOL_1 = {"task": "note", "id": "the-id", "args": [1], "kwargs": {}, "retries": 0}
FIELDS_1 = [*PROTOCOL_1, "eta", "expires", "timelimit", "callbacks", "errbacks", "chord", "utc", "taskset"]

#: What ends a stock worker, one for each place in Celery and kombu at which it does: the path in the message, a value.
DEADLY: dict[str, tuple[tuple[str, ...], Any]] = {
    "task is a dict": (("headers", "task"), {}),
    "task is a list": (("headers", "task"), ["note"]),
    "id is a dict": (("headers", "id"), {}),
    "id is missing": (("headers", "id"), ...),
    "timelimit is a text": (("headers", "timelimit"), "x"),
    "timelimit of texts": (("headers", "timelimit"), ["a", "b"]),
    "timelimit is beyond floats": (("headers", "timelimit"), [10**400, None]),
    "shadow is a list": (("headers", "shadow"), ["a"]),
    "eta is empty": (("headers", "eta"), ""),
    "stamped_headers is a number": (("headers", "stamped_headers"), 5),
    "headers is a list": (("headers",), ["task"]),
    "delivery_info is a text": (("properties", "delivery_info"), "x"),
    "content-type is missing": (("content-type",), ...),
    "content-encoding is a number": (("content-encoding",), 5),
    "body is null": (("body",), None),
    "body is JSON's null": (("body",), base64.b64encode(b"null").decode()),
    "body is an empty list": (("body",), base64.b64encode(b"[]").decode()),
    "body is not base64": (("body",), "\N{SNOWMAN}"),
    "embed is a number": (("body",), base64.b64encode(b"[[], {}, 5]").decode()),
}


def body(value: Any) -> str:
    """A body as Celery's producers send it."""
    return base64.b64encode(json.dumps(value).encode()).decode()


def nested(message: dict[str, Any], path: tuple[str, ...], depth: int) -> bytes:
    """The bytes of a message with lists in lists at a path; Python's encoder would give up."""
    return json.dumps(changed(message, path, "nested")).replace('"nested"', "[" * depth + "]" * depth).encode()


def changed(message: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """A message with another value at a path; `...` for none."""
    message = copy.deepcopy(message)
    place = message
    for name in path[:-1]:
        place = place[name]
    if value is ...:
        place.pop(path[-1], None)
    else:
        place[path[-1]] = value
    return message


def every_change(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a message with each of its fields wrong in each way."""
    paths = [
        *((name,) for name in PARTS),
        *(("headers", name) for name in HEADERS),
        *(("properties", name) for name in PROPERTIES),
        *(("properties", "delivery_info", name) for name in DELIVERY_INFO),
    ]
    for path in paths:
        for value in (*VALUES, ...):
            yield changed(message, path, value)
    for value in BODIES:
        yield changed(message, ("body",), body(value))
    for name in FIELDS_1:
        for value in VALUES:
            yield {**message, "headers": {}, "body": body({**PROTOCOL_1, name: value})}

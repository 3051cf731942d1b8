"""Messages that do harm: malformed ones, and a task that kills its worker, both among harmless tasks."""

from __future__ import annotations

import copy
import json
import uuid
from collections.abc import Iterator
from typing import Any

from tests.soak.scene import Scene
from tests.support import wait_until

#: Where a message is malformed, and how, so that a worker of stock Celery ends; each of them is a dead letter here.
FATAL: tuple[tuple[tuple[str, ...], Any], ...] = (
    (("headers", "task"), {"a": 1}),
    (("headers", "task"), ["a"]),
    (("headers", "id"), {"a": 1}),
    (("headers", "timelimit"), "x"),
    (("headers", "stamped_headers"), 5),
    (("properties", "delivery_info"), "x"),
    (("headers",), 5),
    (("body",), None),
    (("body",), []),
    (("body",), "not base64"),
)

#: Other places, and what is put there: Celery runs some of these, and says of others why not.
_PLACES = (
    *(("headers", name) for name in ("argsrepr", "eta", "expires", "group", "group_index", "id", "ignore_result")),
    *(("headers", name) for name in ("kwargsrepr", "lang", "origin", "parent_id", "replaced_task_nesting", "retries")),
    *(("headers", name) for name in ("root_id", "shadow", "stamped_headers", "stamps", "task", "timelimit")),
    *(("properties", name) for name in ("body_encoding", "correlation_id", "delivery_info", "delivery_mode")),
    *(("properties", name) for name in ("delivery_tag", "priority", "reply_to")),
    *((name,) for name in ("body", "content-encoding", "content-type", "headers", "properties")),
)
_VALUES: tuple[Any, ...] = (None, True, 5, -1.5, "x", "", [], ["a"], {}, {"a": 1})

#: So many of them at a strike: all have been sent after 24.
_SOME = 12

#: A poison is dead within so many seconds, on a busy machine.
_DEAD_S = 200.0

_TEMPLATE = "template"


def send_hostile(scene: Scene, number: int) -> None:
    """Put malformed messages between the others."""
    variants = list(_variants())
    some = [variants[(number * _SOME + at) % len(variants)] for at in range(_SOME)]
    with scene.client() as client:
        for path, value in (*FATAL, *some):
            mark = uuid.uuid4().hex
            message = _message(scene)
            message["mark"] = mark
            place: Any = message
            for key in path[:-1]:
                place = place[key]
            place[path[-1]] = value
            (scene.poisoned if (path, value) in FATAL else scene.suspect).add(mark)
            client.lpush("celery", json.dumps(message))


def _variants() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every place with every value, the places in turns."""
    for shift in range(len(_VALUES)):
        for at, path in enumerate(_PLACES):
            yield path, copy.deepcopy(_VALUES[(at + shift) % len(_VALUES)])


def _message(scene: Scene) -> dict[str, Any]:
    """Return a message of a task that does nothing, as Celery writes it."""
    scene.app.tasks["work"].apply_async((0.0,), queue=_TEMPLATE)
    with scene.client() as client:
        message: dict[str, Any] = json.loads(client.rpop(_TEMPLATE))
        client.delete(f"_kombu.binding.{_TEMPLATE}")
    message["properties"]["delivery_info"] = {"exchange": "", "routing_key": "celery"}
    return message


def send_poison(scene: Scene, number: int) -> None:
    """Send a task that kills its worker, and start workers again until it is dead."""
    deadly = scene.app.tasks["deadly"]
    task_id = str(uuid.uuid4())
    scene.poisoned.add(task_id)
    deadly.apply_async(task_id=task_id)

    def is_dead() -> bool:
        scene.revive()
        return any(task_id.encode() in letter for letter in scene.dead())

    wait_until(is_dead, "the poison is dead", _DEAD_S)

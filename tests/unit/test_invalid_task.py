"""What a worker can take has no defect, what it cannot has one, and nothing makes the search for it fail."""

from __future__ import annotations

import base64
import sys
from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any, NamedTuple

import pytest
from celery import Celery, chain, chord, group, signature
from hypothesis import given
from hypothesis import strategies as st
from kombu.utils.json import dumps, loads

from celery_delayq.worker.invalid_task import defect_of, late_defect_of
from tests.integration import hostile
from tests.worker_app import protocol_1

#: All apps of a process have the same queues in kombu's memory, and others leave messages in theirs.
QUEUE = "of invalid tasks"

ACCEPT = {"application/json", "application/x-python-serialize"}


class Pair(NamedTuple):
    """What pickle brings as it is, and JSON as a list."""

    first: Any
    second: Any


@pytest.fixture(scope="module")
def app() -> Celery:
    found = Celery("shop", broker="memory://", backend="cache+memory://", set_as_current=False)
    found.conf.task_default_queue = QUEUE
    return found


def message(app: Celery, sig: Any = None, **options: Any) -> dict[str, Any]:
    """A message as Celery sends it."""
    (note(app, 1) if sig is None else sig).apply_async(**options)
    with app.connection_for_read() as connection:
        sent = connection.default_channel.queues[QUEUE].get_nowait()
    found: dict[str, Any] = loads(dumps(sent))
    return found


def note(app: Celery, *args: Any) -> Any:
    return signature("note", args=args, app=app)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"countdown": 10},
        {"eta": datetime(2040, 1, 1, tzinfo=timezone.utc), "expires": 5},
        {"time_limit": 10, "soft_time_limit": 0.5},
        {"time_limit": 10},
        {"serializer": "pickle"},
        {"compression": "zlib"},
        {"priority": 9, "shadow": "another name", "argsrepr": "...", "ignore_result": True},
        {"link": [signature("a")], "link_error": [signature("b"), signature("c")]},
        {"stamped_headers": ["customer"], "customer": 5},
        {"headers": {"anything": [1, {}]}, "reply_to": "me", "retries": 3},
        {"group_id": "g", "chord": signature("c"), "root_id": "r", "parent_id": "p", "group_index": 0},
    ],
    ids=str,
)
def test_what_celery_sends_has_no_defect(app: Celery, options: dict[str, Any]) -> None:
    sent = message(app, **options)
    assert defect_of(sent, ACCEPT) is None
    assert late_defect_of(sent, ACCEPT) is None


def test_nor_has_what_its_canvas_sends(app: Celery) -> None:
    for sig in (chain(note(app), note(app), group(note(app), note(app))), chord([note(app)], note(app))):
        sent = message(app, sig)
        assert defect_of(sent, ACCEPT) is None
        assert late_defect_of(sent, ACCEPT) is None


def test_nor_has_one_of_protocol_1(app: Celery) -> None:
    with protocol_1(app):
        sent = message(app, time_limit=5)
    assert "task" not in sent["headers"]
    assert defect_of(sent, ACCEPT) is None
    assert late_defect_of(sent, ACCEPT) is None


#: JSON of this depth is decoded, and not pickled. Since Python 3.14, that depends on the stack, which usually has 8 MB.
TOO_DEEP = {(3, 10): 700, (3, 11): 700, (3, 12): 1000, (3, 13): 6000}.get(sys.version_info[:2], 50_000)


@pytest.mark.parametrize(("depth", "is_right"), [(101, True), (300, True), (TOO_DEEP, False)])
def test_the_body_of_protocol_1_is_as_deep_as_a_worker_can_pickle(depth: int, is_right: bool) -> None:
    args = "[" * depth + "]" * depth
    body = base64.b64encode(f'{{"task": "note", "id": "the-id", "args": {args}, "kwargs": {{}}}}'.encode()).decode()
    sent = {
        "body": body,
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {},
        "properties": {"body_encoding": "base64"},
    }
    assert (late_defect_of(sent, ACCEPT) is None) == is_right


@pytest.mark.parametrize(("path", "value"), hostile.DEADLY.values(), ids=hostile.DEADLY)
def test_what_ends_a_worker_has_a_defect(app: Celery, path: tuple[str, ...], value: Any) -> None:
    assert defect_of(hostile.changed(message(app), path, value), ACCEPT) is not None


@pytest.mark.parametrize(
    ("limits", "is_right"),
    [
        *((None, True), ([], True), ([None, None], True), ([5, None], True), ([0.5, 10], True), ((1, 2), True)),
        *((5, False), ("x", False), ([1], False), ([1, 2, 3], False), (["a", 1], False), ({"a": 1, "b": 2}, False)),
        *(
            ([10**400, None], False),
            ([None, -(10**400)], False),
            ([1e308, None], False),
            ([float("nan"), 1], False),
            ([None, float("inf")], False),
            ([True, 1], False),
        ),
    ],
)
def test_time_limits(app: Celery, limits: Any, is_right: bool) -> None:
    sent = hostile.changed(message(app), ("headers", "timelimit"), limits)
    for defect in (defect_of(sent, ACCEPT), late_defect_of(sent, ACCEPT)):
        assert defect == (None if is_right else f"its timelimit must be two numbers, not {limits!r:.100}")


@pytest.mark.parametrize("place", ["headers", "properties"])
@pytest.mark.parametrize(("depth", "is_right"), [(100, True), (101, False)])
def test_nesting(app: Celery, place: str, depth: int, is_right: bool) -> None:
    sent = loads(hostile.nested(message(app), (place, "anything"), depth))
    for defect in (defect_of(sent, ACCEPT), late_defect_of(sent, ACCEPT)):
        assert defect == (None if is_right else "its anything is nested deeper than 100 levels")


@pytest.mark.parametrize("nest", [lambda it: OrderedDict(a=it), lambda it: Pair(it, 1), lambda it: (it,)])
def test_nesting_of_what_only_pickle_brings(app: Celery, nest: Callable[[Any], Any]) -> None:
    sent = message(app)
    for _ in range(101):
        sent["headers"]["anything"] = nest(sent["headers"].get("anything"))
    assert late_defect_of(sent, ACCEPT) == "its anything is nested deeper than 100 levels"


def test_a_body_is_decoded_only_if_it_is_accepted(app: Celery) -> None:
    defect = defect_of(message(app, serializer="pickle"), {"application/json"})
    assert defect is not None
    assert "ContentDisallowed" in defect


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=6,
)


@given(headers=JSON, body=JSON, kind=JSON, properties=st.dictionaries(st.text(max_size=5), JSON, max_size=3))
def test_nothing_makes_it_raise(headers: Any, body: Any, kind: Any, properties: dict[str, Any]) -> None:
    for sent in (
        {"headers": headers, "body": body, "properties": properties, "content-type": kind},
        {"headers": {"task": headers, "id": body, "timelimit": kind}, "body": body, "properties": {}},
        {"body": dumps(body), "content-type": "application/json", "content-encoding": "utf-8", "properties": {}},
    ):
        late_defect_of(sent, ACCEPT)
        defect_of(sent, ACCEPT)

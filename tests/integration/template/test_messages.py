"""Messages that `apply_async_many` sends with a template are those of `apply_async`."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import redis
from celery import Celery
from celery._state import _task_stack
from celery.canvas import Signature
from celery.result import EagerResult
from kombu import Queue
from kombu.exceptions import OperationalError

from celery_delayq import DelayedQueue, NotAllSent
from celery_delayq.publishing import bulk
from celery_delayq.publishing.template import PublishedTemplate
from tests.brokers import list_for
from tests.integration.publishing import stored
from tests.integration.template.conftest import NAMES, QUEUES, TOPIC, notes, nothing, taken
from tests.ledger import Ledger
from tests.state import calls
from tests.worker_app import publisher

pytestmark = pytest.mark.on_cluster

#: The same in every process that collects these tests.
LATER, LONG_AGO = datetime(2040, 1, 2, 3, 4, 5, 678901, timezone.utc), datetime(2020, 1, 1, tzinfo=timezone.utc)

#: Options of all tasks of a template.
SHARED: list[dict[str, Any]] = [
    {},
    {"eta": LATER},
    {"eta": LATER.isoformat()},
    {"eta": LONG_AGO},
    {"countdown": 3600},
    {"countdown": 0},
    {"countdown": 3600, "eta": LATER},
    {"eta": datetime(2040, 10, 28, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))},
    {"eta": LATER.replace(tzinfo=None)},
    {"countdown": None},
    {"queue": "other", "priority": 6, "eta": LATER},
    {"queue": QUEUES[1]},
    {"queue": "sports", "routing_key": "sports.chess"},
    {"exchange": "news", "routing_key": "sports.chess", "eta": LATER},
    {"serializer": "pickle"},
    {"compression": "zlib", "eta": LATER},
    {"ignore_result": True, "shadow": "another name"},
    {"time_limit": 9, "soft_time_limit": 5},
]

#: Options with which there is no template.
SINGLE: list[dict[str, Any]] = [
    {"link": Signature("note")},
    {"link_error": Signature("note")},
    {"headers": {"x": 1}},
    {"expires": 3600},
    {"group_id": "group", "group_index": 0},
    {"chord": Signature("note")},
    {"stamped_headers": ["customer"], "customer": "7"},
    {"retries": 2},
    {"root_id": "root", "parent_id": "parent"},
]


def without_times(messages: dict[str, list[dict[str, Any]]]) -> list[datetime]:
    """Take out when messages are due and expire, since a countdown begins with its task."""
    times = []
    for message in (message for of_one in messages.values() for message in of_one):
        times += [datetime.fromisoformat(time) for name in ("expires", "eta") if (time := message["headers"].pop(name))]
        message["properties"].pop("expiration", None)
        due_ms = message["properties"].pop("delayq_due", None)
        if due_ms:
            assert abs(times[-1].timestamp() * 1000 - due_ms) <= 1
    return times


@pytest.mark.parametrize("options", SHARED + SINGLE, ids=str)
def test_without_results_the_messages_are_the_same(
    app: Celery, client: redis.Redis, by_template: list[str], options: dict[str, Any]
) -> None:
    app.delayq.apply_async_many(notes(app, **options))
    expected = taken(client)
    assert app.delayq.apply_async_many(notes(app, **options), results=False) == 3
    found = stored(client)
    without_times(expected)
    without_times(found)
    assert found == expected
    assert len(by_template) == (0 if options in SINGLE else 4)


@pytest.mark.parametrize("options", SHARED + SINGLE, ids=str)
def test_the_messages_are_those_of_apply_async(
    app: Celery, client: redis.Redis, by_template: list[str], options: dict[str, Any]
) -> None:
    expected_results = [signature.apply_async() for signature in notes(app, **options)]
    expected = taken(client)
    results = app.delayq.apply_async_many(notes(app, **options))
    found = stored(client)

    for one, other in zip(without_times(found), without_times(expected), strict=True):
        assert abs(one - other) < timedelta(minutes=1)
        assert one.utcoffset() == other.utcoffset()
    assert found == expected
    assert sum(map(len, found.values())) >= 3
    assert [result.id for result in results] == list(NAMES)
    assert [result.ignored for result in results] == [result.ignored for result in expected_results]
    assert [type(result) for result in results] == [type(result) for result in expected_results]
    assert by_template == ([] if options in SINGLE else list(NAMES[1:]))


def test_a_countdown_begins_with_each_task(app: Celery, client: redis.Redis) -> None:
    moments: list[datetime] = []

    def signatures() -> Iterator[Signature]:
        for signature in notes(app, countdown=3600):
            moments.append(datetime.now(timezone.utc))
            yield signature
        moments.append(datetime.now(timezone.utc))

    app.delayq.apply_async_many(signatures())
    etas = without_times(stored(client))
    for before, eta, after in zip(moments[:-1], etas, moments[1:], strict=True):
        assert before <= eta - timedelta(hours=1) <= after


def test_each_may_be_due_at_another_time(app: Celery, client: redis.Redis, by_template: list[str]) -> None:
    """Two of them are equal and an hour apart, since clocks go back."""
    night = datetime(2040, 10, 28, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))
    etas = [night, night.replace(fold=1), LATER, LATER.isoformat()]
    note = app.tasks["note"]
    results = app.delayq.apply_async_many(
        [*(note.s().set(eta=eta) for eta in etas), note.s().set(countdown=3600), note.s()]
    )
    (messages,) = stored(client).values()
    headers = {message["headers"]["id"]: message["headers"]["eta"] for message in messages}
    found = [headers[result.id] for result in results]
    assert found[:4] == ["2040-10-28T02:30:00+02:00", "2040-10-28T02:30:00+01:00", *[LATER.isoformat()] * 2]
    assert found[5] is None
    assert by_template == [result.id for result in results[1:]]


@pytest.mark.parametrize(
    "attributes",
    [{"expires": 60}, {"expires": LATER}, {"time_limit": 9, "soft_time_limit": 5}, {"serializer": "pickle"}],
    ids=str,
)
def test_options_of_the_task_itself(
    app: Celery, client: redis.Redis, by_template: list[str], attributes: dict[str, Any]
) -> None:
    task = app.task(name="of its own", shared=False, lazy=False, **attributes)(nothing)
    signatures = [task.s(name).set(task_id=name) for name in NAMES]
    for signature in signatures:
        signature.apply_async()
    expected = taken(client)
    app.delayq.apply_async_many(signatures)
    found = stored(client)
    for one, other in zip(without_times(found), without_times(expected), strict=True):
        assert abs(one - other) < timedelta(minutes=1)
    assert found == expected
    assert len(by_template) == (0 if "expires" in attributes else 2)


def test_equal_queues_are_not_the_same(app: Celery, client: redis.Redis, by_template: list[str]) -> None:
    queues = [Queue("bound", TOPIC, routing_key=key) for key in ("one", "one")]
    assert queues[0] == queues[1]
    app.delayq.apply_async_many(app.tasks["note"].s().set(queue=queue) for queue in queues)
    assert by_template == []


def test_what_is_missing_in_a_signature(app: Celery, client: redis.Redis, by_template: list[str]) -> None:
    bare = {"task": "note", "args": None, "kwargs": None, "options": {}, "subtask_type": None, "immutable": False}
    app.delayq.apply_async_many([bare] * 3)
    assert client.llen("celery") == 3
    assert len(by_template) == 2


def test_an_app_that_runs_its_tasks_at_once(app: Celery, client: redis.Redis, ledger: Ledger) -> None:
    with publisher("memory://", ledger.url, task_always_eager=True) as other:
        results = app.delayq.apply_async_many(
            [other.tasks["note"].s(1), app.tasks["note"].s(2), other.tasks["note"].s(3), other.tasks["note"].s(4)]
        )
    assert [result.result for result in results if isinstance(result, EagerResult)] == [1, 3, 4]
    assert client.llen("celery") == 1


def test_tasks_and_options_may_alternate(app: Celery, client: redis.Redis, by_template: list[str]) -> None:
    note, add = app.tasks["note"], app.tasks["add"]
    mixture = [
        note.s(1),
        add.s(1, 2),
        note.s(2),
        add.s(3, 4),
        note.s(3).set(queue="other"),
        dict(note.s(4)),
        note.s(5),
        app.signature("unknown here", (6,)),
        app.signature("unknown here", (7,)),
    ]
    results = app.delayq.apply_async_many(mixture)
    headers = [message["headers"] for of_one in stored(client).values() for message in of_one]
    arguments = {of_one["id"]: of_one["argsrepr"] for of_one in headers}
    assert [arguments[result.id] for result in results] == [
        *("(1,)", "(1, 2)", "(2,)", "(3, 4)", "(3,)", "(4,)", "(5,)", "(6,)", "(7,)"),
    ]
    assert by_template == [results[place].id for place in (2, 3, 5, 6)]


def test_a_task_may_alternate_between_queues_and_priorities(
    app: Celery, client: redis.Redis, by_template: list[str]
) -> None:
    """Each has a template, messages of each go together, and keep their order."""
    note = app.tasks["note"]
    ways: list[dict[str, Any]] = [
        {"queue": "celery"},
        {"queue": "celery", "priority": 9},
        {"queue": "other"},
        {"queue": QUEUES[1]},
        {"queue": "sports", "routing_key": "sports.chess"},
    ]
    app.delayq.apply_async_many(note.s().set(eta=LATER, **way) for way in ways)
    by_template.clear()
    taken(client)
    client.config_resetstat()
    results = app.delayq.apply_async_many(
        note.s(number).set(eta=LATER, **ways[number % len(ways)]) for number in range(100)
    )
    # Two scripts are called once for each list: one offers, and one registers, since the list was empty. `other` is the
    # list of two ways, and one way leads to `sports` and `all`.
    assert calls(client, "evalsha") == 2 * 5
    assert len(by_template) == 100 - len(ways)
    ids = [result.id for result in results]
    found = {name: [message["headers"]["id"] for message in messages] for name, messages in stored(client).items()}
    assert found == {
        "celery": ids[::5],
        list_for(client, "celery", 9): ids[1::5],
        "other": sorted(ids[2::5] + ids[3::5], key=ids.index),
        "sports": ids[4::5],
        "all": ids[4::5],
    }


def test_options_that_differ_for_each_task_leave_nothing_behind(
    app: Celery, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "_MOST_TEMPLATES", 10)
    alive: list[int] = []

    def signatures() -> Iterator[Signature]:
        for number in range(100):
            yield app.tasks["note"].s().set(shadow=f"note {number}")
            alive.append(sum(type(found) is PublishedTemplate for found in gc.get_objects()))

    app.delayq.apply_async_many(signatures())
    assert max(alive) <= 10 + 1
    assert client.llen("celery") == 100


@pytest.mark.parametrize("inherit", [False, True])
def test_in_a_task_they_are_its_children(
    broker_url: str, ledger_url: str, client: redis.Redis, by_template: list[str], inherit: bool
) -> None:
    found = []
    with publisher(broker_url, ledger_url, task_inherit_parent_priority=inherit) as app:
        for send, have_results in (
            (lambda: [s.apply_async() for s in notes(app)], True),
            (lambda: app.delayq.apply_async_many(notes(app)), True),
            (lambda: app.delayq.apply_async_many(notes(app), results=False), False),
        ):
            parent = app.tasks["add"]
            parent.push_request(
                id="parent", root_id="first", called_directly=False, children=[], delivery_info={"priority": 3}
            )
            _task_stack.push(parent)
            try:
                results = send()
                assert parent.request.children == (results if have_results else [])
            finally:
                _task_stack.pop()
                parent.pop_request()
            found.append(taken(client))
    assert found[0] == found[1] == found[2]
    assert by_template == list(NAMES[1:]) * 2
    (messages,) = found[0].values()
    assert {message["headers"]["root_id"] for message in messages} == {"first"}
    assert {message["headers"]["parent_id"] for message in messages} == {"parent"}
    assert {message["properties"]["priority"] for message in messages} == {3 if inherit else 0}


class TestErrors:
    @pytest.mark.parametrize(
        ("bad", "reason"), [(("too few",), TypeError), ((1, object()), Exception)], ids=["arguments", "serializer"]
    )
    def test_a_bad_one_in_the_middle_fails_alone(
        self, app: Celery, client: redis.Redis, bad: tuple[Any, ...], reason: type[Exception]
    ) -> None:
        add = app.tasks["add"]
        wrong = add.s(*bad).set(eta=LATER)
        with pytest.raises(NotAllSent) as caught:
            app.delayq.apply_async_many([add.s(1, 2).set(eta=LATER), add.s(3, 4).set(eta=LATER), wrong, add.s(5, 6)])
        ((signature, error),) = caught.value.failed
        assert signature is wrong
        assert isinstance(error, reason)
        assert len(caught.value.results) == DelayedQueue(client, "celery").size() == 2

    def test_they_are_those_of_kombu(self, app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
        def on_task_call(producer: Any, task_id: str) -> None:
            if task_id == "third":
                raise redis.ConnectionError("lost")

        monkeypatch.setattr(app.backend, "on_task_call", on_task_call)
        with pytest.raises(NotAllSent) as caught:
            app.delayq.apply_async_many(notes(app))
        assert isinstance(caught.value.__cause__, OperationalError)
        assert len(caught.value.results) == 2

    def test_a_task_without_a_typed_signature_takes_anything(self, app: Celery, client: redis.Redis) -> None:
        task = app.task(name="untyped", shared=False, lazy=False, typing=False)(nothing)
        app.delayq.apply_async_many(task.s(*range(number)) for number in range(3))
        assert client.llen("celery") == 3

"""`delayq.get` and `delayq.scheduled`: what waits, as it was published, in due order, page by page."""

from __future__ import annotations

import os
import pickle
import random
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import redis
from celery import Celery, chain, group
from kombu.exceptions import OperationalError

from celery_delayq import ConfigurationError, DelayedQueue
from celery_delayq.basics.times import to_datetime, to_ms
from celery_delayq.inspector import Inspector, pages
from celery_delayq.inspector.broker_lists import BrokerLists
from celery_delayq.inspector.pages import Criteria, page
from celery_delayq.queue import codec
from examples.private_redis import PrivateRedis
from tests.brokers import list_for
from tests.integration.publishing import SOON, publish
from tests.state import FAR, calls, nothing_changes, now_ms
from tests.worker_app import publisher

pytestmark = pytest.mark.on_cluster


def ids(tasks: Any) -> list[str | None]:
    return [task.id for task in tasks]


class TestGet:
    def test_says_what_was_published(self, app: Celery, waiting: DelayedQueue) -> None:
        expires = SOON + timedelta(hours=1)
        task_id = publish(app, args=(["long", "list"],), kwargs={}, expires=expires, priority=3)
        with nothing_changes(waiting.client):
            task = app.delayq.get(task_id)
        assert (task.id, task.name, task.args_text, task.kwargs_text) == (task_id, "note", "(['long', 'list'],)", "{}")
        assert task.due == task.eta == SOON
        left_ms = to_ms(task.due, "due") - now_ms(waiting.client)
        assert timedelta(milliseconds=left_ms) <= task.time_left <= timedelta(milliseconds=left_ms, seconds=30)
        assert (task.queue, task.priority, task.broker_list) == ("celery", 3, list_for(waiting.client, "celery", 3))
        assert (task.retries, task.expires, task.root_id, task.parent_id) == (0, expires, task_id, None)
        assert task.content_type == "application/json"
        assert task.headers["id"] == task_id

    def test_what_does_not_wait_is_none(self, app: Celery, waiting: DelayedQueue) -> None:
        ready = app.tasks["note"].delay()
        assert app.delayq.get(ready) is None
        assert app.delayq.get("never heard of") is None
        gone = publish(app)
        app.delayq.cancel(gone)
        assert app.delayq.get(gone) is None
        assert waiting.client.llen("celery") == 1

    def test_many_at_once(self, app: Celery, waiting: DelayedQueue) -> None:
        tasks = [publish(app, queue=f"q{number % 3}", seconds=number) for number in range(30)]
        found = app.delayq.get([*tasks, "never heard of"])
        assert list(found) == [*tasks, "never heard of"]
        assert found.pop("never heard of") is None
        assert [task.id for task in found.values()] == tasks

    def test_takes_what_it_returned(self, app: Celery, waiting: DelayedQueue) -> None:
        publish(app, task_id="one")
        publish(app, task_id="two")
        one, two = app.delayq.scheduled()
        assert app.delayq.get(one) == one
        assert app.delayq.cancel([one, two]) == {"one": True, "two": True}

    def test_of_an_id_that_was_scheduled_twice_the_first_one_due(self, app: Celery, waiting: DelayedQueue) -> None:
        for seconds, queue in [(5, "celery"), (3, "other"), (4, "other")]:
            publish(app, seconds=seconds, task_id="same", queue=queue)
        task = app.delayq.get("same")
        assert (task.queue, task.due) == ("other", SOON + timedelta(seconds=3))

    def test_retries_workflows_and_stamps(self, app: Celery, waiting: DelayedQueue) -> None:
        note = app.tasks["note"]
        eta = SOON.isoformat()
        tail = chain(note.si(1).set(eta=eta), note.si(2))()
        first = app.delayq.get(tail.parent)
        assert first.root_id == tail.parent.id
        members = group(note.si(number).set(eta=eta) for number in range(3))()
        found = app.delayq.get(members)
        assert list(found) == [result.id for result in members]
        assert {task.group_id for task in found.values()} == {members.id}
        result = note.apply_async(eta=SOON, stamped_headers=["tenant"], tenant="acme")
        assert app.delayq.get(result).stamps == {"tenant": "acme"}
        again = publish(app, retries=4)
        assert app.delayq.get(again).retries == 4

    def test_a_pickled_task_is_shown_and_not_unpickled(
        self, app: Celery, waiting: DelayedQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        task_id = publish(app, args=({1, 2},), serializer="pickle")
        monkeypatch.setattr(pickle, "loads", None)
        task = app.delayq.get(task_id)
        assert (task.args_text, task.content_type) == ("({1, 2},)", "application/x-python-serialize")


class TestPages:
    def test_are_in_due_order_over_all_queues_and_priorities(self, app: Celery, waiting: DelayedQueue) -> None:
        where = [{"queue": queue, "priority": priority} for queue in ("celery", "other") for priority in (0, 3, 9)]
        published = {}
        for number in range(60):
            seconds = random.randrange(20)
            published[publish(app, seconds=seconds, **random.choice(where))] = (seconds, number)
        found = list(app.delayq.iter_scheduled(limit=7))
        assert sorted(ids(found), key=str) == sorted(published)
        assert [task.due for task in found] == sorted(task.due for task in found)
        page = app.delayq.scheduled()
        assert ids(page) == ids(found)
        assert (page[0], page[-2:], len(page)) == (found[0], tuple(found[-2:]), len(found))
        for name in {task.broker_list for task in found}:
            of_list = [published[task.id] for task in found if task.broker_list == name]
            assert of_list == sorted(of_list), "the order of offers within a due time"

    def test_filters(self, app: Celery, waiting: DelayedQueue) -> None:
        a = publish(app, "note", 0)
        b = publish(app, "add", 1, args=(1, 2))
        c = publish(app, "note", 2, queue="other")
        delayq, second = app.delayq, timedelta(seconds=1)
        assert ids(delayq.scheduled(task="note")) == [a, c]
        assert ids(delayq.scheduled(queue="celery")) == [a, b]
        assert ids(delayq.scheduled("other", "add")) == []
        assert ids(delayq.scheduled(due_after=SOON + second)) == [b, c]
        assert ids(delayq.scheduled(due_before=SOON + second)) == [a]
        naive = (SOON + second).replace(tzinfo=None)
        assert ids(delayq.scheduled(due_after=naive, due_before=(SOON + 2 * second).timestamp())) == [b]
        assert delayq.scheduled(task="never heard of").cursor is None

    @pytest.mark.parametrize(
        ("text", "found"),
        [
            ("Zoë", [0]),
            ("zoë", []),
            ('"', [1]),
            ("4711", [2]),
            ("'order': 47", [2]),
            ("(", [0, 1, 2, 3]),
            ("任务", [3]),
            ("note", []),
        ],
    )
    def test_a_text_in_the_arguments(self, app: Celery, waiting: DelayedQueue, text: str, found: list[int]) -> None:
        tasks = [
            publish(app, args=("Zoë",)),
            publish(app, "add", 1, args=('it\'s "quoted"', 2)),
            publish(app, seconds=2, queue="other", kwargsrepr="{'order': 4711}", priority=3),
            publish(app, seconds=3, argsrepr="(任务)", args=("4711",)),
        ]
        assert ids(app.delayq.scheduled(text=text)) == [tasks[number] for number in found]
        assert ids(app.delayq.iter_scheduled(text=text, limit=1)) == [tasks[number] for number in found]
        others = [number for number in found if number != 1]
        assert ids(app.delayq.scheduled(text=text, task="note")) == [tasks[number] for number in others]

    def test_a_cursor_stays_valid_when_everything_changes(self, app: Celery, waiting: DelayedQueue) -> None:
        tasks = [publish(app, seconds=number // 4, queue=f"q{number % 4}") for number in range(20)]
        first = app.delayq.scheduled(limit=7)
        assert len(first) == 7
        for task_id in tasks[:10]:
            assert app.delayq.cancel(task_id)
        new = publish(app, seconds=3.5, queue="q9")
        publish(app, seconds=-1, queue="q8")
        rest = list(app.delayq.iter_scheduled(limit=3, cursor=first.cursor))
        assert set(ids(rest)) == {*tasks[10:], new}
        assert len(rest) == 11

    def test_the_last_page_says_so(self, app: Celery, waiting: DelayedQueue) -> None:
        tasks = [publish(app, seconds=number) for number in range(4)]
        first = app.delayq.scheduled(limit=2)
        second = app.delayq.scheduled(limit=2, cursor=first.cursor)
        assert ids(first) + ids(second) == tasks
        assert second.cursor is None
        assert app.delayq.scheduled(limit=4).cursor is None

    def test_entries_of_others_are_shown_as_what_they_are(self, app: Celery, waiting: DelayedQueue) -> None:
        task_id = publish(app)
        waiting.client.zadd("delayq:queues", {"celery": FAR})
        waiting.client.zadd(
            waiting.keys.timeout_set,
            {codec.pack(os.urandom(8), b"\xac\xed\x00\x05java"): FAR, b"garbage": FAR, b"": FAR},
        )
        task, java = app.delayq.scheduled()
        assert task.id == task_id
        assert (java.id, java.name, java.size, java.offered, java.due) == (None, None, 8, None, to_datetime(FAR))

    def test_of_a_queue_that_only_the_app_knows(self, app: Celery, waiting: DelayedQueue) -> None:
        """As Java offers to it."""
        waiting.client.zrem("delayq:queues", "celery")
        waiting.client.zadd(waiting.keys.timeout_set, {codec.pack(os.urandom(8), b"java"): FAR})
        assert [task.size for task in app.delayq.scheduled("celery")] == [4]

    def test_with_a_key_prefix(self, broker_url: str, ledger_url: str, waiting: DelayedQueue) -> None:
        with publisher(broker_url, ledger_url, broker_transport_options={"global_keyprefix": "shop:"}) as app:
            task_id = publish(app, priority=6)
            (task,) = app.delayq.scheduled("celery")
            assert task.id == task_id
            assert task.broker_list.startswith("shop:")
            assert task.broker_list.endswith(list_for(waiting.client, "shop:celery", 6))
            assert app.delayq.cancel(task_id)


class TestEffort:
    @pytest.fixture
    def many(self, waiting: DelayedQueue) -> DelayedQueue:
        """A queue for which 25,000 messages wait, half of them due at one time."""
        waiting.register(again=True)
        for _ in range(5):
            entries = {
                codec.pack(uuid.uuid4().bytes[:8], b"{}"): FAR + (number % 2) * random.randrange(10**6)
                for number in range(5_000)
            }
            waiting.client.zadd(waiting.keys.timeout_set, entries)
        return waiting

    def test_a_filter_that_nothing_matches_ends_after_ten_thousand(self, app: Celery, many: DelayedQueue) -> None:
        cursor: str | None = None
        cursors = []
        for _ in range(3):
            found = app.delayq.scheduled(task="never heard of", cursor=cursor)
            assert found.tasks == ()
            cursor = found.cursor
            cursors.append(cursor)
        assert cursors[2] is None
        assert None not in cursors[:2]

    def test_no_call_on_the_server_reads_more_than_a_page(self, app: Celery, many: DelayedQueue) -> None:
        client = many.client
        client.config_resetstat()
        assert len(list(app.delayq.iter_scheduled(limit=1000))) == 25_000
        page_calls = calls(client, "evalsha")
        # Five slices of 20 entries, and up to 16 looks of the search.
        assert calls(client, "zrange") <= page_calls * (5 + 16)
        assert 250 <= page_calls <= 250 + 25 + 10

    def test_a_page_may_be_short(self, app: Celery, waiting: DelayedQueue) -> None:
        for number in range(9):
            publish(app, "note" if number % 3 else "add", number, args=(1, 2) if number % 3 == 0 else ())
        with app.connection_or_acquire() as connection:
            lists = BrokerLists(connection.default_channel)
            first = page(lists, Criteria(task="add"), 100, None, most_examined=5)
            second = page(lists, Criteria(task="add"), 100, first.cursor, most_examined=5)
        assert (len(first), len(second), second.cursor) == (2, 1, None)

    def test_a_page_examines_no_more_than_it_may(self, app: Celery, many: DelayedQueue) -> None:
        with app.connection_or_acquire() as connection:
            inspector = Inspector(connection.default_channel)
            found = pages.page(inspector.lists, Criteria(text="never heard of"), most_examined=2_000)
            assert (found.tasks, found.examined) == ((), 2_000)
            assert found.cursor is not None


class TestBadInput:
    @pytest.mark.parametrize(
        ("options", "error", "match"),
        [
            ({"limit": 0}, ValueError, "limit must be 1 to 1000"),
            ({"limit": 1001}, ValueError, "limit must be 1 to 1000"),
            ({"limit": "5"}, TypeError, "limit must be a whole number"),
            ({"cursor": "nonsense"}, ValueError, "must be the cursor of a page, not 'nonsense'"),
            ({"cursor": "é"}, ValueError, "must be the cursor of a page"),
            ({"cursor": "WzFd"}, ValueError, "must be the cursor of a page"),
            ({"cursor": 5}, TypeError, "cursor must be"),
            ({"queue": 5}, TypeError, "queue must be a name as a str, not 5"),
            ({"task": b"note"}, TypeError, "task must be a task, its name or a signature"),
            ({"text": b"note"}, TypeError, "text must be a str, not b'note'"),
            ({"text": ""}, ValueError, "text must not be empty"),
            ({"due_after": "tomorrow"}, TypeError, "due_after must be a datetime"),
            ({"due_before": float("nan")}, ValueError, "due_before must be a datetime"),
        ],
    )
    def test_of_scheduled(self, app: Celery, options: dict[str, Any], error: type[Exception], match: str) -> None:
        with pytest.raises(error, match=match):
            app.delayq.scheduled(**options)

    @pytest.mark.parametrize("method", ["get", "cancel", "run_now", "reschedule", "update"])
    @pytest.mark.parametrize("bad", [5, None, b"id", [5], ["id", None], [["id"]]])
    def test_of_a_task_id(self, app: Celery, method: str, bad: Any) -> None:
        with pytest.raises(TypeError, match="a task must be given by its id or its result, not by"):
            getattr(app.delayq, method)(bad, **{"reschedule": {"countdown": 1}, "update": {"args": ()}}.get(method, {}))


CALLS: dict[str, Callable[[Any], Any]] = {
    "get": lambda delayq: delayq.get("id"),
    "scheduled": lambda delayq: delayq.scheduled(),
    "cancel": lambda delayq: delayq.cancel(["id"]),
    "reschedule": lambda delayq: delayq.reschedule("id", countdown=1),
    "run_now": lambda delayq: delayq.run_now("id"),
    "update": lambda delayq: delayq.update("id", priority=3),
    "cancel_all": lambda delayq: delayq.cancel_all(queue="celery"),
    "change_some": lambda delayq: delayq.change_some("reschedule", queue="celery", eta=SOON),
    "counts": lambda delayq: delayq.counts(),
    "consumers": lambda delayq: delayq.consumers(),
    "histogram": lambda delayq: delayq.histogram(0, 1, 1),
    "export": lambda delayq: delayq.export(os.devnull),
    "import_": lambda delayq: delayq.import_([b'{"format": "celery_delayq", "version": 1}', LINE, b'{"end": 1}']),
    "release": lambda delayq: delayq.release(),
}
LINE = b'{"queue": "q", "priority": 0, "due_ms": 1, "key": "%s", "payload": ""}' % (b"00" * 16)


@pytest.mark.parametrize("method", CALLS)
def test_another_broker_is_refused(redis_server: PrivateRedis, ledger_url: str, method: str) -> None:
    with (
        publisher(redis_server.url, ledger_url) as app,
        pytest.raises(ConfigurationError, match="start the URL with delayq://"),
    ):
        CALLS[method](app.delayq)


@pytest.mark.parametrize("method", CALLS)
def test_a_dead_server_is_an_operational_error(ledger_url: str, method: str) -> None:
    with PrivateRedis() as server, publisher(f"delayq://127.0.0.1:{server.port}/0", ledger_url) as app:
        CALLS[method](app.delayq)
        server.kill()
        with pytest.raises(OperationalError):
            CALLS[method](app.delayq)


@pytest.mark.parametrize("method", ["get", "reschedule", "run_now"])
@pytest.mark.usefixtures("waiting")
def test_a_list_that_the_server_refuses_shields_no_task(app: Celery, broker_client: redis.Redis, method: str) -> None:
    broker_client.zadd("delayq:queues", {"refused": FAR})
    broker_client.set("delayq:index:{refused}", "of a wrong type")
    try:
        publish(app, task_id="id")
        assert CALLS[method](app.delayq)
        with pytest.raises(OperationalError, match=r"cannot look up task other: .*WRONGTYPE"):
            app.delayq.get("other")
    finally:
        broker_client.zrem("delayq:queues", "refused")

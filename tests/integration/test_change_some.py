"""`delayq.change_some`: many tasks, a chunk at a time; each is changed once, or somebody else was faster."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import pytest
import redis
from celery import Celery

from celery_delayq import Chunk, DelayedQueue
from celery_delayq.basics.times import to_datetime
from celery_delayq.inspector.pages import MOST_EXAMINED
from celery_delayq.queue import codec
from tests.brokers import list_for
from tests.integration.publishing import SOON, publish, ready
from tests.integration.test_rescheduling import without_eta
from tests.state import FAR, calls, fill, nothing_changes, now_ms, offer
from tests.support import wait_until

pytestmark = pytest.mark.on_cluster

SECOND = timedelta(seconds=1)
ACTIONS: list[tuple[str, dict[str, Any]]] = [
    ("cancel", {}),
    ("run_now", {}),
    ("reschedule", {"eta": SOON + 10.5 * SECOND}),
    ("reschedule", {"eta": SOON - 5 * SECOND}),
    ("reschedule", {"eta": SOON + 500 * SECOND}),
    ("reschedule", {"eta": 5}),
]


def chunks(app: Celery, action: str, **options: Any) -> Iterator[Chunk]:
    """All chunks."""
    cursor = None
    while True:
        chunk = app.delayq.change_some(action, cursor=cursor, **options)
        assert not chunk.lost
        yield chunk
        if (cursor := chunk.cursor) is None:
            return


def summed(found: list[Chunk]) -> tuple[int, int, int]:
    """How many were changed, late and refused."""
    return sum(it.changed for it in found), sum(it.late for it in found), sum(it.refused for it in found)


@pytest.fixture
def forty(app: Celery, waiting: DelayedQueue) -> set[str]:
    """The ids of forty tasks in two queues and three priorities, due a second apart."""
    where = [{"queue": queue, "priority": priority} for queue in ("celery", "other") for priority in (0, 3, 9)]
    return {publish(app, seconds=number, **where[number % 6]) for number in range(40)}


def delivered(client: redis.Redis) -> list[dict[str, Any]]:
    """All messages on broker lists."""
    return [
        message
        for queue in ("celery", "other")
        for priority in (0, 3, 9)
        for message in ready(client, list_for(client, queue, priority))
    ]


class TestChunks:
    @pytest.mark.parametrize(("action", "when"), ACTIONS)
    def test_change_each_task_once(
        self, app: Celery, waiting: DelayedQueue, forty: set[str], action: str, when: dict[str, Any]
    ) -> None:
        found = list(chunks(app, action, everything=True, limit=7, **when))
        assert summed(found) == (40, 0, 0)
        assert all(chunk.changed <= 7 for chunk in found)
        assert sum(chunk.examined for chunk in found) == 40
        assert len(found) <= 40 / 7 + 2
        left = {task.id: task for task in app.delayq.iter_scheduled()}
        ids = {message["headers"]["id"] for message in delivered(waiting.client)}
        eta = when.get("eta", 5)
        if action == "cancel":
            assert left.keys() == ids == set()
        elif isinstance(eta, datetime):
            assert (left.keys(), ids) == (forty, set())
            assert {task.due for task in left.values()} == {task.eta for task in left.values()} == {eta}
        else:
            assert (left, ids) == ({}, forty)
        assert waiting.client.hlen(waiting.keys.index) == sum(
            task.broker_list == waiting.name for task in left.values()
        )

    @pytest.mark.parametrize(("action", "when"), ACTIONS)
    def test_leave_what_does_not_match(
        self, app: Celery, waiting: DelayedQueue, forty: set[str], action: str, when: dict[str, Any]
    ) -> None:
        wanted = {publish(app, args=("this",), seconds=number, queue="other") for number in range(20)}
        options = {"queue": "other", "text": "'this'", "due_before": SOON + 15 * SECOND, **when}
        found = list(chunks(app, action, limit=4, **options))
        assert summed(found) == (15, 0, 0)
        ids = {message["headers"]["id"] for message in delivered(waiting.client)}
        left = {task.id: task for task in app.delayq.iter_scheduled()}
        assert ids <= wanted
        assert forty <= left.keys()
        if action == "reschedule" and isinstance(when["eta"], datetime):
            assert sum(task.due == when["eta"] for task in left.values()) == 15
        else:
            assert len(wanted & left.keys()) == 5

    def test_skip_what_is_due_then_already(self, app: Celery, waiting: DelayedQueue) -> None:
        """Without looking at it: it may be a million tasks."""
        for number in range(30):
            publish(app, seconds=max(0, number - 20))
        found = list(chunks(app, "reschedule", everything=True, eta=SOON, limit=5))
        assert summed(found) == (9, 0, 0)
        assert sum(chunk.examined for chunk in found) == 9
        again = app.delayq.change_some("reschedule", everything=True, eta=SOON)
        assert (again.changed, again.late, again.examined, again.cursor) == (0, 0, 0, None)

    def test_end_after_ten_thousand_examined_tasks(self, app: Celery, waiting: DelayedQueue) -> None:
        waiting.register(again=True)
        fill(waiting, 15_000)
        found = list(chunks(app, "cancel", text="never heard of"))
        assert [chunk.examined for chunk in found] == [MOST_EXAMINED, 5_000]
        assert summed(found) == (0, 0, 0)
        found = list(chunks(app, "reschedule", text="never heard of", eta=FAR / 1000 + 500))
        assert (
            sum(chunk.examined for chunk in found)
            + waiting.count(due_after=to_datetime(FAR + 500_000), due_before=to_datetime(FAR + 500_000 + 1))
            == 15_000
        )
        assert all(chunk.examined <= MOST_EXAMINED + 200 for chunk in found)

    @pytest.mark.parametrize("action", ["cancel", "run_now", "reschedule"])
    def test_take_few_round_trips(self, app: Celery, waiting: DelayedQueue, action: str) -> None:
        waiting.register(again=True)
        fill(waiting, 3_000)
        waiting.client.config_resetstat()
        chunk = app.delayq.change_some(
            action, queue="celery", **({"eta": SOON + timedelta(days=50_000)} if action == "reschedule" else {})
        )
        assert (chunk.changed, chunk.examined) == (1000, 1000)
        # Eleven pages, and calls for 25 or a hundred tasks each.
        assert calls(waiting.client, "evalsha") <= (40 if action == "reschedule" else 10) + 12
        assert waiting.size() == (3_000 if action == "reschedule" else 2_000)


class TestTasks:
    def test_keep_everything_but_the_time(self, app: Celery, waiting: DelayedQueue) -> None:
        task = app.tasks["note"].apply_async(("body",), eta=SOON, expires=SOON + SECOND, priority=0)
        app.tasks["note"].apply_async(("body",), eta=SOON, task_id=task.id)
        before = [entry.payload for entry in waiting.peek(9)]
        assert app.delayq.change_some("reschedule", queue="celery", eta=SOON + SECOND).changed == 2
        after = waiting.peek(9)
        found = app.delayq.get(task.id)
        assert found.eta == found.due == SOON + SECOND
        assert [without_time(entry.payload) for entry in after] == [without_time(payload) for payload in before]
        assert app.delayq.cancel(task.id)
        assert waiting.size() == 0

    def test_run_in_due_order(self, app: Celery, waiting: DelayedQueue) -> None:
        ids = [publish(app, seconds=number) for number in range(250)]
        assert app.delayq.change_some("run_now", queue="celery").changed == 250
        messages = ready(waiting.client)
        assert [message["headers"]["id"] for message in messages] == ids
        assert {message["headers"]["eta"] for message in messages} == {None}

    def test_get_an_eta_that_is_over(self, app: Celery, waiting: DelayedQueue) -> None:
        publish(app)
        assert app.delayq.change_some("reschedule", queue="celery", eta=5).changed == 1
        (message,) = ready(waiting.client)
        assert message["headers"]["eta"] == "1970-01-01T00:00:05+00:00"
        assert "delayq_due" not in message["properties"]

    @pytest.mark.parametrize(("action", "when"), ACTIONS)
    def test_of_other_programs(self, app: Celery, waiting: DelayedQueue, action: str, when: dict[str, Any]) -> None:
        """They have no message id, so they cannot get another time."""
        waiting.register(again=True)
        publish(app, seconds=1)
        java = codec.pack(b"12345678", b"java")
        waiting.client.zadd(waiting.keys.timeout_set, {java: FAR})
        chunk = app.delayq.change_some(action, everything=True, **when)
        is_refused = isinstance(when.get("eta"), datetime)
        assert (chunk.changed, chunk.late, chunk.refused) == (1 if is_refused else 2, 0, int(is_refused))
        assert (waiting.client.zscore(waiting.keys.timeout_set, java) == FAR) is is_refused
        assert (b"java" in waiting.client.lrange("celery", 0, -1)) is (action != "cancel" and not is_refused)


def without_time(payload: bytes) -> dict[str, Any]:
    """A message without what another time changes."""
    return without_eta(json.loads(payload))


class TestRaces:
    @pytest.mark.parametrize(
        ("method", "action", "when"), [("remove", *ACTIONS[0]), ("release", *ACTIONS[1]), ("amend_many", *ACTIONS[4])]
    )
    def test_a_task_that_somebody_else_was_faster_to_take_is_late(
        self,
        app: Celery,
        waiting: DelayedQueue,
        monkeypatch: pytest.MonkeyPatch,
        method: str,
        action: str,
        when: dict[str, Any],
    ) -> None:
        ids = [publish(app, seconds=number) for number in range(6)]
        change = getattr(DelayedQueue, method)

        def changed(queue: DelayedQueue, *args: Any, **kwargs: Any) -> Any:
            monkeypatch.undo()
            assert app.delayq.cancel(ids[0])
            assert app.delayq.reschedule(ids[1], eta=SOON + 1000 * SECOND)
            assert app.delayq.run_now(ids[2])
            return change(queue, *args, **kwargs)

        monkeypatch.setattr(DelayedQueue, method, changed)
        chunk = app.delayq.change_some(action, everything=True, **when)
        assert (chunk.changed, chunk.late) == (3, 3)
        assert app.delayq.get(ids[1]).due == SOON + 1000 * SECOND

    def test_beside_a_transfer_each_is_changed_or_delivered(self, app: Celery, waiting: DelayedQueue) -> None:
        waiting.register(again=True)
        for number in range(3_000):
            offer(waiting, str(number), 1 + number)
        stop = threading.Event()

        def transfer() -> int:
            moved = 0
            while not stop.is_set():
                moved += waiting.transfer(2).moved
            return moved

        with ThreadPoolExecutor(1) as threads:
            transferring = threads.submit(transfer)
            wait_until(lambda: waiting.size() < 2_950, "the transfer began")
            found = list(chunks(app, "cancel", queue="celery", limit=100))
            stop.set()
            moved = transferring.result()
        cancelled, _, _ = summed(found)
        assert cancelled + moved + waiting.size() == 3_000
        assert waiting.client.llen("celery") == moved
        assert min(cancelled, moved) > 20, "the race did not happen"

    def test_tasks_that_others_reschedule_are_never_doubled(self, app: Celery, waiting: DelayedQueue) -> None:
        for number in range(200):
            publish(app, seconds=number, args=(number,))
        etas = [SOON + 50.5 * SECOND, SOON + 100.5 * SECOND, SOON + 400 * SECOND]
        with ThreadPoolExecutor(3) as threads:
            list(threads.map(lambda eta: list(chunks(app, "reschedule", everything=True, eta=eta, limit=20)), etas))
        found = list(app.delayq.iter_scheduled())
        assert len({task.args_text for task in found}) == len(found) == 200
        assert {task.due for task in found} <= set(etas) | {SOON + number * SECOND for number in range(200)}


class TestWrongUse:
    @pytest.mark.parametrize(
        ("action", "options", "error", "match"),
        [
            ("cancel", {}, ValueError, "give a queue, a task, a time or a text, or pass everything=True"),
            ("delete", {"everything": True}, ValueError, "action must be one of 'cancel', 'reschedule', 'run_now'"),
            ("reschedule", {"everything": True}, TypeError, "give an eta to reschedule"),
            ("cancel", {"everything": True, "eta": SOON}, TypeError, "cancel takes no eta"),
            ("run_now", {"everything": True, "eta": SOON}, TypeError, "run_now takes no eta"),
            ("reschedule", {"everything": True, "eta": "soon"}, TypeError, "eta must be a datetime"),
            ("reschedule", {"everything": True, "eta": 1e15}, ValueError, "eta must be a datetime"),
            ("cancel", {"everything": True, "limit": 0}, ValueError, "limit must be 1 to 1000"),
            ("cancel", {"everything": True, "limit": 1001}, ValueError, "limit must be 1 to 1000"),
            ("reschedule", {"everything": True, "eta": SOON, "limit": "5"}, TypeError, "limit must be a whole number"),
            ("cancel", {"everything": True, "cursor": "nonsense"}, ValueError, "must be the cursor of a page"),
            ("reschedule", {"everything": True, "eta": 5, "cursor": "x"}, ValueError, "must be the cursor of a page"),
            ("cancel", {"text": ""}, ValueError, "text must not be empty"),
        ],
    )
    def test_changes_nothing(
        self,
        app: Celery,
        waiting: DelayedQueue,
        action: Any,
        options: dict[str, Any],
        error: type[Exception],
        match: str,
    ) -> None:
        publish(app)
        with nothing_changes(waiting.client), pytest.raises(error, match=match):
            app.delayq.change_some(action, **options)

    def test_a_list_that_the_server_refuses_is_an_error(self, app: Celery, waiting: DelayedQueue) -> None:
        publish(app)
        waiting.client.delete(waiting.keys.index)
        waiting.client.set(waiting.keys.index, "no hash")
        for action, when in ACTIONS:
            with nothing_changes(waiting.client), pytest.raises(Exception, match="WRONGTYPE"):
                app.delayq.change_some(action, everything=True, **when)


def test_an_eta_is_over_by_the_servers_clock(app: Celery, waiting: DelayedQueue) -> None:
    publish(app)
    publish(app)
    assert app.delayq.change_some("reschedule", queue="celery", eta=now_ms(waiting.client) / 1000, limit=1).changed == 1
    soon = now_ms(waiting.client) / 1000 + 100
    assert app.delayq.change_some("reschedule", queue="celery", eta=soon, limit=1).changed == 1
    assert (waiting.size(), waiting.client.llen("celery")) == (1, 1)

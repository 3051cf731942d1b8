"""`delayq.get` with `ready=True`, and `scheduled` with `state="ready"`: what is in the queues, the oldest first."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import redis
from celery import Celery

from celery_delayq import Unique, UnknownQueue
from celery_delayq.inspector import Inspector
from tests.brokers import list_for
from tests.integration.publishing import SOON, publish
from tests.state import nothing_changes, now_ms

pytestmark = [pytest.mark.on_cluster, pytest.mark.usefixtures("empty_broker")]


def send(app: Celery, *ids: str, task: str = "note", **options: Any) -> None:
    for task_id in ids:
        app.tasks[task].apply_async(task_id=task_id, **options)


def ids(tasks: Any) -> list[str]:
    return [task.id for task in tasks]


def test_a_ready_task_says_what_was_published(app: Celery, broker_client: redis.Redis) -> None:
    send(app, "a", task="add", args=(1, 2), priority=3, expires=SOON)
    with nothing_changes(broker_client):
        assert app.delayq.get("a") is None
        task = app.delayq.get("a", ready=True)
        assert app.delayq.get(["a", "nobody"], ready=True)["nobody"] is None
    assert (task.id, task.name, task.args_text, task.state) == ("a", "add", "(1, 2)", "ready")
    assert (task.queue, task.priority, task.broker_list) == ("celery", 3, list_for(broker_client, "celery", 3))
    assert (task.eta, task.expires, task.offered, task.body[0]) == (None, SOON, None, [1, 2])
    assert (task.time_left, task.to_dict()["state"]) == (timedelta(0), "ready")
    assert abs(task.due.timestamp() * 1000 - now_ms(broker_client)) < 60_000


def test_a_task_that_was_delayed_says_when_it_was_due(app: Celery, broker_client: redis.Redis) -> None:
    publish(app, task_id="a")
    assert app.delayq.get("a", ready=True).state == "delayed"
    app.delayq.release("celery")
    task = app.delayq.get("a", ready=True)
    assert (task.state, task.due, task.eta) == ("ready", SOON, SOON)


def test_pages_are_queue_by_queue_and_oldest_first(app: Celery, broker_client: redis.Redis) -> None:
    send(app, "c", "d", queue="other")
    send(app, "late", priority=9)
    send(app, "a", "b")
    send(app, "later", countdown=600)
    assert ids(app.delayq.scheduled(state="ready")) == ["a", "b", "late", "c", "d"]
    assert ids(app.delayq.scheduled(state="ready", queue="other")) == ["c", "d"]
    assert ids(app.delayq.scheduled()) == ["later"]
    seen, cursor = [], None
    while not seen or cursor:
        page = app.delayq.scheduled(state="ready", limit=2, cursor=cursor)
        seen, cursor = [*seen, *ids(page)], page.cursor
    assert seen == ["a", "b", "late", "c", "d"]


def test_all_lists_of_a_queue_that_has_delayed_tasks_in_one_of_them(app: Celery) -> None:
    send(app, "later", queue="mail", priority=3, countdown=600)
    send(app, "a", queue="mail")
    send(app, "b", queue="mail", priority=9)
    app.amqp.queues.pop("mail", None)
    assert ids(app.delayq.scheduled(state="ready")) == ["a", "b"]
    assert app.delayq.cancel(["a", "b"], ready=True) == {"a": True, "b": True}


def test_filters(app: Celery) -> None:
    send(app, "a", "b")
    send(app, "c", task="add", args=(7, 8))
    assert ids(app.delayq.scheduled(state="ready", task="add")) == ["c"]
    assert ids(app.delayq.scheduled(state="ready", text="7, 8")) == ["c"]
    assert ids(app.delayq.scheduled(state="ready", due_after=SOON)) == []
    assert ids(app.delayq.scheduled(state="ready", due_before=SOON)) == ["a", "b", "c"]


def test_a_search_goes_on_where_it_ended(app: Celery) -> None:
    app.delayq.apply_async_many(app.tasks["note"].s() for _ in range(10_500))
    send(app, "last", task="add", args=(1, 2))
    page = app.delayq.scheduled(state="ready", task="add")
    assert (ids(page), page.examined >= 10_000) == ([], True)
    page = app.delayq.scheduled(state="ready", task="add", cursor=page.cursor)
    assert (ids(page), page.cursor) == (["last"], None)


@pytest.mark.parametrize("gone", [0, 3, 10, 25])
@pytest.mark.parametrize("new", [0, 4])
def test_a_page_goes_on_behind_the_last_one_whatever_workers_take(
    app: Celery, broker_client: redis.Redis, gone: int, new: int
) -> None:
    send(app, *(f"{number:02}" for number in range(40)))
    page = app.delayq.scheduled(state="ready", limit=10)
    name = list_for(broker_client, "celery")
    broker_client.rpop(name, gone or None) if gone else None
    send(app, *(f"new {number}" for number in range(new)))
    rest = [f"{number:02}" for number in range(max(10, gone), 40)] + [f"new {number}" for number in range(new)]
    assert ids(app.delayq.scheduled(state="ready", limit=1000, cursor=page.cursor)) == rest


def test_a_page_goes_on_when_workers_put_messages_back(app: Celery, broker_client: redis.Redis) -> None:
    send(app, *(f"{number:02}" for number in range(30)))
    name = list_for(broker_client, "celery")
    first = broker_client.rpop(name, 5)
    page = app.delayq.scheduled(state="ready", limit=10)
    assert ids(page)[-1] == "14"
    broker_client.rpush(name, *reversed(first))
    rest = [f"{number:02}" for number in range(15, 30)]
    assert ids(app.delayq.scheduled(state="ready", cursor=page.cursor)) == rest


def test_nothing_is_missed_when_the_last_one_was_cancelled(app: Celery) -> None:
    send(app, *(f"{number:02}" for number in range(20)))
    page = app.delayq.scheduled(state="ready", limit=5)
    assert app.delayq.cancel("04", ready=True)
    left = {f"{number:02}" for number in range(5, 20)}
    assert left <= set(ids(app.delayq.scheduled(state="ready", cursor=page.cursor)))


def test_all_of_them(app: Celery) -> None:
    app.delayq.apply_async_many(app.tasks["note"].s() for _ in range(350))
    found = ids(app.delayq.iter_scheduled(state="ready", limit=100))
    assert len(found) == len(set(found)) == 350


def test_a_queue_is_known_by_what_was_published_to_it(app: Celery, broker_client: redis.Redis) -> None:
    """It is no queue of the configuration, nobody consumes it, and nothing was ever delayed for it."""
    for priority in (0, 9):
        send(app, f"a{priority}", queue="elsewhere", priority=priority)
        app.tasks["note"].apply_async(queue=f"unique {priority}", unique=Unique(key="k"), priority=priority)
    app.delayq.apply_async_many(app.tasks["note"].s().set(queue="many") for _ in range(2))
    for queue in ("elsewhere", "unique 0", "unique 9", "many"):
        app.amqp.queues.pop(queue, None)
    ready = {it.queue: it.ready for it in app.delayq.counts().queues}
    assert ready.items() >= {"celery": 0, "elsewhere": 2, "unique 0": 1, "unique 9": 1, "many": 2}.items()
    assert app.delayq.get("a9", ready=True).queue == "elsewhere"
    assert app.delayq.cancel(["a0", "a9"], ready=True) == {"a0": True, "a9": True}


def test_a_queue_is_found_by_its_name_alone(app: Celery, broker_client: redis.Redis) -> None:
    """It is no queue of the configuration, and whoever published to it has told nobody."""
    send(app, "a", queue="elsewhere")
    app.amqp.queues.pop("elsewhere", None)
    broker_client.delete("delayq:queues")
    assert ids(app.delayq.scheduled(state="ready")) == []
    assert ids(app.delayq.scheduled("elsewhere", state="ready")) == ["a"]
    with pytest.raises(UnknownQueue):
        app.delayq.scheduled("nowhere", state="ready")


@pytest.mark.parametrize("cursor", ["", "nonsense", "WzEsMl0", "WyJjZWxlcnkiLDEsMl0"])
def test_wrong_arguments(app: Celery, cursor: str) -> None:
    with pytest.raises(ValueError, match="cursor must be the cursor"):
        app.delayq.scheduled(state="ready", cursor=cursor)
    with pytest.raises(ValueError, match="state must be one of 'delayed', 'ready', not 'running'"):
        app.delayq.scheduled(state="running")
    with pytest.raises(ValueError, match="limit"):
        app.delayq.scheduled(state="ready", limit=0)


def test_large_messages(app: Celery) -> None:
    for number in range(4):
        app.tasks["note"].apply_async(("x" * 9_000_000,), task_id=str(number))
    page = app.delayq.scheduled(state="ready")
    assert ids(page) == ["0", "1", "2"]
    assert ids(app.delayq.scheduled(state="ready", cursor=page.cursor)) == ["3"]


def test_calls_are_bounded(app: Celery, broker_client: redis.Redis) -> None:
    """However many are ready, a page reads a few hundred."""
    app.delayq.apply_async_many(app.tasks["note"].s() for _ in range(3000))
    page = app.delayq.scheduled(state="ready", limit=50)
    assert page.examined == len(page) == 50
    with app.connection_for_read() as connection:
        assert len(Inspector(connection.default_channel).get(["nobody"], ready=True)) == 1

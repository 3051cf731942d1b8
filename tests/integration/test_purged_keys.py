"""However the message of a task leaves, its unique key is free afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from celery import Celery

from celery_delayq import DelayedQueue, Unique
from tests.integration.long_tasks import add_long_tasks, long_worker, open_gate
from tests.ledger import Ledger
from tests.support import wait_until
from tests.worker_app import publisher

pytestmark = pytest.mark.on_cluster(always=True)

KEY = "rebuild:7"

IN_A_WORKER = pytest.mark.parametrize("for_", ["until_start", "until_done"])


@pytest.fixture(scope="module")
def app(broker_url: str, ledger_url: str) -> Iterator[Celery]:
    with publisher(broker_url, ledger_url) as app:
        yield add_long_tasks(app, Ledger(ledger_url))


def send(app: Celery, for_: Any = "until_done", task: str = "note", **options: Any) -> Any:
    return app.tasks[task].apply_async(unique=Unique(key=KEY, for_=for_), **options)


def delete(app: Celery) -> None:
    with app.connection_for_write() as connection:
        queue = app.amqp.queues["celery"](connection.default_channel)
        queue.declare()
        queue.delete()


def delete_if_empty(app: Celery) -> None:
    with app.connection_for_write() as connection:
        queue = app.amqp.queues["celery"](connection.default_channel)
        queue.declare()
        queue.delete(if_empty=True)


WAYS: list[Callable[[Celery], Any]] = [lambda app: app.control.purge(), delete]


@IN_A_WORKER
@pytest.mark.parametrize("way", WAYS, ids=["purge", "delete"])
@pytest.mark.parametrize("options", [{}, {"priority": 3}, {"countdown": 600}], ids=["ready", "priority", "delayed"])
def test_of_a_ready_task(
    app: Celery, waiting: DelayedQueue, for_: Any, way: Callable[[Celery], Any], options: dict[str, Any]
) -> None:
    first = send(app, for_, **options)
    if options.get("countdown"):
        assert app.delayq.run_now(first)
    assert send(app, for_).id == first.id, "the key is held before"
    way(app)
    second = send(app, for_)
    assert second.was_new
    assert second.id != first.id


#: How a task that waits is removed.
REMOVALS: dict[str, Callable[[Celery, DelayedQueue, str], Any]] = {
    "cancel": lambda app, waiting, task_id: app.delayq.cancel(task_id),
    "cancel_all": lambda app, waiting, task_id: app.delayq.cancel_all(queue="celery"),
    "revoke": lambda app, waiting, task_id: app.control.revoke(task_id),
    "another program": lambda app, waiting, task_id: waiting.client.delete(waiting.keys.timeout_set),
    "FLUSHDB": lambda app, waiting, task_id: waiting.client.flushdb(),
    "run now and purge": lambda app, waiting, task_id: (app.delayq.run_now(task_id), app.control.purge()),
}


@pytest.mark.parametrize("for_", ["waiting", "until_start", "until_done"])
@pytest.mark.parametrize("remove", REMOVALS.values(), ids=REMOVALS)
def test_of_a_task_that_waits(
    app: Celery, waiting: DelayedQueue, for_: Any, remove: Callable[[Celery, DelayedQueue, str], Any]
) -> None:
    first = send(app, for_, countdown=600)
    assert send(app, for_, countdown=600).id == first.id
    remove(app, waiting, first.id)
    assert waiting.size() == 0
    assert send(app, for_, countdown=600).was_new


def test_many_are_purged(app: Celery, waiting: DelayedQueue) -> None:
    """Among messages without keys; more than one slice."""
    unique = [app.tasks["note"].s(n).set(unique=Unique(key=f"k{n}", for_="until_done")) for n in range(150)]
    assert app.delayq.apply_async_many(unique, results=False) == 150
    app.delayq.apply_async_many((app.tasks["note"].s(n) for n in range(2000)), results=False)
    assert app.control.purge() == 2150
    assert waiting.client.llen("celery") == waiting.client.hlen(waiting.keys.holds) == 0


def test_a_task_that_waits_keeps_its_key(app: Celery, waiting: DelayedQueue) -> None:
    first = send(app, countdown=600)
    app.control.purge()
    assert send(app).id == first.id


def test_a_queue_that_is_not_empty_is_not_deleted(app: Celery, waiting: DelayedQueue) -> None:
    first = send(app)
    delete_if_empty(app)
    assert waiting.client.llen("celery") == 1
    assert send(app).id == first.id


def test_a_task_that_runs_keeps_its_key(app: Celery, waiting: DelayedQueue, broker_url: str, ledger: Ledger) -> None:
    """Only what is in the queue is purged."""
    with long_worker(broker=broker_url, ledger=ledger):
        try:
            running = send(app, task="gated_late")
            wait_until(lambda: ledger.runs(), "it runs")
            app.control.purge()
            assert send(app).id == running.id
        finally:
            open_gate(ledger)


def test_a_retry_that_waits_keeps_its_key(app: Celery, waiting: DelayedQueue, broker_client: redis.Redis) -> None:
    """A copy of the task in the queue, which came back from a killed worker, does not give up the key of its retry."""
    first = send(app)
    (raw,) = broker_client.lrange("celery", 0, -1)
    note = app.tasks["note"]
    message = note.apply_async(
        task_id=first.id, retries=1, countdown=600, unique=Unique(key=KEY, for_="until_done"), on_conflict="replace"
    )
    assert message.was_new
    assert broker_client.lrange("celery", 0, -1) == [raw]
    app.control.purge()
    assert not send(app).was_new

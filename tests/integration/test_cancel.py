"""`delayq.cancel`: True means that the task will not run, False that it has or will."""

from __future__ import annotations

import pytest
import redis
from celery import Celery
from kombu.exceptions import OperationalError

from celery_delayq import ConfigurationError, DelayedQueue
from examples.private_redis import PrivateRedis
from tests.integration.racing import take_back_when_due
from tests.ledger import Ledger, Verdict
from tests.state import FAR
from tests.support import wait_until
from tests.worker_app import publisher
from tests.workers import Worker

pytestmark = pytest.mark.on_cluster(always=True)


def test_it_says_whether_the_task_was_still_waiting(app: Celery, waiting: DelayedQueue) -> None:
    result = app.tasks["note"].apply_async(countdown=60)
    other = app.tasks["note"].apply_async(countdown=60)
    assert app.delayq.cancel(result.id) is True
    assert app.delayq.cancel(result.id) is False
    assert app.delayq.cancel("never heard of") is False
    assert [entry.score for entry in waiting.peek(9)] != []
    assert app.delayq.cancel(other.id) is True
    assert waiting.size() == 0


def test_a_task_that_is_not_delayed_cannot_be_cancelled(app: Celery, waiting: DelayedQueue) -> None:
    result = app.tasks["note"].delay()
    assert app.delayq.cancel(result.id) is False
    assert waiting.client.llen("celery") == 1


def test_it_finds_the_task_in_any_queue_and_priority(app: Celery, waiting: DelayedQueue) -> None:
    ids = [
        app.tasks["note"].apply_async(countdown=60, queue=queue, priority=priority).id
        for queue in ("celery", "other")
        for priority in (0, 3, 9)
    ]
    assert [app.delayq.cancel(task_id) for task_id in ids] == [True] * len(ids)
    assert waiting.client.keys("redisson*") == []


def test_an_id_that_was_scheduled_twice_is_cancelled_twice(app: Celery, waiting: DelayedQueue) -> None:
    for countdown in (60, 61, 60):
        app.tasks["note"].apply_async(countdown=countdown, task_id="same")
    app.tasks["note"].apply_async(countdown=60, task_id="other")
    assert waiting.size() == 4
    assert app.delayq.cancel("same") is True
    assert waiting.size() == 1
    assert app.delayq.cancel("same") is False


def test_an_id_is_found_when_only_later_ones_of_it_wait(app: Celery, waiting: DelayedQueue) -> None:
    for countdown in (60, 61, 62):
        app.tasks["note"].apply_async(countdown=countdown, task_id="same")
    assert waiting.remove(waiting.peek()) == [True]
    assert app.delayq.cancel(["same", "other"]) == {"same": True, "other": False}
    assert waiting.size() == 0


def test_another_process_can_cancel(app: Celery, waiting: DelayedQueue, broker_url: str, ledger_url: str) -> None:
    result = app.tasks["note"].apply_async(countdown=60)
    with publisher(broker_url, ledger_url) as other:
        assert other.delayq.cancel(result.id) is True


def test_it_refuses_a_broker_that_is_not_ours(redis_server: PrivateRedis, ledger_url: str) -> None:
    with (
        publisher(redis_server.url, ledger_url) as app,
        pytest.raises(ConfigurationError, match="start the URL with delayq://"),
    ):
        app.delayq.cancel("any")


@pytest.mark.thorough
@pytest.mark.parametrize("ready", [False, True])
def test_at_the_very_moment_of_the_transfer_either_it_or_the_worker_gets_the_task(
    app: Celery, waiting: DelayedQueue, broker_url: str, ledger: Ledger, ready: bool
) -> None:
    # Without a lead: on a busy machine it rises, and then nothing waits any more at the moment it is due.
    conf = {"delayq_transfer_lead": 0.0}
    with Worker(broker=broker_url, ledger=ledger.url, conf=conf):
        cancelled: set[str] = set()
        due_ms = take_back_when_due(
            app, lambda task_id: app.delayq.cancel(task_id, ready=ready) and cancelled.add(task_id)
        )
        promised = {task_id: due for task_id, due in due_ms.items() if task_id not in cancelled}
        wait_until(lambda: ledger.has(promised), "all that were not cancelled ran", 20)
        last = app.tasks["note"].apply_async(countdown=0.1)
        last.get(timeout=20)
    assert ledger.verdict(promised) == Verdict(set(), set(), set())
    assert {run.task_id for run in ledger.runs()} == promised.keys() | {last.id}
    assert len(cancelled) > 5, "the race did not happen"
    assert len(promised) > 5, "the race did not happen"


@pytest.mark.usefixtures("waiting")
def test_a_queue_that_the_server_refuses_does_not_shield_the_others(app: Celery, broker_client: redis.Redis) -> None:
    for number in range(20):
        broker_client.zadd("delayq:queues", {f"refused{number}": FAR})
        broker_client.set(f"delayq:index:{{refused{number}}}", "of a wrong type")
    waiting = app.tasks["note"].apply_async(countdown=3600)
    assert app.delayq.cancel(waiting.id) is True
    with pytest.raises(OperationalError, match="cannot look up task"):
        app.delayq.cancel(waiting.id)
    broker_client.zrem("delayq:queues", *(f"refused{number}" for number in range(20)))


def test_thousands_of_ids_at_once(app: Celery, waiting: DelayedQueue) -> None:
    ids = [app.tasks["note"].apply_async(countdown=3600).id for _ in range(3)]
    unknown = [f"unknown {number}" for number in range(1500)]
    answers = app.delayq.cancel([*ids[:2], *unknown, ids[2]])
    assert {task_id for task_id, answer in answers.items() if answer} == set(ids)
    assert len(answers) == 1503

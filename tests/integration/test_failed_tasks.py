"""A task that fails for good is kept beside the dead letters, and can run again."""

from __future__ import annotations

from typing import Any

import celery
import pytest
import redis
from celery import Celery

from celery_delayq import DeadLetter, DeadLetters
from celery_delayq.queue.dead_letter import FAILED
from celery_delayq.transport.redelivery import revived
from examples.private_redis import PrivateRedis
from tests.brokers import list_for
from tests.integration.long_tasks import in_flight, long_worker, open_gate
from tests.ledger import Ledger
from tests.support import wait_until

pytestmark = [pytest.mark.on_cluster, pytest.mark.usefixtures("long_tasks", "empty_broker")]

_ONE = pytest.mark.one_server("the pool makes no difference there")

POOLS = [
    "prefork",
    pytest.param("threads", marks=_ONE),
    *(pytest.param(pool, marks=[_ONE, pytest.mark.thorough, pytest.mark.versions]) for pool in ("solo", "gevent")),
]


def start(broker_url: str, ledger: Ledger, pool: str = "prefork", **conf: Any) -> Any:
    conf = {"delayq_keep_failed": True, "task_acks_on_failure_or_timeout": True, **conf}
    return long_worker(broker=broker_url, ledger=ledger, pool=pool, concurrency=1, conf=conf)


def kept(client: redis.Redis) -> list[DeadLetter]:
    return list(DeadLetters(client, list_for(client, "celery")))


@pytest.mark.parametrize("name", ["failing", "failing_late"])
@pytest.mark.parametrize("pool", POOLS)
def test_what_it_raised_is_kept(
    app: Celery, broker_url: str, broker_client: redis.Redis, ledger: Ledger, pool: str, name: str
) -> None:
    with start(broker_url, ledger, pool):
        result = app.send_task(name)
        wait_until(lambda: kept(broker_client), "it is kept")
        wait_until(lambda: in_flight(broker_client) == 0, "it is acknowledged")
        (letter,) = kept(broker_client)
        assert (letter.reason, letter.error, letter.runs) == (FAILED, "ValueError: no such order", 1)
        assert letter.traceback is not None
        assert 'raise ValueError("no such order")' in letter.traceback
        assert letter.worker is not None
        assert "@" in letter.worker
        assert result.id.encode() in letter.message


def test_it_runs_again_with_all_its_retries(
    app: Celery, broker_url: str, broker_client: redis.Redis, ledger: Ledger
) -> None:
    with start(broker_url, ledger):
        result = app.send_task("failing", ("retry",))
        wait_until(lambda: kept(broker_client), "it is kept")
        (letter,) = kept(broker_client)
        assert letter.runs == 3
        open_gate(ledger)
        assert DeadLetters(broker_client, letter.list_name).requeue(letter, revived(letter.message))
        wait_until(lambda: len(ledger.runs()) == 4, "it runs again")
        assert [run.note for run in ledger.runs()] == [0, 1, 2, 0]
        assert {run.task_id for run in ledger.runs()} == {result.id}
        assert kept(broker_client) == []


@pytest.mark.parametrize("name", ["failing", "failing_late"])
@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("hang", "TimeLimitExceeded"),
        ("exit", "SystemExit"),
        pytest.param("kill", "WorkerLostError", marks=pytest.mark.thorough),
    ],
)
def test_the_end_of_its_process_is_kept(
    app: Celery, broker_url: str, broker_client: redis.Redis, ledger: Ledger, name: str, how: str, error: str
) -> None:
    with start(broker_url, ledger):
        app.send_task(name, (how,), time_limit=1 if how == "hang" else None)
        wait_until(lambda: kept(broker_client), "it is kept", 30)
        (letter,) = kept(broker_client)
        assert letter.error is not None
        assert letter.error.startswith(error)


@pytest.mark.parametrize(
    ("name", "how"), [("failing", "ignore"), ("failing_late", "reject"), ("failing_unkept", "raise")]
)
@pytest.mark.parametrize("pool", POOLS)
def test_what_has_not_failed_or_shall_not_be_kept_is_not(
    app: Celery, broker_url: str, broker_client: redis.Redis, ledger: Ledger, pool: str, name: str, how: str
) -> None:
    with start(broker_url, ledger, pool):
        app.send_task(name, (how,))
        last = app.send_task("failing")
        wait_until(lambda: kept(broker_client), "the last one is kept")
        assert [last.id.encode() in letter.message for letter in kept(broker_client)] == [True]


def test_a_process_that_ends_and_whose_task_runs_again_is_no_failure(
    app: Celery, broker_url: str, broker_client: redis.Redis, ledger: Ledger
) -> None:
    with start(broker_url, ledger, task_reject_on_worker_lost=True):
        result = app.send_task("failing_late", ("kill",))
        wait_until(lambda: app.delayq.get(result) is not None, "it pauses", 30)
        assert kept(broker_client) == []


def test_the_oldest_are_dropped(app: Celery, broker_url: str, broker_client: redis.Redis, ledger: Ledger) -> None:
    with start(broker_url, ledger, delayq_keep_failed_at_most=2):
        for _ in range(3):
            last = app.send_task("failing")
            wait_until(lambda: any(last.id.encode() in it.message for it in kept(broker_client)), "it is kept")  # noqa: B023
        assert len(kept(broker_client)) == 2


def test_they_are_kept_for_some_time(app: Celery, broker_url: str, broker_client: redis.Redis, ledger: Ledger) -> None:
    with start(broker_url, ledger, delayq_keep_failed_for=1.0):
        app.send_task("failing")
        wait_until(lambda: kept(broker_client), "it is kept")
        wait_until(lambda: not kept(broker_client), "it is dropped")


@pytest.mark.one_server("the pool makes no difference there")
@pytest.mark.parametrize("name", ["failing", "failing_late"])
def test_a_time_limit_of_a_greenlet_is_kept(
    app: Celery, broker_url: str, broker_client: redis.Redis, ledger: Ledger, name: str
) -> None:
    with start(broker_url, ledger, "gevent"):
        app.send_task(name, ("hang",), time_limit=1)
        wait_until(lambda: kept(broker_client), "it is kept", 30)
        (letter,) = kept(broker_client)
        assert letter.error == "TimeLimitExceeded: TimeLimitExceeded(1,)"


@pytest.mark.one_server("results are elsewhere")
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_it_is_kept_although_its_result_cannot_be_stored(
    app: Celery, broker_url: str, broker_client: redis.Redis, ledger: Ledger, pool: str
) -> None:
    with PrivateRedis("--maxmemory", "1") as full:
        conf = {"result_backend": full.url, "result_backend_always_retry": False}
        with start(broker_url, ledger, pool, **conf):
            for _ in range(2):
                app.send_task("failing", ignore_result=False)
            wait_until(lambda: len(kept(broker_client)) == 2, "they are kept")


def test_a_slow_receiver_of_the_signal_keeps_nobody_waiting(
    app: Celery, broker_url: str, broker_client: redis.Redis, ledger: Ledger
) -> None:
    with start(broker_url, ledger):
        for _ in range(5):
            app.send_task("failing", ("hang the receiver",))
        wait_until(lambda: len(kept(broker_client)) == 5, "they are kept")


@pytest.mark.skipif(celery.VERSION < (5, 7), reason="Celery 5.6 neither acknowledges nor requeues it")
@pytest.mark.one_server("the pool makes no difference there")
def test_a_greenlet_whose_task_runs_again_after_a_time_limit_is_no_failure(
    app: Celery, broker_url: str, broker_client: redis.Redis, ledger: Ledger
) -> None:
    with start(broker_url, ledger, "gevent", task_acks_on_failure_or_timeout=False):
        result = app.send_task("failing_late", ("hang",), time_limit=1)
        wait_until(lambda: app.delayq.get(result) is not None, "it pauses", 30)
        assert kept(broker_client) == []

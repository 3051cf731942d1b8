"""A failed task that is kept, and other features on the same message."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from celery import Celery, chain
from celery.result import AsyncResult

from celery_delayq import DelayQ, Unique
from celery_delayq.options.unique import For
from tests.brokers import Server
from tests.integration.long_tasks import long_worker, open_gate
from tests.ledger import Ledger
from tests.support import wait_until

pytestmark = [pytest.mark.on_cluster, pytest.mark.usefixtures("long_tasks", "empty_broker")]


@pytest.fixture
def delayq(app: Celery) -> DelayQ:
    delayq: DelayQ = app.delayq
    return delayq


def start(broker_url: str, ledger: Ledger, **conf: Any) -> Any:
    conf = {"delayq_keep_failed": True, **conf}
    return long_worker(broker=broker_url, ledger=ledger, concurrency=1, conf=conf)


def wait_until_kept(delayq: DelayQ) -> None:
    wait_until(lambda: len(delayq.dead(reason="failed")) == 1, "it is kept", 20)


def wait_until_successful(delayq: DelayQ, result: AsyncResult) -> None:
    """A result that has been a failure remembers that, so it is another one that is asked."""
    wait_until(lambda: delayq.app.AsyncResult(result.id).successful(), "it succeeds", 20)


@pytest.mark.parametrize(
    ("name", "for_"), [("failing", "until_done"), ("failing_late", "until_done"), ("failing", "until_start")]
)
def test_its_unique_key_is_free_and_it_has_none_when_it_runs_again(
    delayq: DelayQ, broker_url: str, broker_client: redis.Redis, ledger: Ledger, name: str, for_: For
) -> None:
    unique = Unique(key="order:7", for_=for_)
    with start(broker_url, ledger):
        result = delayq.app.send_task(name, unique=unique)
        wait_until_kept(delayq)
        later = delayq.app.send_task("note", unique=unique, countdown=600)
        assert later.id != result.id
        open_gate(ledger)
        assert delayq.requeue_dead(everything=True) == 1
        wait_until_successful(delayq, result)
        assert delayq.waiting("order:7").id == later.id


def test_a_retry_after_it_was_requeued_needs_no_key(
    delayq: DelayQ, broker_url: str, broker_client: redis.Redis, ledger: Ledger
) -> None:
    """Another task has it by then."""
    unique = Unique(key="order:7", for_="until_done")
    with start(broker_url, ledger):
        result = delayq.app.send_task("failing", ("retry",), unique=unique)
        wait_until_kept(delayq)
        later = delayq.app.send_task("note", unique=unique, countdown=600)
        assert delayq.requeue_dead(everything=True) == 1
        wait_until_kept(delayq)
        assert [run.note for run in ledger.runs() if run.task_id == result.id] == [0, 1, 2, 0, 1, 2]
        assert delayq.waiting("order:7").id == later.id


def test_its_chain_goes_on_when_it_succeeds(
    delayq: DelayQ, broker_url: str, broker_client: redis.Redis, ledger: Ledger
) -> None:
    app = delayq.app
    with start(broker_url, ledger):
        last = chain(app.signature("failing", ()), app.signature("note", countdown=0.1)).apply_async()
        wait_until_kept(delayq)
        open_gate(ledger)
        assert delayq.requeue_dead(task="failing") == 1
        wait_until_successful(delayq, last)


def test_a_delayed_one_runs_again_at_once(
    delayq: DelayQ, broker_url: str, broker_client: redis.Redis, ledger: Ledger
) -> None:
    with start(broker_url, ledger):
        result = delayq.app.send_task("failing", countdown=0.2, priority=6)
        wait_until_kept(delayq)
        open_gate(ledger)
        assert delayq.requeue_dead(delayq.dead()) == 1
        wait_until_successful(delayq, result)


def test_an_occurrence_is_kept(delayq: DelayQ, broker_url: str, broker_client: redis.Redis, ledger: Ledger) -> None:
    with start(broker_url, ledger, beat_scheduler="celery_delayq.beat:Scheduler"):
        delayq.schedule.add("nightly", "failing", 0.5)
        wait_until(lambda: len(delayq.dead(reason="failed")) >= 2, "each is kept", 20)
        delayq.schedule.remove("nightly")


@pytest.mark.one_server("a cluster's nodes are tested one by one elsewhere")
def test_it_is_kept_after_an_outage(
    delayq: DelayQ, broker_url: str, broker_client: redis.Redis, broker_server: Server, ledger: Ledger
) -> None:
    with start(broker_url, ledger) as worker:
        delayq.app.send_task("failing", ("wait",))
        wait_until(lambda: ledger.runs(), "it runs")
        broker_client.config_set("min-replicas-to-write", 1)
        open_gate(ledger)
        worker.wait_for_log("NOREPLICAS")
        broker_client.config_set("min-replicas-to-write", 0)
        wait_until_kept(delayq)

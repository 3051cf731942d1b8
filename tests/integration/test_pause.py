"""A paused queue: workers fetch nothing from it until it is resumed, also those that start later."""

from __future__ import annotations

import signal

import pytest
import redis
from celery import Celery

from celery_delayq import UnknownQueue
from tests.integration.long_tasks import in_flight, long_worker, open_gate
from tests.ledger import Ledger
from tests.support import wait_until
from tests.worker_app import publisher

pytestmark = [pytest.mark.on_cluster, pytest.mark.usefixtures("empty_broker")]

POOLS = ["prefork", "solo", "gevent"]


def send(app: Celery, queue: str = "celery", **options: object) -> str:
    return str(app.tasks["note"].apply_async(queue=queue, **options).id)


@pytest.mark.parametrize("pool", POOLS)
def test_workers_obey_until_it_is_resumed(
    app: Celery, broker_url: str, broker_client: redis.Redis, ledger: Ledger, pool: str
) -> None:
    with long_worker("-Q", "celery,other", broker=broker_url, ledger=ledger, pool=pool) as worker:
        first = send(app)
        wait_until(lambda: ledger.has([first]), "it runs")
        assert app.delayq.pause("celery")
        worker.wait_for_log("Queue 'celery' is paused")
        ready, urgent, delayed = send(app), send(app, priority=9), send(app, countdown=0.5)
        elsewhere = send(app, "other")
        wait_until(lambda: ledger.has([elsewhere]), "other queues go on")
        wait_until(lambda: app.delayq.get(delayed) is None, "delayed tasks become ready")
        assert not {ready, urgent, delayed} & {run.task_id for run in ledger.runs()}
        wait_until(lambda: in_flight(broker_client) == 0, "what ran is acknowledged")
        (counts,) = [counts for counts in app.delayq.counts().queues if counts.queue == "celery"]
        assert (counts.is_paused, counts.ready) == (True, 3)
        assert app.delayq.resume("celery")
        wait_until(lambda: ledger.has([ready, urgent, delayed]), "all run")


def test_workers_that_start_later_keep_to_it(
    app: Celery, broker_url: str, broker_client: redis.Redis, ledger: Ledger
) -> None:
    app.delayq.pause("celery")
    assert app.delayq.paused() == ["celery"]
    sent = send(app)
    with long_worker("-Q", "celery,other", broker=broker_url, ledger=ledger) as worker:
        worker.wait_for_log("Queue 'celery' is paused")
        other = send(app, "other")
        wait_until(lambda: ledger.has([other]), "it works")
        assert not ledger.has([sent])
        app.delayq.resume("celery")
        wait_until(lambda: ledger.has([sent]), "it runs")
    assert app.delayq.paused() == []


def test_what_a_worker_has_received_runs_and_the_rest_goes_back(
    app: Celery, broker_url: str, broker_client: redis.Redis, ledger: Ledger
) -> None:
    conf = {"worker_prefetch_multiplier": 2}
    with long_worker(broker=broker_url, ledger=ledger, pool="prefork", concurrency=1, conf=conf) as worker:
        ids = [app.send_task("gated_late").id for _ in range(6)]
        wait_until(lambda: in_flight(broker_client) == 2, "one runs, one waits for the process")
        app.delayq.pause("celery")
        worker.wait_for_log("Queue 'celery' is paused")
        open_gate(ledger)
        wait_until(lambda: in_flight(broker_client) == 0, "both are done")
        ran = {run.task_id for run in ledger.runs()}
        assert len(ran) == 2
        app.delayq.resume("celery")
        wait_until(lambda: ledger.has(ids), "all run")


def test_messages_of_a_killed_worker_come_back_to_a_paused_queue(
    app: Celery, broker_url: str, broker_client: redis.Redis, ledger: Ledger
) -> None:
    """Other workers, also those that start later, look after the lists of paused queues."""
    with long_worker(broker=broker_url, ledger=ledger, concurrency=1) as worker:
        sent = app.send_task("gated_late").id
        wait_until(lambda: ledger.has([sent]), "it runs")
        app.delayq.pause("celery")
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    assert in_flight(broker_client) == 1
    with long_worker(broker=broker_url, ledger=ledger, concurrency=1):
        wait_until(lambda: in_flight(broker_client) == 0, "it is back", 20)
        open_gate(ledger)
        app.delayq.resume("celery")
        wait_until(lambda: len(ledger.runs()) == 2, "it runs again", 20)


def test_a_paused_queue_that_a_worker_consumes_from_now_on_has_its_leases(
    app: Celery, broker_url: str, broker_client: redis.Redis, ledger: Ledger
) -> None:
    send(app, "later")
    app.delayq.pause("later")
    with long_worker("-Q", "celery", broker=broker_url, ledger=ledger, pool="threads") as worker:
        worker.wait_for_log("Queue 'later' is paused")
        app.control.add_consumer("later")
        wait_until(lambda: any("later" in it.queues for it in app.delayq.consumers().consumers), "it has a lease")
        assert ledger.runs() == []
        app.delayq.resume("later")
        wait_until(ledger.runs, "it runs")


def test_workers_notice_that_the_data_was_deleted(
    app: Celery, broker_url: str, broker_client: redis.Redis, ledger: Ledger
) -> None:
    """Nobody says so. A word may be lost, too: they look with each renewal of a lease."""
    with long_worker(broker=broker_url, ledger=ledger, transport={"lease": 2}) as worker:
        app.delayq.pause("celery")
        worker.wait_for_log("Queue 'celery' is paused")
        broker_client.delete("delayq:paused")
        sent = send(app)
        wait_until(lambda: ledger.has([sent]), "it runs")


def test_a_queue_is_paused_once_and_has_to_be_there(app: Celery) -> None:
    assert app.delayq.pause("celery")
    assert not app.delayq.pause("celery")
    assert app.delayq.resume("celery")
    assert not app.delayq.resume("celery")
    for change in (app.delayq.pause, app.delayq.resume):
        with pytest.raises(UnknownQueue, match="celry"):
            change("celry")


def test_nothing_is_paused_in_tests_without_redis() -> None:
    with publisher("memory://", "redis://") as app:
        assert not app.delayq.pause("celery")
        assert app.delayq.paused() == []

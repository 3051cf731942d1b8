"""What real workers count, over their ends, deaths and restarts."""

from __future__ import annotations

import signal

import pytest
from celery import Celery

from celery_delayq import DelayedQueue
from celery_delayq.metrics.source import Source
from examples.private_redis import PrivateRedis
from tests import brokers
from tests.ledger import Ledger
from tests.metrics.parsing import Metrics, Scrape
from tests.support import wait_until
from tests.worker_app import publisher
from tests.workers import CeleryCommand, Worker

pytestmark = pytest.mark.on_cluster

TRANSFERRED = "delayq_transferred_messages_total"


def publish(app: Celery, ledger: Ledger, number: int, **options: object) -> None:
    """Publish delayed tasks, and wait until they have run. One that takes longer than its countdown is not delayed."""
    ids = [app.tasks["note"].apply_async(countdown=2, **options).id for _ in range(number)]
    wait_until(lambda: ledger.has(ids), "all have run")


def is_counted(found: Metrics, number: int, queue: str = "celery") -> bool:
    """Whether so many tasks were transferred, and began; each count of both histograms must agree."""
    started = found.get("delayq_start_lateness_seconds_count", queue)
    transferred = found.get("delayq_transfer_lateness_seconds_count", queue)
    return found.get(TRANSFERRED, queue) == started == transferred == number


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", pytest.param("gevent", marks=pytest.mark.thorough)])
def test_a_short_lived_worker_counts_everything(
    pool: str, app: Celery, broker_url: str, ledger: Ledger, waiting: DelayedQueue, scrape: Scrape
) -> None:
    if pool == "gevent":
        pytest.importorskip("gevent")
    with Worker(pool=pool, broker=broker_url, ledger=ledger.url) as worker:
        publish(app, ledger, 6, priority=3)
        app.tasks["note"].delay()  # not delayed: how late it begins says nothing
        wait_until(lambda: len(ledger.runs()) == 7, "it has run, too")
        worker.send_signal(signal.SIGTERM)
        worker.wait()
        assert "Traceback" not in worker.log
    found = scrape()
    assert is_counted(found, 6), found.samples
    assert found.get("delayq_punctual_worker_changes_total") == 1
    seconds = found.get("delayq_start_lateness_seconds_sum")
    assert seconds is not None
    assert 0 <= seconds < 60


@pytest.mark.thorough
def test_workers_add_up_and_one_that_runs_need_not_end(
    app: Celery, broker_url: str, ledger: Ledger, waiting: DelayedQueue, scrape: Scrape
) -> None:
    with Worker(broker=broker_url, ledger=ledger.url), Worker(broker=broker_url, ledger=ledger.url):
        publish(app, ledger, 20)
        wait_until(lambda: is_counted(scrape(), 20), "they add what they have counted every ten seconds", 60)
        found = scrape()
        consumers, lists = found.get("delayq_consumers"), found.named("delayq_punctual_worker_info")
    assert consumers == 2
    assert [one["queue_name"] for one in lists] == ["celery"]


@pytest.mark.thorough
def test_a_killed_worker_is_counted_by_those_who_recover(
    app: Celery, broker_url: str, ledger: Ledger, waiting: DelayedQueue, scrape: Scrape
) -> None:
    with Worker(broker=broker_url, ledger=ledger.url) as first:
        app.tasks["work_late"].apply_async((3600,), countdown=0.1)
        wait_until(lambda: ledger.executions(), "it runs")
        assert scrape().get("delayq_in_flight_messages") == 1
        with Worker(broker=broker_url, ledger=ledger.url) as second:
            first.kill()
            wait_until(lambda: len(ledger.executions()) == 2, "the other runs it")
            wait_until(
                lambda: scrape().get("delayq_recovered_messages_total", reason="process-ended") == 1, "it says so", 60
            )
            second.kill()


def test_a_dead_letter_is_counted_with_its_reason(
    app: Celery, broker_url: str, ledger: Ledger, waiting: DelayedQueue, scrape: Scrape
) -> None:
    with Worker(broker=broker_url, ledger=ledger.url) as worker:
        waiting.client.lpush("celery", b"garbage")
        wait_until(lambda: waiting.client.zcard(waiting.keys.dead) == 1, "it is dead")
        worker.send_signal(signal.SIGTERM)
        worker.wait()
    found = scrape()
    assert found.get("delayq_dead_messages") == 1
    assert found.get("delayq_dead_letters_total", reason="not-a-message") == 1
    assert found.get("delayq_dead_letters_total", reason="invalid-task") == 0


@pytest.mark.thorough
def test_a_suspended_worker_counts_the_leases_that_it_lost(
    app: Celery, broker_url: str, ledger: Ledger, waiting: DelayedQueue, scrape: Scrape
) -> None:
    conf = {"broker_transport_options": {"lease": 2.0}}
    with Worker(broker=broker_url, ledger=ledger.url, conf=conf) as first:
        publish(app, ledger, 1)
        with Worker(broker=broker_url, ledger=ledger.url, conf=conf):
            first.suspend()
            consumers = waiting.keys.consumers
            wait_until(lambda: waiting.client.zcount(consumers, "-inf", "(0"), "others have given it up")
            assert scrape().get("delayq_consumers") == 1
            first.resume()
            wait_until(lambda: (scrape().get("delayq_lost_leases_total") or 0) >= 1, "it says so itself", 60)


def test_the_setting_turns_counting_off(
    app: Celery, broker_url: str, ledger: Ledger, waiting: DelayedQueue, scrape: Scrape
) -> None:
    with Worker(broker=broker_url, ledger=ledger.url, conf={"delayq_metrics": False}) as worker:
        publish(app, ledger, 3)
        worker.send_signal(signal.SIGTERM)
        worker.wait()
    assert is_counted(scrape(), 0)
    assert not list(waiting.client.scan_iter("*delayq:metrics*"))


@pytest.mark.thorough
@pytest.mark.one_server("about a server that is killed")
def test_counts_outlive_an_outage_of_redis(durable_server: PrivateRedis, ledger: Ledger) -> None:
    """They are added afterwards, unless they were before; none of them twice."""
    url = brokers.url_of(durable_server)
    with publisher(url, ledger.url) as app, Worker(broker=url, ledger=ledger.url) as worker:
        publish(app, ledger, 5)
        durable_server.kill()
        worker.wait_for_log("onnection to broker lost")
        durable_server.start()
        source = Source(app)
        wait_until(lambda: is_counted(Scrape(source.read)(), 5), "they are counted", 60)
        source.close()


def test_the_transfer_command_counts_as_well(
    app: Celery, broker_url: str, ledger: Ledger, waiting: DelayedQueue, scrape: Scrape
) -> None:
    with CeleryCommand("delayq", "transfer", broker=broker_url, ledger=ledger.url) as command:
        command.wait_for_log("Press Ctrl-C")
        app.tasks["note"].apply_async(countdown=2)  # what is due when it is published is not transferred
        wait_until(lambda: scrape().get("delayq_ready_messages") == 1, "it was transferred")
        command.send_signal(signal.SIGTERM)
        command.wait()
    assert scrape().get(TRANSFERRED) == 1

"""A server that refuses something for now ends no worker. It keeps what it has, and goes on by itself."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import redis
from celery import Celery

from celery_delayq.queue.keys import QueueKeys
from examples.private_redis import PrivateRedis
from tests.integration.long_tasks import in_flight, long_worker, open_gate
from tests.ledger import Ledger
from tests.refusing import REFUSALS, refusing
from tests.support import wait_until
from tests.worker_app import publisher
from tests.workers import Worker

pytestmark = pytest.mark.one_server("of a cluster, one node refuses: redis_cluster/test_refusals.py")

#: Seconds. Refusals last longer than a lease.
LEASE_S = 2.0


@pytest.fixture
def app(broker_url: str, ledger: Ledger) -> Iterator[Celery]:
    with publisher(broker_url, ledger.url) as app:
        yield app


@pytest.fixture
def client(broker: PrivateRedis) -> Iterator[redis.Redis]:
    with broker.client() as client:
        yield client


def worker_at(broker_url: str, ledger: Ledger, pool: str = "prefork") -> Worker:
    """Return a worker that asks its neighbours, tells what it does, and has short leases."""
    conf = {"worker_send_task_events": True}
    return long_worker(
        broker=broker_url,
        ledger=ledger,
        pool=pool,
        concurrency=1,
        gossip=True,
        transport={"lease": LEASE_S},
        conf=conf,
    )


def complaints(worker: Worker) -> list[str]:
    """Return what the worker has logged at level WARNING or higher since it was ready, without Celery's advice."""
    _, _, log = worker.log.partition(" ready.")
    assert "Traceback" not in log
    return [line for line in log.splitlines() if re.search(r": (WARNING|ERROR|CRITICAL)/", line)]


@pytest.mark.parametrize("pool", ["prefork", "solo", "threads"])
@pytest.mark.parametrize("word", REFUSALS)
def test_a_running_worker_stays_connected_and_says_it_in_one_line(
    broker_url: str, client: redis.Redis, app: Celery, ledger: Ledger, word: str, pool: str
) -> None:
    """What it has fetched runs once, and so does what becomes due meanwhile, although its leases have ended."""
    with worker_at(broker_url, ledger, pool) as worker:
        ids = [app.send_task("gated_late").id for _ in range(3)]
        wait_until(lambda: ledger.runs(), "the first runs")
        ids.append(app.tasks["note"].apply_async(countdown=1).id)
        with refusing(client, word, LEASE_S * 1.5):
            worker.wait_for_log(f"Redis refuses some commands for now: {word} ")
            open_gate(ledger)
            wait_until(lambda: ledger.has(ids if word == "OOM" else ids[:1]), "what may run does")
        ids.append(app.send_task("gated_late").id)
        wait_until(lambda: ledger.has(ids), "all ran")
        wait_until(lambda: in_flight(client) == 0, "all are acknowledged")
        if word != "OOM":
            worker.wait_for_log(f"Redis accepts commands again ({word} is over)")
        assert sorted(run.task_id for run in ledger.runs()) == sorted(ids)
        assert len(complaints(worker)) == 1, worker.log


@pytest.mark.parametrize("word", ["NOREPLICAS", "MISCONF", "BUSY"])
def test_a_worker_that_starts_waits_for_a_server_that_takes_no_writes(
    broker_url: str, client: redis.Redis, app: Celery, ledger: Ledger, word: str
) -> None:
    sent = app.tasks["note"].apply_async().id
    worker = worker_at(broker_url, ledger)
    try:
        with refusing(client, word):
            worker.start()
            worker.wait_for_log(f"/0: {word} ")
            worker.wait_for_log("Trying again now")
        wait_until(lambda: ledger.has([sent]), "it ran")
        assert "Traceback" not in worker.log
    finally:
        worker.__exit__()


def test_a_worker_that_starts_empties_a_full_server(
    broker_url: str, client: redis.Redis, app: Celery, ledger: Ledger
) -> None:
    """It asks its neighbours, which is not answered, and answers them, which is refused."""
    ids = [app.tasks["note"].apply_async(countdown=number % 2).id for number in range(500)]
    with worker_at(broker_url, ledger) as neighbour:
        neighbour.suspend()
        with refusing(client, "OOM"):
            neighbour.resume()
            with worker_at(broker_url, ledger) as worker:
                wait_until(lambda: ledger.has(ids), "all ran")
                wait_until(lambda: in_flight(client) == 0, "all are acknowledged")
                assert client.llen("celery") == client.zcard("redisson_delay_queue_timeout:{celery}") == 0
                assert complaints(worker) == complaints(neighbour)[1:] == []


@pytest.mark.parametrize("word", ["NOREPLICAS", "OOM"])
def test_a_worker_that_reconnects_goes_on(
    broker_url: str, client: redis.Redis, app: Celery, ledger: Ledger, word: str
) -> None:
    with worker_at(broker_url, ledger) as worker:
        ids = [app.send_task("gated_late").id for _ in range(3)]
        wait_until(lambda: ledger.runs(), "the first runs")
        with refusing(client, word):
            client.client_kill_filter(_type="normal", skipme=True)
            client.client_kill_filter(_type="pubsub", skipme=True)
            worker.wait_for_log("Connection to broker lost")
            if word == "OOM":
                worker.wait_for_log("Transfer of delayed messages: connected", 2)
            else:
                worker.wait_for_log(f"/0: {word} ")
            open_gate(ledger)
            wait_until(lambda: ledger.has(ids if word == "OOM" else ids[:1]), "what may run does")
        wait_until(lambda: ledger.has(ids), "all ran")
        wait_until(lambda: in_flight(client) == 0, "all are acknowledged")
        assert sorted(run.task_id for run in ledger.runs()) == sorted(ids)
        assert not worker.has_ended


def test_a_queue_that_is_no_longer_consumed_is_left_afterwards(
    broker_url: str, client: redis.Redis, app: Celery, ledger: Ledger
) -> None:
    with worker_at(broker_url, ledger) as worker:
        app.control.add_consumer("other", reply=True)
        wait_until(lambda: client.exists(QueueKeys.of("other").consumers), "it consumes")
        with refusing(client, "NOREPLICAS", 2):
            app.control.cancel_consumer("other")
            worker.wait_for_log("Redis refuses some commands for now: NOREPLICAS ")
        wait_until(lambda: not client.exists(QueueKeys.of("other").consumers), "it has left")
        assert len(complaints(worker)) == 1, worker.log


def test_periodic_tasks_go_on_and_it_is_said_once_for_all(broker_url: str, client: redis.Redis, ledger: Ledger) -> None:
    entries = {name: {"task": "note", "schedule": 1.0, "args": [name]} for name in ("a", "b", "c")}
    conf = {"beat_scheduler": "delayq", "beat_schedule": entries}

    def ran() -> set[str]:
        return {run.note for run in ledger.runs()}

    with long_worker(broker=broker_url, ledger=ledger, conf=conf) as worker:
        wait_until(lambda: ran() == entries.keys(), "all run")
        with refusing(client, "NOREPLICAS", 2):
            worker.wait_for_log("Redis refuses some commands for now: NOREPLICAS ")
        ledger.clear()
        wait_until(lambda: ran() == entries.keys(), "all run again")
        assert len(complaints(worker)) == 1, worker.log


def test_an_answer_to_remote_control_that_is_refused_is_left_out(
    broker_url: str, client: redis.Redis, app: Celery, ledger: Ledger
) -> None:
    with worker_at(broker_url, ledger) as worker:
        with refusing(client, "OOM"):
            assert app.control.ping(timeout=0.5) == []
            worker.wait_for_log("Redis refuses some commands for now: OOM ")
        assert wait_until(lambda: app.control.ping(timeout=0.5), "it answers again")
        assert len(complaints(worker)) == 1

"""A master that becomes a replica for a while, as in a failover that is called off: workers wait, and go on."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import redis
from celery import Celery
from kombu import Connection

from examples.private_redis import PrivateRedis
from tests.integration.commands import delayq, rows
from tests.integration.long_tasks import in_flight, long_worker, open_gate, task_ids
from tests.ledger import Ledger
from tests.support import wait_until
from tests.worker_app import publisher
from tests.workers import Worker

pytestmark = pytest.mark.one_server("a node of a cluster is demoted by a failover only: redis_cluster/test_failover.py")


@pytest.fixture
def app(broker_url: str, ledger: Ledger) -> Iterator[Celery]:
    with publisher(broker_url, ledger.url) as app:
        yield app


@pytest.fixture
def client(broker: PrivateRedis) -> Iterator[redis.Redis]:
    with broker.client() as client:
        yield client


@contextmanager
def demoted(client: redis.Redis, seconds: float = 0.5, *, stale: str = "yes") -> Iterator[None]:
    """Let the server be a replica while the block lasts, and for some time at least."""
    client.config_set("replica-serve-stale-data", stale)
    until = time.monotonic() + seconds
    client.replicaof("127.0.0.1", "1")  # where there is nothing, so it keeps its data
    try:
        yield
        wait_until(lambda: time.monotonic() >= until, "it was demoted for so long", seconds + 1)
    finally:
        client.replicaof("NO", "ONE")


def test_who_connects_to_it_is_refused_and_leaves_no_connection(broker_url: str, client: redis.Redis) -> None:
    with demoted(client, 0), Connection(broker_url) as connection:
        before = len(client.client_list())
        for _ in range(3):
            with pytest.raises(redis.ReadOnlyError):
                connection.transport.establish_connection()
        wait_until(lambda: len(client.client_list()) == before, "all are closed")


def is_alive(worker: Worker) -> bool:
    return worker.pid in worker.session()


#: Pools, and whether the replica serves old data: it says READONLY then, and MASTERDOWN otherwise.
RUNNING = {"solo-READONLY": "yes", "prefork-READONLY": "yes", "gevent-READONLY": "yes", "prefork-MASTERDOWN": "no"}
STARTING = {"solo-READONLY": "yes", "gevent-READONLY": "yes", "solo-MASTERDOWN": "no"}


@pytest.mark.parametrize("case", RUNNING)
def test_under_a_running_worker(broker_url: str, client: redis.Redis, app: Celery, ledger: Ledger, case: str) -> None:
    """What ends meanwhile is acknowledged afterwards, and runs once."""
    pool = case.partition("-")[0]
    with long_worker(broker=broker_url, ledger=ledger, pool=pool, concurrency=1) as worker:
        ids = [app.send_task("gated_late").id for _ in range(3)]
        later = app.tasks["note"].apply_async(countdown=1).id
        wait_until(lambda: ledger.runs(), "the first runs")
        with demoted(client, stale=RUNNING[case]):
            open_gate(ledger)
        after = app.send_task("gated_late").id
        wait_until(lambda: ledger.has([*ids, later, after]), "all ran", 40)
        wait_until(lambda: in_flight(client) == 0, "all are acknowledged", 40)
        assert is_alive(worker)
        assert sorted(run.task_id for run in ledger.runs()) == sorted([*ids, later, after])
        assert task_ids(client) == []


@pytest.mark.parametrize("case", STARTING)
def test_when_a_worker_starts(broker_url: str, client: redis.Redis, app: Celery, ledger: Ledger, case: str) -> None:
    """It waits as for a server that is away."""
    open_gate(ledger)
    sent = app.send_task("gated_late").id
    worker = long_worker(broker=broker_url, ledger=ledger, pool=case.partition("-")[0])
    try:
        with demoted(client, stale=STARTING[case]):
            worker.start()
            worker.wait_for_log("Trying again now")
        wait_until(lambda: ledger.has([sent]), "it ran", 40)
        assert is_alive(worker)
        assert "Connection to broker lost" not in worker.log
    finally:
        worker.__exit__(None, None, None)


def test_under_a_publisher(client: redis.Redis, app: Celery) -> None:
    """It tries again for as long as its retry policy says."""
    policy = {"max_retries": 20, "interval_start": 0.1, "interval_step": 0, "interval_max": 0.1}
    app.tasks["note"].apply_async(countdown=3600)
    before = time.monotonic()
    client.replicaof("127.0.0.1", "1")
    threading.Timer(0.5, lambda: client.replicaof("NO", "ONE")).start()
    for options in ({}, {"countdown": 3600}):
        app.tasks["note"].apply_async(retry_policy=policy, **options)
    assert time.monotonic() - before >= 0.5, "it was demoted"
    assert client.llen("celery") == 1
    assert client.zcard("redisson_delay_queue_timeout:{celery}") == 2


def test_the_next_url_is_tried(
    broker_url: str, client: redis.Redis, ledger: Ledger, redis_server: PrivateRedis
) -> None:
    """As where the broker is given as a list of servers, one of which is the master."""
    master = f"delayq://127.0.0.1:{redis_server.port}/5"
    with redis_server.client(db=5) as there, demoted(client, 0), publisher(f"{broker_url};{master}", ledger.url) as app:
        there.flushdb()
        app.tasks["note"].apply_async()
        assert there.llen("celery") == 1
        there.flushdb()


def test_to_look_at_what_waits_a_replica_will_do(client: redis.Redis, app: Celery) -> None:
    sent = app.tasks["note"].apply_async(countdown=3600)
    with demoted(client, 0):
        (waits,) = rows(delayq(app, "list", "--json"))
    assert waits["id"] == sent.id

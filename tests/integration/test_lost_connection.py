"""A worker that lives on without its connection or lease: what its pool has taken up runs on, nothing else begins."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from celery import Celery

from celery_delayq.cluster.client import Routed
from tests.integration.long_tasks import in_flight, long_worker, open_gate, task_ids
from tests.ledger import Ledger
from tests.soak.proxy import Proxy
from tests.state import looks_for_consumers
from tests.support import lasting_keys, wait_until
from tests.workers import Worker

pytestmark = pytest.mark.on_cluster

#: What each of them does is the same on a cluster.
one_is_enough = pytest.mark.one_server("it takes long, and runs in another form")

#: When tasks are acknowledged.
EARLY_AND_LATE = [pytest.param(False, id="early", marks=one_is_enough), pytest.param(True, id="late")]

#: So many messages the worker holds at least: Celery's prefetch multiplier; gevent's main greenlet waits for room.
_HELD = {"prefork": 4, "threads": 4, "gevent": 1}

#: Options of the transport: a lease that a test can wait for.
LEASE = {"lease": 2}


@pytest.fixture(autouse=True)
def clean(broker_client: redis.Redis) -> None:
    """An empty broker."""
    broker_client.flushall()


def cut(client: redis.Redis) -> None:
    """Cut all connections but those of `client`."""
    for kind in ("normal", "pubsub"):
        client.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")


def wait_for_loss(worker: Worker, client: redis.Redis) -> None:
    """Wait until the worker has noticed the loss: on one server, it has connected again then.

    On a cluster, it goes on. If it holds all that it may, it does not fetch, and only its lease shows.
    """
    if isinstance(client, Routed):
        loss = re.compile("is lost: |Lease renewal of consumer .* interrupted")
        wait_until(lambda: loss.search(worker.log), "it has noticed the loss")
    else:
        worker.wait_for_log("Connected to", times=2)


def send(app: Celery, count: int, *, late: bool) -> list[str]:
    return [app.send_task("gated_late" if late else "gated").id for _ in range(count)]


def taken_up(ledger: Ledger, ids: Sequence[str]) -> list[str]:
    """The ids of those that have begun, once for each time."""
    return [run.task_id for run in ledger.runs() if run.task_id in ids]


@pytest.mark.one_server("nodes tell their own addresses, past a proxy")
def test_retry_on_timeout_keeps_no_worker_from_noticing_a_reset(
    app: Celery, broker_url: str, broker_client: redis.Redis, ledger: Ledger
) -> None:
    """It makes redis-py connect again by itself, and then the main thread would wait for ever."""
    port = broker_client.get_connection_kwargs()["port"]
    proxy = Proxy(port)
    url = broker_url.replace(str(port), str(proxy.port))
    try:
        with long_worker(broker=url, ledger=ledger, gossip=True, transport={"retry_on_timeout": True}) as worker:
            worker.wait_for_log("Lease renewal of consumer")
            proxy.cut()
            worker.wait_for_log("Connected to", times=2)
            (sent,) = send(app, 1, late=True)
            open_gate(ledger)
            wait_until(lambda: ledger.has([sent]), "it runs")
    finally:
        proxy.close()


@pytest.mark.parametrize("late", EARLY_AND_LATE)
@pytest.mark.parametrize("pool", _HELD)
def test_every_task_runs_once_although_the_connection_was_lost_meanwhile(
    app: Celery, broker_url: str, broker_client: redis.Redis, ledger: Ledger, pool: str, late: bool
) -> None:
    with long_worker(broker=broker_url, ledger=ledger, pool=pool, concurrency=1, stops=True) as worker:
        ids = send(app, 8, late=late)
        wait_until(lambda: taken_up(ledger, ids), "the first runs")
        wait_until(lambda: in_flight(broker_client) >= _HELD[pool], "there are more than the pool can run")
        worker.wait_for_log("Lease renewal of consumer")  # otherwise it may have nothing to lose yet
        cut(broker_client)
        if pool != "gevent":  # whose main greenlet waits
            wait_for_loss(worker, broker_client)
        open_gate(ledger)
        wait_until(lambda: set(taken_up(ledger, ids)) == set(ids), "all have run")
        wait_until(lambda: in_flight(broker_client) == 0, "all are acknowledged")
        assert sorted(taken_up(ledger, ids)) == sorted(ids)
        assert task_ids(broker_client) == []
    assert {key for key in lasting_keys(broker_client) if key.startswith("delayq:")} <= {"delayq:queues"}


@pytest.mark.one_server("nodes tell their own addresses, past a proxy")
@pytest.mark.parametrize("place", ["here", "elsewhere"])
def test_what_runs_runs_once_although_the_worker_cannot_connect_for_some_seconds(
    app: Celery, broker_url: str, broker_client: redis.Redis, ledger: Ledger, place: str
) -> None:
    """Others do not take it for one that was killed, nor count a delivery."""
    port = broker_client.get_connection_kwargs()["port"]
    proxy = Proxy(port)
    url = broker_url.replace(str(port), str(proxy.port))
    try:
        with long_worker(broker=url, ledger=ledger, pool="threads", concurrency=1, place=place) as worker:
            ids = send(app, 2, late=True)
            wait_until(lambda: taken_up(ledger, ids), "the first runs")
            wait_until(lambda: in_flight(broker_client) == 2, "the second is fetched")
            with long_worker(broker=broker_url, ledger=ledger) as other:
                looks = looks_for_consumers(broker_client)
                wait_until(lambda: looks_for_consumers(broker_client) >= looks + 4, "each has seen the other")
                proxy.refuse()
                time.sleep(5)
                proxy.accept()
                worker.wait_for_log("Connected to", times=2)
                assert "went back to the queue" not in other.log
                open_gate(ledger)
                wait_until(lambda: in_flight(broker_client) == 0, "all are acknowledged", 20)
        assert sorted(taken_up(ledger, ids)) == sorted(ids)
    finally:
        proxy.close()


@contextmanager
def suspended_child(
    app: Celery, broker_url: str, ledger: Ledger, *, late: bool, **options: Any
) -> Iterator[tuple[Worker, int, list[str]]]:
    """A worker whose only child is suspended, and has a task written to it; the worker, the child's pid, the id."""
    open_gate(ledger)
    with long_worker(broker=broker_url, ledger=ledger, pool="prefork", concurrency=1, **options) as worker:
        (child,) = worker.session() - {worker.pid}
        first = app.tasks["note"].apply_async()  # nothing is written to a child that has not come up, or is busy
        worker.wait_for_log(f"[{first.id}] succeeded")
        with app.connection() as connection:
            inspect = app.control.inspect(timeout=10, limit=1, connection=connection)
            # The child says that it has succeeded before it tells its parent.
            wait_until(lambda: list((inspect.query_task(first.id) or {}).values()) == [{}], "its parent knows")
            os.kill(child, signal.SIGSTOP)
            ids = send(app, 1, late=late)
            worker.wait_for_log(f"[{ids[0]}] received")
            for _ in range(2):  # the second turn of the event loop comes after the first one
                answers = app.control.ping(timeout=10, limit=1, connection=connection)
                assert answers, "the event loop has turned, so the task is written to the child"
        yield worker, child, ids


def wait_for_end_of_lease() -> None:
    """Wait until a lease of LEASE under which something was given just now is over."""
    given_at = time.monotonic()
    wait_until(lambda: time.monotonic() > given_at + LEASE["lease"] + 0.1, "the lease is over")


@pytest.mark.parametrize("late", EARLY_AND_LATE)
def test_a_task_that_its_child_process_has_not_read_yet_runs_once(
    app: Celery, broker_url: str, broker_client: redis.Redis, ledger: Ledger, late: bool
) -> None:
    with suspended_child(app, broker_url, ledger, late=late) as (worker, child, ids):
        cut(broker_client)
        wait_for_loss(worker, broker_client)
        assert task_ids(broker_client) == []
        os.kill(child, signal.SIGCONT)
        wait_until(lambda: in_flight(broker_client) == 0, "it is acknowledged")
        assert taken_up(ledger, ids) == ids


@pytest.mark.parametrize("late", EARLY_AND_LATE)
def test_a_worker_that_stops_waits_for_a_task_that_its_child_process_has_not_read_yet(
    app: Celery, broker_url: str, broker_client: redis.Redis, ledger: Ledger, late: bool
) -> None:
    with suspended_child(app, broker_url, ledger, late=late) as (worker, child, ids):
        worker.send_signal(signal.SIGTERM)
        wait_until(lambda: not broker_client.pubsub_numsub("delayq:queues")[0][1], "its loop has ended", 20)
        os.kill(child, signal.SIGCONT)
        assert worker.wait() == 0
    assert taken_up(ledger, ids) == ids
    assert task_ids(broker_client) == []
    assert in_flight(broker_client) == 0


@pytest.mark.parametrize("late", EARLY_AND_LATE)
def test_what_a_child_begins_late_runs_if_it_is_still_its_workers(
    app: Celery, broker_url: str, broker_client: redis.Redis, ledger: Ledger, late: bool
) -> None:
    with suspended_child(app, broker_url, ledger, late=late, transport=LEASE) as (_, child, ids):
        wait_for_end_of_lease()
        os.kill(child, signal.SIGCONT)
        wait_until(lambda: taken_up(ledger, ids), "it runs")
        wait_until(lambda: in_flight(broker_client) == 0, "it is acknowledged")
    assert taken_up(ledger, ids) == ids
    assert task_ids(broker_client) == []


@pytest.mark.one_server("where one node is lost, Celery does not take its connection for lost")
def test_a_child_that_begins_late_reads_on_while_its_worker_does_nothing_but_write(
    app: Celery, broker_url: str, broker_client: redis.Redis, ledger: Ledger
) -> None:
    """When the connection is lost, Celery waits until children have read what is partly written to them.

    And it forgets which of them are busy, so that a second task is written to this one.
    """
    with suspended_child(app, broker_url, ledger, late=False, transport=LEASE) as (worker, child, ids):
        cut(broker_client)
        wait_for_loss(worker, broker_client)
        ids.append(app.send_task("gated", headers={"more than a pipe holds": "x" * 300_000}).id)
        worker.wait_for_log(f"[{ids[1]}] received")
        wait_for_end_of_lease()
        cut(broker_client)
        worker.wait_for_log("Connection to broker lost", times=2)
        os.kill(child, signal.SIGCONT)
        worker.wait_for_log("Connected to", times=3)
        wait_until(lambda: len(taken_up(ledger, ids)) == 2, "both run")
        wait_until(lambda: in_flight(broker_client) == 0, "both are acknowledged")
    assert sorted(taken_up(ledger, ids)) == sorted(ids)


@pytest.mark.one_server("where one node is lost, Celery does not take its connection for lost")
def test_late_tasks_that_celery_cancels_run_again(
    app: Celery, broker_url: str, broker_client: redis.Redis, ledger: Ledger
) -> None:
    conf = {"worker_cancel_long_running_tasks_on_connection_loss": True}
    with long_worker(broker=broker_url, ledger=ledger, pool="prefork", concurrency=1, conf=conf):
        ids = send(app, 1, late=True)
        wait_until(lambda: taken_up(ledger, ids), "it runs")
        cut(broker_client)
        wait_until(lambda: len(taken_up(ledger, ids)) == 2, "it runs again", 30)
        open_gate(ledger)
        wait_until(lambda: in_flight(broker_client) == 0, "it is acknowledged")
        assert taken_up(ledger, ids) == ids * 2


@pytest.mark.parametrize("late", EARLY_AND_LATE)
@pytest.mark.parametrize("count", [*(pytest.param(count, marks=one_is_enough) for count in (2, 4)), 5])
@pytest.mark.parametrize("pool", ["prefork", pytest.param("threads", marks=one_is_enough)])
def test_what_others_took_over_does_not_begin(
    app: Celery, broker_url: str, broker_client: redis.Redis, ledger: Ledger, pool: str, count: int, late: bool
) -> None:
    """One runs, and all others are fetched: of five, the last one makes the prefetch limit of four full."""
    count -= late  # one that runs counts as well
    with long_worker(broker=broker_url, ledger=ledger, pool=pool, concurrency=1, transport=LEASE) as worker:
        ids = send(app, count, late=late)
        fetched = count if late else count - 1
        wait_until(lambda: taken_up(ledger, ids) and in_flight(broker_client) == fetched, "all are fetched")
        with long_worker(broker=broker_url, ledger=ledger, transport=LEASE):
            worker.suspend()
            open_gate(ledger)
            ran = count + late  # what ran here, and was not acknowledged, runs there too
            wait_until(lambda: len(taken_up(ledger, ids)) == ran, "the other worker has run what was fetched", 30)
            worker.resume()
            worker.wait_for_log("Connected to", times=2)
        worker.send_signal(signal.SIGTERM)
        worker.wait()
    assert sorted(taken_up(ledger, ids)) == sorted([*ids, *ids[:late]])


@pytest.mark.parametrize("late", EARLY_AND_LATE)
def test_a_task_whose_child_process_dies_before_it_reads_it_runs_once(
    app: Celery, broker_url: str, broker_client: redis.Redis, ledger: Ledger, late: bool
) -> None:
    """The pool keeps it for another child, or has put it back when the connection is lost."""
    with suspended_child(app, broker_url, ledger, late=late) as (worker, child, ids):
        os.kill(child, signal.SIGKILL)
        cut(broker_client)
        wait_for_loss(worker, broker_client)
        (last,) = send(app, 1, late=late)
        wait_until(lambda: taken_up(ledger, [last]), "it goes on working", 30)
        wait_until(lambda: in_flight(broker_client) == 0, "all is acknowledged", 30)
    assert taken_up(ledger, ids) == ids

"""Idle connections: they speak before anybody on the way forgets them, and no task suffers from one that is lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import redis
from celery import Celery

from celery_delayq.queue import connections as connections_module
from celery_delayq.queue.connections import LATE_S
from examples.private_redis import PrivateRedis
from tests.brokers import Server, proxied
from tests.integration.long_tasks import in_flight, long_worker, open_gate
from tests.ledger import Ledger
from tests.soak.proxy import Drop
from tests.support import wait_until
from tests.worker_app import publisher
from tests.workers import Worker

pytestmark = pytest.mark.on_cluster

#: With this, a task that runs is started again when Celery takes its connection for lost.
CANCELS: dict[str, Any] = {"worker_cancel_long_running_tasks_on_connection_loss": True}

#: An idle connection speaks after a second, and loops look once a second.
TRANSPORT = {"health_check_interval": 1}
CONF: dict[str, Any] = {"delayq_transfer_interval": 1}

#: So many seconds more are too much for a connection, see `was_silent`. A proxy drops idle ones later than that.
IDLE_S = 1 + LATE_S + 0.5

#: What a worker says that has lost a connection.
LOST = ("Connection to broker lost", " is lost: ", "interrupted", "did not confirm", "Traceback")


@pytest.fixture(autouse=True)
def clean(broker_client: redis.Redis) -> None:
    """An empty broker."""
    broker_client.flushall()


@pytest.fixture
def nodes(broker_server: Server, broker_client: redis.Redis) -> list[redis.Redis]:
    """A client of each server: only there, a connection has its id."""
    if isinstance(broker_server, PrivateRedis):
        return [broker_client]
    return [node.client for node in broker_server.cluster.nodes]


def ran(ledger: Ledger) -> list[str]:
    return [run.task_id for run in ledger.runs()]


def complaints(worker: Worker) -> list[str]:
    return [line for line in worker.log.splitlines() if any(word in line for word in LOST)]


def connections(nodes: list[redis.Redis], wanted: Callable[[dict[str, Any]], bool]) -> set[tuple[int, str]]:
    """Return the connections that a predicate picks by their line in CLIENT LIST: number of the server, and id."""
    return {(number, line["id"]) for number, node in enumerate(nodes) for line in node.client_list() if wanted(line)}


def kill(nodes: list[redis.Redis], killed: set[tuple[int, str]]) -> None:
    for number, id in killed:
        nodes[number].execute_command("CLIENT", "KILL", "ID", id)


def listening(nodes: list[redis.Redis]) -> set[tuple[int, str]]:
    """Return the connections that are told of changes in lists that others have read."""
    return {
        (number, line["redir"])
        for number, node in enumerate(nodes)
        for line in node.client_list()
        if int(line["redir"]) > 0
    }


def test_one_that_hears_of_rare_lists_may_be_lost_while_a_task_runs(
    app: Celery, broker_url: str, broker_client: redis.Redis, nodes: list[redis.Redis], ledger: Ledger
) -> None:
    """It is the keeper's: the watchdog and the transfer loop say so."""
    with long_worker(broker=broker_url, ledger=ledger, pool="threads", conf=CANCELS) as worker:
        long = app.send_task("gated_late").id
        wait_until(lambda: ran(ledger) == [long], "it runs")
        lost = wait_until(lambda: listening(nodes), "one listens")
        kill(nodes, lost)
        wait_until(lambda: listening(nodes) - lost, "another one listens")
        other = app.send_task("note", priority=9).id
        wait_until(lambda: other in ran(ledger), "a task with a priority runs", 10)
        open_gate(ledger)
        wait_until(lambda: in_flight(broker_client) == 0, "both are acknowledged")
        assert ran(ledger) == [long, other]
        for what in ("Lease renewal", "Transfer of delayed messages"):
            assert sum(what in line for line in complaints(worker)) == len(lost)
        assert worker.log.count("connected again") == len(complaints(worker)) == 2 * len(lost)


def test_one_that_waits_for_nothing_may_be_lost_while_a_task_runs(
    app: Celery, broker_url: str, broker_client: redis.Redis, nodes: list[redis.Redis], ledger: Ledger
) -> None:
    """A worker that may hold no more messages lets the server end its waits."""
    conf = {**CANCELS, "worker_prefetch_multiplier": 1}
    waits = lambda line: line["cmd"] == "blmove" and "b" in line["flags"]  # noqa: E731
    rests = lambda line: line["cmd"] == "blmove" and "b" not in line["flags"]  # noqa: E731
    with long_worker(broker=broker_url, ledger=ledger, pool="threads", concurrency=1, conf=conf) as worker:
        wait_until(lambda: connections(nodes, waits), "one waits")
        long = app.send_task("gated_late").id
        kill(nodes, wait_until(lambda: connections(nodes, rests), "one waits no more"))
        wait_until(lambda: not connections(nodes, rests), "the worker closes its side")
        open_gate(ledger)
        other = app.send_task("note").id
        wait_until(lambda: other in ran(ledger), "the next one runs", 10)
        wait_until(lambda: in_flight(broker_client) == 0, "both are acknowledged")
        assert ran(ledger) == [long, other]
        assert complaints(worker) == []


def test_who_publishes_does_not_wait_for_a_connection_that_is_forgotten(
    broker_server: Server, broker_client: redis.Redis, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections_module, "LATE_S", 0.0)
    transport = {"health_check_interval": 1, "socket_timeout": 60}
    with (
        proxied(broker_server) as (url, proxies),
        publisher(url, ledger.url, broker_transport_options=transport) as app,
    ):
        app.send_task("note")
        for proxy in proxies:
            proxy.drop_idle(1.1, "silently")
        wait_until(lambda: all(proxy.is_idle for proxy in proxies), "all connections are forgotten")
        began_s = time.monotonic()
        app.send_task("note")
        assert time.monotonic() - began_s < transport["socket_timeout"]
        assert broker_client.llen("celery") == 2


def test_who_publishes_opens_a_connection_again_that_the_server_has_closed(
    app: Celery, nodes: list[redis.Redis], broker_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was idle for so long that it is looked at before it is used."""
    monkeypatch.setattr(connections_module, "LATE_S", 0.0)
    app.conf.broker_transport_options = TRANSPORT
    app.send_task("note")
    for node in nodes:
        node.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    silent_at = time.monotonic() + 1.5
    wait_until(lambda: time.monotonic() > silent_at, "it was silent")
    app.send_task("note", retry=False)
    assert broker_client.llen("celery") == 2


@pytest.mark.thorough
@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_a_worker_outlives_a_proxy_that_ends_idle_connections(
    app: Celery, broker_server: Server, broker_client: redis.Redis, ledger: Ledger, pool: str
) -> None:
    with proxied(broker_server) as (url, proxies):
        for proxy in proxies:
            proxy.drop_idle(IDLE_S)
        conf = {**CONF, **CANCELS}
        with long_worker(broker=url, ledger=ledger, pool=pool, conf=conf, transport=TRANSPORT) as worker:
            long = app.send_task("gated_late").id
            wait_until(lambda: ran(ledger) == [long], "it runs")
            # The connection of its first events is not used any more.
            wait_until(lambda: sum(proxy.dropped for proxy in proxies), "the proxy has dropped one")
            other = app.send_task("note", priority=9).id
            wait_until(lambda: other in ran(ledger), "a task with a priority runs", 10)
            open_gate(ledger)
            wait_until(lambda: in_flight(broker_client) == 0, "both are acknowledged")
            assert ran(ledger) == [long, other]
            assert complaints(worker) == []


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["silently", "fin", "rst"])
def test_a_task_that_blocks_the_worker_is_acknowledged_on_a_connection_that_works(
    app: Celery, broker_server: Server, broker_client: redis.Redis, ledger: Ledger, how: Drop
) -> None:
    """A solo worker says nothing while it runs a task."""
    with (
        proxied(broker_server) as (url, proxies),
        long_worker(broker=url, ledger=ledger, pool="solo", conf=CONF, transport=TRANSPORT) as worker,
    ):
        long = app.send_task("gated_late").id
        wait_until(lambda: ran(ledger) == [long], "it runs")
        for proxy in proxies:
            proxy.drop_idle(IDLE_S, how)
        wait_until(lambda: sum(proxy.dropped for proxy in proxies) >= 3, "the proxy has dropped some")
        open_gate(ledger)
        wait_until(lambda: in_flight(broker_client) == 0, "it is acknowledged")
        other = app.send_task("note", priority=9).id
        wait_until(lambda: other in ran(ledger), "a task with a priority runs", 10)
        assert ran(ledger) == [long, other]
        if how == "silently":
            assert complaints(worker) == []

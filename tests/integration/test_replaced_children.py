"""A process of the pool that is forked while its worker has connections shares none of them, and harms none."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
import redis
from celery import Celery

from celery_delayq.queue.connections import CONNECTION_ERRORS
from examples.private_redis import PrivateRedis
from tests.brokers import ClusterServer, Server, url_of
from tests.integration.long_tasks import long_worker
from tests.ledger import Ledger
from tests.processes import connections, wait_until_idle
from tests.redis_cluster import servers
from tests.support import wait_until
from tests.worker_app import publisher
from tests.workers import Worker

pytestmark = pytest.mark.on_cluster


def children(worker: Worker) -> set[int]:
    """The processes of the pool."""
    return worker.session() - {worker.pid}


def runs(app: Celery, ledger: Ledger, count: int = 4) -> None:
    """Tasks that are published now run."""
    sent = [app.tasks["note"].apply_async().id for _ in range(count)]
    wait_until(lambda: ledger.has(sent), "the tasks have run")


@contextmanager
def replaced(app: Celery, url: str, ledger: Ledger, how: str) -> Iterator[Worker]:
    """A worker one of whose processes was forked while the worker had all its connections."""
    options = {
        "max-tasks": ("--max-tasks-per-child=1",),
        "autoscale": ("--autoscale=4,1",),
        "time limit": ("--time-limit=1",),
    }
    conf = {"result_backend": url, "beat_schedule": {"yearly": {"task": "note", "schedule": 365 * 24 * 3600}}}
    with long_worker(
        *options.get(how, ()), broker=url, ledger=ledger, pool="prefork", concurrency=2, conf=conf
    ) as worker:
        runs(app, ledger, 1)
        before = children(worker)
        if how == "killed":
            os.kill(min(before), signal.SIGKILL)
        elif how == "time limit":
            app.send_task("nap", (60,))
            worker.wait_for_log("Hard time limit")
        elif how == "autoscale":
            for _ in range(8):
                app.send_task("nap", (0.5,))
        elif how == "grown":
            app.control.pool_grow(1)
        else:
            runs(app, ledger, 8)
        wait_until(lambda: children(worker) - before, "there is a new process")
        yield worker


@pytest.mark.parametrize("how", ["max-tasks", "time limit", "autoscale", "grown", "killed"])
def test_a_process_of_the_pool_shares_no_connection_with_its_worker(
    app: Celery, broker_url: str, ledger: Ledger, how: str
) -> None:
    with replaced(app, broker_url, ledger, how) as worker:

        def shared() -> set[str]:
            mine = connections(worker.pid)
            return {it for child in children(worker) for it in mine & connections(child)}

        wait_until(lambda: not shared(), "none is shared")
        wait_until_idle(worker.pid)


def reset(client: redis.Redis, *kinds: str) -> None:
    for kind in kinds:
        client.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")


def answers(app: Celery) -> bool:
    """Whether the worker answers; the connections of the app were reset, too."""
    with suppress(*CONNECTION_ERRORS):
        return bool(app.control.ping(timeout=1))
    return False


def is_well(worker: Worker, app: Celery, ledger: Ledger) -> None:
    """The worker runs tasks, is idle then, and answers."""
    runs(app, ledger)
    wait_until_idle(worker.pid)
    wait_until(lambda: answers(app), "it answers")


@pytest.mark.parametrize("kinds", [("normal", "pubsub"), ("pubsub",), ("normal",)], ids="+".join)
def test_a_worker_with_a_replaced_process_goes_on_after_a_reset_of_its_connections(
    app: Celery, broker_url: str, broker_client: redis.Redis, ledger: Ledger, kinds: tuple[str, ...]
) -> None:
    with replaced(app, broker_url, ledger, "killed") as worker:
        for _ in range(2):
            reset(broker_client, *kinds)
            is_well(worker, app, ledger)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait() == 0


@pytest.fixture
def own_server(broker_kind: str) -> Iterator[Server]:
    """A broker that may be restarted."""
    if broker_kind == "cluster":
        with servers.cluster() as cluster:
            yield ClusterServer(cluster)
    else:
        with PrivateRedis() as server:
            yield server


def test_a_worker_with_a_replaced_process_goes_on_after_a_restart(own_server: Server, ledger: Ledger) -> None:
    """Of the server, or of the node of a cluster to which the worker's subscriptions are."""
    url = url_of(own_server)
    with publisher(url, ledger.url) as app, replaced(app, url, ledger, "killed") as worker:
        if isinstance(own_server, ClusterServer):
            own_server.cluster.nodes[0].restart()
            own_server.cluster.wait_until_ok()
        else:
            own_server.restart()
        is_well(worker, app, ledger)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait() == 0

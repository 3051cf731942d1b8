"""After a planned failover, the old master is alive for some seconds: publishers leave it as soon as workers do."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from examples.private_redis import PrivateRedis
from tests.ledger import Ledger
from tests.sentinel import Replicated, replicated
from tests.support import wait_until
from tests.worker_app import publisher

pytestmark = pytest.mark.one_server("Sentinel")


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Replicated]:
    with replicated(tmp_path) as servers:
        yield servers


@pytest.fixture
def app(servers: Replicated, ledger: Ledger) -> Iterator[Celery]:
    with publisher(servers.url, ledger.url, **servers.conf) as app:
        yield app


def has(server: PrivateRedis, task_id: str) -> bool:
    with server.client() as client:
        return any(task_id.encode() in message for message in client.lrange("celery", 0, -1))


def goes_to(app: Celery, server: PrivateRedis) -> bool:
    """Whether a task that is published now goes to a server."""
    return has(server, app.tasks["note"].delay().id)


def listeners(servers: Replicated) -> int:
    """How many processes listen to the sentinel."""
    with servers.sentinel.client() as sentinel:
        return sum(line["sub"] != "0" for line in sentinel.client_list())


def is_master(server: PrivateRedis) -> bool:
    with server.client() as client:
        return bool(client.role()[0] == b"master")


def run_until_it_leaves(app: Celery, servers: Replicated, has_begun: Any, may_end: Any) -> None:
    """Publish in a process of its own; end with 0 if it leaves the old master while that is one."""
    app.tasks["note"].delay()
    wait_until(lambda: listeners(servers) == 2, "both processes listen")
    has_begun.set()
    may_end.wait(60)
    wait_until(lambda: goes_to(app, servers.replica), "it left the old master")
    raise SystemExit(0 if is_master(servers.master) else 3)


def test_a_publisher_leaves_the_old_master_while_that_is_one(app: Celery, servers: Replicated) -> None:
    assert goes_to(app, servers.master)
    wait_until(lambda: listeners(servers) == 1, "it listens")
    servers.fail_over_as_planned()
    wait_until(lambda: goes_to(app, servers.replica), "it left the old master")
    assert is_master(servers.master), "Sentinel has not told the old one yet"


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")  # there are other threads
def test_a_forked_process_listens_for_itself(app: Celery, servers: Replicated) -> None:
    """As the processes of a web server do whose parent has published."""
    assert goes_to(app, servers.master)
    wait_until(lambda: listeners(servers) == 1, "the parent listens")
    forking = multiprocessing.get_context("fork")
    has_begun, may_end = forking.Event(), forking.Event()
    child = forking.Process(target=run_until_it_leaves, args=(app, servers, has_begun, may_end))
    child.start()
    try:
        assert has_begun.wait(30)
        servers.fail_over_as_planned()
        may_end.set()
        child.join(40)
        assert child.exitcode == 0
    finally:
        child.kill()
        child.join()


def test_all_connections_of_a_process_share_one_listener(app: Celery, servers: Replicated) -> None:
    connections = [app.connection_for_write() for _ in range(5)]
    for connection in connections:
        connection.default_channel.check_writable()
    wait_until(lambda: listeners(servers), "it listens")
    assert listeners(servers) == 1
    for connection in connections:
        connection.close()

"""After a planned failover, the old master is alive for some seconds: publishers leave it as soon as workers do."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_delayq.basics import native
from examples.private_redis import PrivateRedis
from tests.ledger import Ledger
from tests.sentinel import MASTER_NAME, Replicated, replicated
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


def is_listened_to(sentinel: PrivateRedis) -> bool:
    with sentinel.client() as client:
        return any(line["sub"] != "0" and not line["name"].startswith("sentinel-") for line in client.client_list())


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


def test_publishing_goes_on_if_no_thread_can_be_started(
    app: Celery, servers: Replicated, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(target: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(native, "start_native_thread", refuse)
        assert goes_to(app, servers.master)
    assert "Cannot listen to Redis Sentinel: can't start new thread" in caplog.text
    with app.connection_for_write() as connection:
        connection.default_channel.check_writable()
        wait_until(lambda: listeners(servers), "the next connection listens")


@pytest.mark.parametrize("event", ["is away", "does not know the master", "lets nobody listen"])
def test_another_sentinel_is_listened_to_when_one(event: str, tmp_path: Path, ledger: Ledger) -> None:
    with replicated(tmp_path, 3) as servers, publisher(servers.url, ledger.url, **servers.conf) as app:
        assert goes_to(app, servers.master)
        wait_until(lambda: any(map(is_listened_to, servers.sentinels)), "it listens")
        first = next(filter(is_listened_to, servers.sentinels))
        others = [one for one in servers.sentinels if one is not first]
        if event == "is away":
            first.kill()
        else:
            with first.client() as client:
                if event == "lets nobody listen":
                    client.acl_setuser("default", reset_channels=True)
                    client.client_kill_filter(_type="pubsub")
                else:
                    client.sentinel_remove(MASTER_NAME)
        wait_until(lambda: any(map(is_listened_to, others)), "it listens to another one")


_COMPUTES = """
from gevent import monkey; monkey.patch_all()
import os, sys, gevent
from celery import Celery
from celery_delayq import DelayQ

app = Celery(broker=sys.argv[1], broker_transport_options={"master_name": sys.argv[2]})
DelayQ(app)
app.send_task("note")
while not os.path.exists(sys.argv[3]):
    gevent.sleep(0.01)
print("computes", flush=True)
sys.stdin.read()  # gives way to no greenlet
"""


def test_a_process_leaves_the_old_master_while_a_greenlet_computes(servers: Replicated, tmp_path: Path) -> None:
    def connected() -> int:
        return sum(not one["name"].startswith("sentinel-") for one in client.client_list(_type="normal")) - 1

    listens = tmp_path / "listens"
    program = [sys.executable, "-c", _COMPUTES, servers.url, MASTER_NAME, str(listens)]
    with (
        servers.master.client() as client,
        subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process,
    ):
        try:
            wait_until(lambda: listeners(servers), "it listens")
            listens.touch()
            assert process.stdout
            assert process.stdout.readline() == b"computes\n"
            assert connected()
            servers.fail_over_as_planned()
            wait_until(lambda: not connected(), "it left the old master")
            assert is_master(servers.master), "Sentinel has not told the old one yet"
        finally:
            process.kill()

"""How many connections processes hold, as docs/redis.md says it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import kombu
import pytest
import redis
from kombu import pools

from examples.private_redis import PrivateRedis
from tests.integration.long_tasks import in_flight
from tests.ledger import Ledger
from tests.support import wait_until
from tests.worker_app import publisher
from tests.workers import CeleryCommand, Worker

pytestmark = pytest.mark.one_server("see redis_cluster/test_connections.py")

_DOCUMENT = Path(__file__).parents[2] / "docs" / "redis.md"
#: With more queues, none that is not busy takes a connection.
MANY = 32

_QUIET = ("--without-gossip", "--without-mingle")


def documented(of: str) -> tuple[int, int]:
    """What the table says that one process holds: connections, and connections for each queue."""
    row = re.search(
        rf"^\| {re.escape(of)} \|.*\| (\d+)(?:, and (\d+) for each queue)? \|$", _DOCUMENT.read_text(), re.M
    )
    assert row is not None, of
    return int(row[1]), int(row[2] or 0)


@pytest.fixture
def server() -> Iterator[PrivateRedis]:
    with PrivateRedis() as server:
        yield server


@pytest.fixture
def admin(server: PrivateRedis) -> Iterator[redis.Redis]:
    with server.client() as client:
        client.ping()
        yield client


def url_of(server: PrivateRedis) -> str:
    return server.url.replace("redis://", "delayq://")


def connections(admin: redis.Redis) -> int:
    return len(admin.client_list()) - 1


@pytest.mark.parametrize("queues", [1, 20, 40])
@pytest.mark.parametrize(
    ("row", "options"),
    [("with them, as by default", ()), ("a worker without gossip and mingle", _QUIET)],
    ids=["default", "quiet"],
)
def test_a_worker(
    server: PrivateRedis, admin: redis.Redis, ledger: Ledger, queues: int, row: str, options: tuple[str, ...]
) -> None:
    names = [f"q{number}" for number in range(queues)]
    arguments = ("worker", "--loglevel=INFO", "--concurrency=2", "-Q", ",".join(names), *options)
    with (
        CeleryCommand(*arguments, broker=url_of(server), ledger=ledger.url) as worker,
        publisher(url_of(server), ledger.url) as app,
    ):
        worker.wait_for_log("ready.")
        worker.wait_for_log("Transfer of delayed messages: connected")
        sent = [app.tasks["note"].apply_async(queue=name, countdown=0.1).id for name in names]
        wait_until(lambda: ledger.has(sent), "each queue is served")
        pools.reset()  # the publisher's connections
        wait_until(lambda: admin.info("clients")["tracking_clients"] == 1, "it listens for rarely used lists")
        base, each = documented(row)
        expected = base + (each * queues if queues <= MANY else 0) + (kombu.VERSION < (5, 7) and options != _QUIET)
        wait_until(lambda: connections(admin) <= expected, f"at most {expected} are left")
        assert connections(admin) == expected


def test_a_process_that_publishes(server: PrivateRedis, admin: redis.Redis, ledger: Ledger) -> None:
    with publisher(url_of(server), ledger.url) as app:
        for countdown in (None, 60, None, 60):
            app.tasks["note"].apply_async(countdown=countdown)
        assert (connections(admin), 0) == documented("a process that publishes")


def test_a_small_limit_is_enough_for_threads_that_acknowledge(server: PrivateRedis, ledger: Ledger) -> None:
    """kombu's option `max_connections` bounds the pool that they share, which needs some."""
    conf = {"broker_transport_options": {"max_connections": 1}}
    worker = Worker(pool="threads", concurrency=20, broker=url_of(server), ledger=ledger.url, conf=conf)
    with worker, publisher(url_of(server), ledger.url) as app:
        sent = [app.tasks["note"].apply_async(countdown=countdown).id for countdown in (None, 0.2) for _ in range(100)]
        wait_until(lambda: ledger.has(sent), "all ran", 30)
        with server.client() as client:
            wait_until(lambda: in_flight(client) == 0, "all are acknowledged")
        assert "Too many connections" not in worker.log
        assert "Connection to broker lost" not in worker.log

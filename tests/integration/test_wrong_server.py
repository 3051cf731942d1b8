"""A `delayq://` URL that leads to a Redis Sentinel, or to a node of a Redis Cluster: the error says what to write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest
import redis
from celery import Celery
from kombu import Connection, Queue

from celery_delayq import ConfigurationError, DelayQ, register
from celery_delayq.transport.wrong_server import refuse_wrong_server
from examples.private_cluster import cluster_servers
from examples.private_redis import PrivateRedis
from tests.cli.running import failed, run
from tests.ledger import Ledger
from tests.redis_cluster.servers import Cluster
from tests.sentinel import sentinel_command
from tests.workers import Worker

pytestmark = pytest.mark.one_server("it is about URLs of one server")

SENTINEL = (
    "this Redis is a Redis Sentinel: the broker URL has to start with delayq+sentinel://, and not with delayq://, and "
    'app.conf.broker_transport_options has to name the master: {"master_name": "mymaster"}'
)

CLUSTER = (
    "this Redis is a node of a Redis Cluster: the broker URL has to start with delayq+cluster://, and not with "
    "delayq://"
)


@pytest.fixture(scope="module")
def sentinel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateRedis]:
    folder: Path = tmp_path_factory.mktemp("sentinel")
    with PrivateRedis() as master, PrivateRedis(server=sentinel_command(folder / "one", master.port, 1)) as found:
        yield found


@pytest.fixture(scope="module")
def lone_node() -> Iterator[PrivateRedis]:
    """A node of a cluster that serves no slot."""
    with cluster_servers(1) as (found, *_):
        yield found


def app_of(url: str) -> Celery:
    app = Celery("shop", broker=url, set_as_current=False)
    DelayQ(app)
    return app


def refused_everywhere(url: str, message: str) -> None:
    app = app_of(url)
    for call in (
        lambda: app.send_task("note", retry=False),
        lambda: app.send_task("note", countdown=60),
        lambda: DelayQ(app).counts(),
        lambda: DelayQ(app).schedule.add("a", "note", 60),
        lambda: Connection(url).connect(),
    ):
        with pytest.raises(ConfigurationError) as caught:
            call()
        assert str(caught.value) == message


class TestSentinel:
    def url(self, sentinel: PrivateRedis) -> str:
        return f"delayq://127.0.0.1:{sentinel.port}/0"

    def test_calls(self, sentinel: PrivateRedis) -> None:
        register()
        refused_everywhere(self.url(sentinel), SENTINEL)

    @pytest.mark.parametrize(
        "command", [["status"], ["list"], ["cancel", "an-id"], ["schedule", "list"], ["transfer"]], ids=" ".join
    )
    def test_commands(self, sentinel: PrivateRedis, command: list[str]) -> None:
        failed(run(app_of(self.url(sentinel)), *command), f"Error: {SENTINEL}")

    def test_the_check(self, sentinel: PrivateRedis) -> None:
        done = run(app_of(self.url(sentinel)), "check", "--json")
        assert done.code == 1
        (error,) = [line for line in done.lines() if line["level"] == "error"]
        assert error["message"] == f"T{SENTINEL[1:]}."

    def test_a_worker(self, sentinel: PrivateRedis, ledger: Ledger) -> None:
        worker = Worker(broker=self.url(sentinel), ledger=ledger.url)
        worker.start()
        try:
            assert worker.wait() != 0
            assert SENTINEL in worker.log
        finally:
            worker.__exit__()


class TestLoneNode:
    def test_calls(self, lone_node: PrivateRedis) -> None:
        register()
        refused_everywhere(f"delayq://127.0.0.1:{lone_node.port}/0", CLUSTER)

    def test_commands(self, lone_node: PrivateRedis) -> None:
        failed(run(app_of(f"delayq://127.0.0.1:{lone_node.port}/0"), "status"), f"Error: {CLUSTER}")

    def test_the_check(self, lone_node: PrivateRedis) -> None:
        done = run(app_of(f"delayq://127.0.0.1:{lone_node.port}/0"), "check", "--json")
        assert done.code == 1
        assert f"T{CLUSTER[1:]}." in [line["message"] for line in done.lines() if line["level"] == "error"]


def with_queues_everywhere(app: Celery) -> Celery:
    """Let an app have a queue at each node, so that no node has all keys that a call needs."""
    app.conf.task_queues = [Queue(name) for name in "abc"]
    return app


class TestNodeWithSlots:
    """A node may have the slots of some keys and not of others, so the error comes with any command."""

    CALLS: ClassVar[dict[str, Callable[[Celery], object]]] = {
        "get": lambda app: DelayQ(app).get("id"),
        "cancel": lambda app: DelayQ(app).cancel("id"),
        "reschedule": lambda app: DelayQ(app).reschedule("id", countdown=5),
        "scheduled": lambda app: DelayQ(app).scheduled(),
        "counts": lambda app: DelayQ(app).counts(),
        "consumers": lambda app: DelayQ(app).consumers(),
        "cancel_all": lambda app: DelayQ(app).cancel_all(everything=True),
        "waiting": lambda app: DelayQ(with_queues_everywhere(app)).waiting("key"),
        "schedule": lambda app: list(DelayQ(app).schedule),
        "revoke": lambda app: app.control.revoke("id"),
        "send": lambda app: app.send_task("note", countdown=60, retry=False),
    }

    @pytest.mark.parametrize("call", CALLS)
    def test_calls(self, whole_cluster: Cluster, call: str) -> None:
        for node in whole_cluster.nodes:
            with pytest.raises(ConfigurationError) as caught:
                self.CALLS[call](app_of(f"delayq://127.0.0.1:{node.port}/0"))
            assert str(caught.value) == CLUSTER


class TestOtherErrors:
    @pytest.mark.parametrize(
        "error",
        [
            redis.ResponseError("unknown command 'EVALSHA', with args beginning with: "),
            redis.ResponseError("WRONGTYPE Operation"),
            redis.ReadOnlyError("You can't write against a read only replica."),
            redis.exceptions.MasterDownError("Link with MASTER is down"),
        ],
        ids=lambda error: type(error).__name__,
    )
    def test_stay_as_they_are(self, redis_server: PrivateRedis, error: Exception) -> None:
        """A server may lack a command because somebody has renamed it."""
        with redis_server.client() as client:
            refuse_wrong_server(error, client)

    def test_a_connection_that_is_fine_sends_no_more_than_before(self, redis_server: PrivateRedis) -> None:
        with redis_server.client() as client:
            client.config_resetstat()
            with Connection(f"delayq://127.0.0.1:{redis_server.port}/0") as connection:
                connection.connect()
            assert "cmdstat_info" not in client.info("commandstats")

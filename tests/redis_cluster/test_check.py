"""`celery delayq check` on a cluster some of whose nodes are away: a line for each, and the rest is checked."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import pytest
import redis
from celery import Celery

from celery_delayq import DelayedQueue
from celery_delayq.health.at_start import say_at_start
from tests.cli.running import Done, run
from tests.ledger import Ledger
from tests.redis_cluster import servers
from tests.redis_cluster.servers import Cluster, ClusterNode
from tests.state import now_ms, offer
from tests.worker_app import PASSWORD, publisher

#: On all nodes.
QUEUES = [f"q{number}" for number in range(6)]


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[Cluster]:
    """A cluster in which no node is taken for dead, so that it is for the check to find out."""
    with servers.cluster(settings=("--cluster-node-timeout", "300000")) as cluster:
        yield cluster


@pytest.fixture(params=["suspended", "dead"])
def victim(request: pytest.FixtureRequest, own_cluster: Cluster) -> Iterator[ClusterNode]:
    """A node that is away."""
    node = own_cluster.nodes[0]
    if request.param == "dead":
        node.kill()
    else:
        node.suspend()
    yield node
    if request.param == "dead":
        node.restart()
        own_cluster.wait_until_ok()
    else:
        node.resume()


@pytest.fixture
def app(own_cluster: Cluster, ledger: Ledger) -> Iterator[Celery]:
    options = {"broker_transport_options": {"socket_timeout": 300}}
    with publisher(own_cluster.url(3), ledger.url, task_queues=None, **options) as app:
        for queue in QUEUES:
            app.amqp.queues.add(queue)
        yield app


def lines(done: Done, check: str) -> list[dict[str, Any]]:
    return [line for line in done.lines() if line["check"] == check]


def served(cluster: Cluster) -> Iterator[tuple[str, redis.Redis]]:
    """Yield the queues whose nodes answer, with a client of their node."""
    for queue in QUEUES:
        with suppress(LookupError):
            yield queue, cluster.owner(queue).client


def test_a_node_that_is_away_is_a_line_and_the_others_are_checked(
    own_cluster: Cluster, victim: ClusterNode, app: Celery
) -> None:
    start = time.monotonic()
    done = run(app, "check", "--json")
    took_s = time.monotonic() - start
    assert done.code == 1
    errors = [line for line in done.lines() if line["level"] == "error"]
    assert [line["servers"] for line in errors] == [[str(victim.address)]]
    assert errors[0]["message"].startswith(f"Cannot use the node {victim.address}: ")
    others = sorted(str(node.address) for node in own_cluster.nodes if node is not victim)
    for check in ("permissions", "clock", "memory", "transfer", "overdue"):
        assert sorted(name for line in lines(done, check) for name in line["servers"]) == others
    assert took_s < 60


def test_a_probe_sees_the_queues_of_the_other_nodes(own_cluster: Cluster, victim: ClusterNode, app: Celery) -> None:
    """And it fails in any case: nobody knows what is overdue at the node that is away."""
    queue, client = next(served(own_cluster))
    offer(DelayedQueue(client, queue), "late", now_ms(client) - 100_000, b"{}")
    try:
        done = run(app, "check", "--json", "--max-overdue", "60")
    finally:
        client.flushall()
    assert done.code == 1
    assert lines(done, "server")[0]["servers"] == [str(victim.address)]
    assert any(f"overdue in queue {queue!r}" in line["message"] for line in lines(done, "overdue"))


def test_a_worker_starts_all_the_same_and_says_so(
    victim: ClusterNode, app: Celery, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("celery_delayq.test")
    app.conf.broker_transport_options = {"socket_timeout": 1}
    with app.connection_for_write() as connection, caplog.at_level(logging.INFO):
        say_at_start(logger, app, connection.default_channel)
    said = [(record.levelname, record.getMessage()) for record in caplog.records if record.name == logger.name]
    assert said[0][0] == "INFO"
    assert "with a Redis Cluster of 3 masters (" in said[0][1]
    (away,) = (message for level, message in said if message.startswith("Cannot use"))
    assert ("WARNING", away) in said
    assert away.startswith(f"Cannot use the node {victim.address}: ")
    assert sum("has no persistence" in message for _, message in said) == 1


def test_findings_that_nodes_share_are_one_line(own_cluster: Cluster, app: Celery) -> None:
    done = run(app, "check", "--json")
    (finding,) = lines(done, "persistence")
    assert sorted(finding["servers"]) == sorted(str(node.address) for node in own_cluster.nodes)
    assert "persistence  Redis has no persistence" in run(app, "check").stdout.replace("Valkey", "Redis")


def test_all_nodes_get_the_same_line_for_administrators(own_cluster: Cluster, app: Celery, ledger: Ledger) -> None:
    """Although each has other queues."""
    rules = ["on", f">{PASSWORD}", "+@all", "&*", "~redisson_delay_queue*", "~delayq:*", "~*.celery.pidbox*"]
    for node in own_cluster.nodes:
        node.client.execute_command("ACL", "SETUSER", "shop", "reset", *rules, "~{_kombu.binding}*", "~celery*")
    login = f"delayq+cluster://shop:{quote(PASSWORD, safe='')}@"
    with publisher(own_cluster.url(3).replace("delayq+cluster://", login), ledger.url) as theirs:
        for queue in QUEUES:
            theirs.amqp.queues.add(queue)
        done = run(theirs, "check", "--json")
    (finding,) = lines(done, "permissions")
    assert len(finding["servers"]) == 3
    missing = {f"~{queue}*" for queue in QUEUES} | {f"~{{{queue}}}*" for queue in QUEUES} | {"~{celery}*"}
    assert set(finding["command"].removeprefix("ACL SETUSER shop ").split()) == missing

"""Nodes whose clocks differ: what is due is due by the clock of its queue's node."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from examples.private_redis import PrivateRedis
from tests.clocks import clock_from, server_with
from tests.ledger import Ledger
from tests.redis_cluster import servers
from tests.redis_cluster.servers import Cluster
from tests.support import wait_until
from tests.worker_app import publisher
from tests.workers import Worker

pytestmark = pytest.mark.usefixtures("faketime")

#: One on each node.
QUEUES = ("blue", "green", "red")

#: How far the clock of each node is ahead, in seconds.
AHEAD_S = (0, 60, -60)

DUE_IN_S = 3.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    offsets = iter(AHEAD_S)

    def make(*options: str, server: Path | None = None, **rest: Any) -> PrivateRedis:
        folder = tmp_path / str(ahead_s := next(offsets))
        folder.mkdir()

        def clock() -> dict[str, str]:
            return clock_from(datetime.now(timezone.utc) + timedelta(seconds=ahead_s))

        return PrivateRedis(*options, server=server_with(clock, folder), **rest)

    with servers.cluster(make=make) as cluster:
        yield cluster


def ahead_s(cluster: Cluster, queue: str) -> float:
    """Return how far the clock of a queue's node is ahead of this machine's, in seconds; to 20 ms."""

    def asked() -> tuple[float] | None:
        before = time.time()
        seconds, microseconds = cluster.owner(queue).client.time()
        return (seconds + microseconds / 1e6 - before,) if time.time() - before < 0.02 else None

    return wait_until(asked, "an answer comes at once")[0]


def test_tasks_are_due_by_the_clock_of_their_node(cluster: Cluster, ledger: Ledger) -> None:
    ahead = {queue: ahead_s(cluster, queue) for queue in QUEUES}
    assert max(ahead.values()) - min(ahead.values()) > 100
    with (
        publisher(cluster.url(3), ledger.url) as app,
        Worker("-Q", ",".join(QUEUES), pool="solo", broker=cluster.url(3), ledger=ledger.url) as worker,
    ):
        # Before it knows the clock of a node, it goes by its own.
        worker.wait_for_log("Transfer of delayed messages: connected", times=len(QUEUES))
        due_at = time.time() + DUE_IN_S
        queues = {}
        for queue in QUEUES:
            eta = datetime.fromtimestamp(due_at + ahead[queue], timezone.utc)
            queues[app.tasks["note"].apply_async((queue,), eta=eta, queue=queue).id] = queue
        wait_until(lambda: len(ledger.runs()) == len(QUEUES), "all have run", 30)
        for run in ledger.runs():
            assert due_at - 0.05 < run.at_ms / 1000 < due_at + 20, queues[run.task_id]

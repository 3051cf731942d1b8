"""How many connections a worker holds, as docs/cluster.md says it."""

from __future__ import annotations

import re
from pathlib import Path

import kombu
import pytest
from kombu import pools

from tests.ledger import Ledger
from tests.redis_cluster.servers import Cluster
from tests.support import wait_until
from tests.worker_app import publisher
from tests.workers import CeleryCommand

_DOCUMENT = Path(__file__).parents[2] / "docs" / "cluster.md"


def documented(of: str) -> int:
    """Return what the table says."""
    row = re.search(rf"^\| {re.escape(of)} \| (\d+) \|$", _DOCUMENT.read_text(), re.M)
    assert row is not None, of
    return int(row[1])


def connections(cluster: Cluster) -> set[tuple[int, str]]:
    """Return the ids of the connections that clients have, each with the port of its node."""
    return {
        (node.port, client["id"])
        for node in cluster.masters()
        for kind in ("normal", "pubsub")
        for client in node.client.client_list(_type=kind)
    }


@pytest.mark.parametrize("queues", [1, 12])
@pytest.mark.parametrize("options", [(), ("--without-gossip", "--without-mingle")], ids=["default", "quiet"])
def test_a_worker(cluster: Cluster, ledger: Ledger, queues: int, options: tuple[str, ...]) -> None:
    names = [f"q{number}" for number in range(queues)]
    before = connections(cluster)  # ours, and those that earlier tests left to be collected
    arguments = ("worker", "--loglevel=INFO", "--concurrency=2", "-Q", ",".join(names), *options)
    with (
        CeleryCommand(*arguments, broker=cluster.url(), ledger=ledger.url) as worker,
        publisher(cluster.url(), ledger.url) as app,
    ):
        worker.wait_for_log("ready.")
        worker.wait_for_log("Transfer of delayed messages: connected", times=3)
        sent = [app.tasks["note"].apply_async(queue=name, countdown=0.1).id for name in names]
        wait_until(lambda: ledger.has(sent), "each queue is served")
        pools.reset()  # the publisher's connections
        masters = len(cluster.masters())
        with_queues = len({cluster.owner(name).port for name in names})
        expected = (
            documented("for each master of the cluster") * masters
            + documented("for each master with queues of the worker") * with_queues
            + documented("for each queue, with up to 32 at a master") * queues
            + documented("for the worker itself")
            + (0 if options else documented("with gossip and mingle, as by default"))
            + (kombu.VERSION < (5, 7) and not options)
        )
        wait_until(lambda: len(connections(cluster) - before) <= expected, f"at most {expected} are left")
        assert len(connections(cluster) - before) > expected - 5, "the page says too many"

"""A node that is out of memory holds up nothing of the others. What it has refused is written later."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from celery import Celery

from celery_delayq.transport import node_fetchers
from celery_delayq.transport.node_fetchers import NodeFetchers
from tests.ledger import Ledger
from tests.redis_cluster import servers
from tests.redis_cluster.servers import Cluster
from tests.state import out_of_memory
from tests.support import servers as available
from tests.support import wait_until
from tests.worker_app import publisher
from tests.workers import Worker

SERVERS = available()

BINDINGS = "{_kombu.binding}"


@pytest.fixture
def app(cluster: Cluster, ledger: Ledger) -> Iterator[Celery]:
    """An app whose keys are all in one slot."""
    conf = {"broker_transport_options": {"global_keyprefix": "{shop}:"}}
    with publisher(cluster.url(3), ledger.url, **conf) as app:
        yield app


@pytest.mark.parametrize("server", SERVERS)  # each has its own error for a script
def test_a_worker_starts_and_serves_the_queues_of_the_others(server: str, ledger: Ledger) -> None:
    with (
        servers.cluster(server=SERVERS[server], settings=("--cluster-node-timeout", "15000")) as cluster,
        publisher(cluster.url(3), ledger.url) as app,
    ):
        full = cluster.owner(BINDINGS)
        queues = [cluster.key_of(node) for node in cluster.nodes]
        note = app.tasks["note"]
        ids = [note.apply_async(queue=queue, countdown=countdown).id for queue in queues for countdown in (None, 1)]
        with (
            out_of_memory(full.client),
            Worker("-Q", ",".join([*queues, "new"]), broker=cluster.url(3), ledger=ledger.url) as worker,
        ):
            wait_until(lambda: ledger.has(ids), "it runs the tasks of all nodes")
            assert "Connection to broker lost" not in worker.log
            assert "Traceback" not in worker.log


class TestRefusedBindings:
    def test_are_written_later(self, app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
        errors: list[Exception] = [redis.OutOfMemoryError("maxmemory")] * 3

        def bind(channel: Any) -> None:
            if errors:
                raise errors.pop()
            written.append(1)

        written: list[int] = []
        monkeypatch.setattr(node_fetchers, "AGAIN_S", 0)
        with app.connection() as connection, connection.channel() as channel:
            transport = channel.connection
            monkeypatch.setattr(transport.nodes, "lose", pytest.fail)  # the node answers
            transport.bindings.bind(channel, "news", "q", "key", bind)
            fetchers = NodeFetchers(channel)
            for _ in range(5):
                fetchers.fill()
        assert written == [1]

    def test_count_as_those_of_their_own_node(
        self, cluster: Cluster, app: Celery, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def bind(channel: Any) -> None:
            raise redis.ConnectionError("away")

        lost: list[object] = []
        with app.connection() as connection, connection.channel() as channel:
            transport = channel.connection
            monkeypatch.setattr(transport.nodes, "lose", lost.append)
            transport.bindings.bind(channel, "news", "q", "key", bind)
            NodeFetchers(channel).fill()
        assert [str(address) for address in lost] == [cluster.owner("shop").address]

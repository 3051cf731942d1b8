"""A node of a cluster that is away, or hangs: its queues are left out, and a scrape waits for nobody."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from celery_delayq.cluster import hanging
from celery_delayq.cluster.node import Address
from celery_delayq.metrics.flusher import Flusher
from celery_delayq.metrics.recorder import Recorder
from celery_delayq.metrics.source import Source
from examples.private_redis import find_server
from tests.brokers import ClusterServer
from tests.metrics.parsing import Scrape
from tests.redis_cluster import servers
from tests.redis_cluster.servers import Cluster, ClusterNode
from tests.state import FAR
from tests.worker_app import publisher


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[Cluster]:
    """Three masters without replicas; the others go on if one is gone."""
    settings = ("--cluster-node-timeout", "15000", "--cluster-require-full-coverage", "no")
    with servers.cluster(server=find_server(), settings=settings) as cluster:
        yield cluster


@pytest.fixture
def node(own_cluster: Cluster) -> Iterator[ClusterNode]:
    """One with a queue, and without the registry, the list of what was counted, or the periodic tasks."""
    busy = {own_cluster.owner(key) for key in ("delayq:queues", "delayq:metrics")}
    node = next(node for node in own_cluster.nodes if node not in busy)
    yield node
    node.resume()
    if not node.answers:
        node.restart()
    hanging.answers(Address("127.0.0.1", node.port))


@pytest.fixture
def queues(own_cluster: Cluster, node: ClusterNode) -> tuple[str, str]:
    """A queue of that node, and one of another."""
    other = next(it for it in own_cluster.nodes if it is not node)
    return own_cluster.key_of(node, "queue"), own_cluster.key_of(other, "queue")


@pytest.fixture
def scrape(own_cluster: Cluster, ledger_url: str) -> Iterator[Scrape]:
    with publisher(own_cluster.url(), ledger_url) as app:
        source = Source(app)
        yield Scrape(source.read)
        source.close()


def break_it(node: ClusterNode, how: str) -> None:
    if how == "hangs":
        node.suspend()
    else:
        node.kill()


@pytest.mark.parametrize("how", ["hangs", "is killed"])
def test_its_queues_are_left_out(
    how: str, own_cluster: Cluster, node: ClusterNode, queues: tuple[str, str], scrape: Scrape
) -> None:
    with ClusterServer(own_cluster).client() as client:
        client.delete(*queues)
        for queue in queues:
            client.lpush(queue, "message")
            client.zadd("delayq:queues", {queue: FAR})
    lost, kept = queues
    assert scrape().get("delayq_ready_messages", lost) == 1
    break_it(node, how)
    for _ in range(2):
        began = time.monotonic()
        found = scrape()
        assert time.monotonic() - began < 5
        assert found.get("delayq_ready_messages", lost) is None
        assert found.get("delayq_ready_messages", kept) == 1
        assert found.get("delayq_node_up", None, node=f"127.0.0.1:{node.port}") == 0
        up = [labels for labels in found.named("delayq_node_up") if found.get("delayq_node_up", None, **labels) == 1]
        assert len(up) == 2


def test_what_was_counted_for_it_is_kept(own_cluster: Cluster, node: ClusterNode, queues: tuple[str, str]) -> None:
    """Its own loop adds it; those of the other nodes do not wait for it."""
    recorder = Recorder()
    flusher = Flusher(recorder)
    lost, kept = queues
    for queue in queues:
        recorder.add(queue, "x")
    node.kill()
    with ClusterServer(own_cluster).client() as client:
        assert own_cluster.owner(kept) is not node
        flusher.flush(client, lambda name: name == kept)
        assert recorder.pending() == {lost: {"x": 1}}
        recorder.add(kept, "x")
        flusher.flush_everywhere(client)
        assert recorder.pending() == {lost: {"x": 1}}
        node.restart()
        own_cluster.wait_until_ok()
        flusher.flush_everywhere(client)
        assert client.hget(f"delayq:metrics:{{{lost}}}", "x") == b"1"
        assert client.hget(f"delayq:metrics:{{{kept}}}", "x") == b"2"

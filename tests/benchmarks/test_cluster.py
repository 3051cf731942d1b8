"""What is counted on a cluster is what clients send, and where; copies reach their queue on its node."""

from __future__ import annotations

import pytest

from examples.private_redis import PrivateRedis
from tests.benchmarks import cluster
from tests.benchmarks.cluster import QUEUES, watched
from tests.benchmarks.copies import Copier
from tests.benchmarks.shop import make_app
from tests.redis_cluster import servers
from tests.redis_cluster.servers import Cluster


@pytest.fixture(scope="module")
def nodes() -> Cluster:
    with servers.cluster(3, settings=("--cluster-node-timeout", "15000")) as started:
        yield started


def test_only_what_clients_send_while_it_is_watched_counts() -> None:
    with PrivateRedis() as one, PrivateRedis() as other, one.client() as first, other.client() as second:
        first.set("before", 1)
        with watched([first, second]) as sent:
            first.eval("redis.call('SET', 'a', 1) redis.call('GET', 'a')", 0)
            second.lpush("list", "x")
            second.pubsub_numpat()
        second.set("after", 1)
        assert [dict(counter) for counter in sent.nodes] == [{"EVAL": 1}, {"LPUSH": 1, "PUBSUB NUMPAT": 1}]
        assert (sent.count(), sent.total["LPUSH"]) == (3, 1)
        assert sent.seconds > 0


def test_the_queues_are_on_all_nodes(nodes: Cluster) -> None:
    one, three, all_of_them = cluster.spread_over_nodes(QUEUES, nodes.owner)
    assert (len(one), len(three), len(all_of_them)) == (1, 3, 12)
    assert {nodes.owner(queue).port for queue in three} == {node.port for node in nodes.masters()}


def test_copies_are_released_into_their_queue(nodes: Cluster) -> None:
    app = make_app(nodes.url())
    for queue in QUEUES[:3]:
        client = nodes.owner(queue).client
        copier = Copier(app, client, "empty", queue)
        copier.prepare(range(5))
        assert client.llen(queue) == 0
        copier.release()
        assert client.llen(queue) == 5
        client.delete(queue)
    app.close()


def test_all_that_is_due_is_moved(nodes: Cluster) -> None:
    with cluster.routed(nodes) as client:
        wall, server = cluster.move_due(nodes, client, QUEUES[:3], 300)
        assert wall > 0
        assert server > 0
        assert not any(client.exists(queue, f"redisson_delay_queue_timeout:{{{queue}}}") for queue in QUEUES[:3])

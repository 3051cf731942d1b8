"""In which order messages come from several nodes: they are asked in turn, whatever the order of the queues."""

from __future__ import annotations

from collections import Counter

import pytest

from celery_delayq.fetching.wire import Wire
from tests.brokers import ClusterServer
from tests.fetching.reading import publish, reader, with_options
from tests.redis_cluster.servers import Cluster


@pytest.mark.parametrize("prefetch", [1, 4, 0])
@pytest.mark.parametrize("strategy", ["round_robin", "priority", "sorted"])
def test_no_queue_starves_beside_those_of_other_nodes(cluster: Cluster, strategy: str, prefetch: int) -> None:
    queues = [cluster.key_of(node, prefix="queue") for node in cluster.nodes]
    with with_options(ClusterServer(cluster), queue_order_strategy=strategy) as ours:
        for queue in queues:
            publish(ours, queue, *[queue] * 150)
        with reader(ours, *queues, prefetch=prefetch) as it:
            received = Counter(it.drain(450, timeout=30)[:300])
    assert set(received) == set(queues)
    assert min(received.values()) >= 50, received


def test_a_node_whose_answer_was_late_once_is_asked_beside_the_others(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = [cluster.key_of(node, prefix="queue") for node in cluster.nodes]
    has_reply, late = Wire.has_reply, []

    def once_late(wire: Wire, wait_s: float) -> bool:
        if not late:
            late.append(wire)
            return False
        return has_reply(wire, wait_s)

    with with_options(ClusterServer(cluster)) as ours:
        for queue in queues:
            publish(ours, queue, *[queue] * 50)
        monkeypatch.setattr(Wire, "has_reply", once_late)
        with reader(ours, *queues, prefetch=1) as it:
            assert set(it.drain(150, timeout=30)[:90]) == set(queues)
    assert late


@pytest.mark.parametrize("prefetch", [1, 4])
def test_queues_of_one_node_are_in_order(cluster: Cluster, prefetch: int) -> None:
    node = cluster.nodes[0]
    first, then = cluster.key_of(node, prefix="first"), cluster.key_of(node, prefix="then")
    with with_options(ClusterServer(cluster), queue_order_strategy="priority") as ours:
        publish(ours, then, *["then"] * 20)
        publish(ours, first, *["first"] * 20)
        with reader(ours, first, then, prefetch=prefetch) as it:
            assert it.drain(40) == ["first"] * 20 + ["then"] * 20

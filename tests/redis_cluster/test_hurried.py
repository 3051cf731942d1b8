"""A hurried client waits for no node that hangs, and uses it again as soon as it answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import redis
from redis import exceptions

from celery_delayq.cluster import hanging
from celery_delayq.cluster.client import Routed
from celery_delayq.cluster.node import Address
from celery_delayq.cluster.topology import Topology
from celery_delayq.queue.registry import Registry
from celery_delayq.transport.nodes import Nodes
from tests.redis_cluster import servers
from tests.redis_cluster.routing import addresses_of, half_moved, pool_for
from tests.redis_cluster.servers import Cluster, ClusterNode

KEY = "shop"


@pytest.fixture
def node(cluster: Cluster) -> Iterator[ClusterNode]:
    """The node of the key."""
    node = cluster.owner(KEY)
    yield node
    node.resume()
    hanging.answers(address_of(node))


def address_of(node: ClusterNode) -> Address:
    return Address("127.0.0.1", node.port)


def let_time_pass(node: ClusterNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a node hang whose time is over."""
    with monkeypatch.context() as patched:
        patched.setattr(hanging, "FOR_S", 0.0)
        hanging.hangs(address_of(node))


@pytest.fixture
def hurried(topology: Topology) -> Routed:
    client = Routed(topology, is_hurried=True)
    client.set(KEY, 1)
    return client


def test_nobody_asks_a_node_that_hangs(node: ClusterNode, hurried: Routed) -> None:
    node.suspend()
    with pytest.raises(redis.TimeoutError):
        hurried.get(KEY)
    with pytest.raises(redis.ConnectionError, match="does not answer"):
        hurried.get(KEY)


def test_everybody_asks_it_again_once_it_has_answered(
    node: ClusterNode, hurried: Routed, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.suspend()
    with pytest.raises(redis.TimeoutError):
        hurried.get(KEY)
    node.resume()
    let_time_pass(node, monkeypatch)
    assert [hurried.get(KEY) for _ in range(3)] == [b"1"] * 3


def test_a_pipeline_asks_it_again_as_a_whole(
    node: ClusterNode, hurried: Routed, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_time_pass(node, monkeypatch)
    with hurried.pipeline(transaction=False) as pipe:
        assert pipe.get(KEY).get(KEY).exists(KEY).execute() == [b"1", b"1", 1]


def test_everybody_asks_it_again_once_it_has_executed_a_transaction(
    node: ClusterNode, hurried: Routed, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_time_pass(node, monkeypatch)
    with hurried.pipeline() as pipe:
        assert pipe.get(KEY).execute() == [b"1"]
    assert hurried.get(KEY) == b"1"


def test_a_node_that_refuses_connections_does_not_hang() -> None:
    """Asking it costs nothing, so whoever asks again when it is back gets an answer."""
    with servers.cluster() as own:
        node = own.owner(KEY)
        with closing(Topology(addresses_of(own), pool_for)) as topology:
            hurried = Routed(topology, is_hurried=True)
            hurried.ping()
            node.kill()
            with pytest.raises(redis.ConnectionError):
                hurried.get(KEY)
            node.restart()
            own.wait_until_ok()
            assert hurried.get(KEY) is None


def test_its_patience_can_be_chosen(topology: Topology) -> None:
    patient = Routed(topology).hurried(hurry_s=2)
    clients = (Routed(topology), Routed(topology).hurried(), patient, patient.hurried())
    pools = [client.router.node_for(None).client.connection_pool for client in clients]
    assert [pool.connection_kwargs["socket_timeout"] for pool in pools] == [30, 0.5, 2, 2]


def test_it_waits_no_longer_for_a_slot(cluster: Cluster, hurried: Routed) -> None:
    keys = [f"{{{KEY}}}{number}" for number in range(10)]
    with half_moved(cluster, KEY), pytest.raises(exceptions.TryAgainError, match=r"did not serve slot \d+ for 0.5 s"):
        hurried.eval("return 1", len(keys), *keys)


def test_its_patience_for_a_slot_can_be_chosen(topology: Topology) -> None:
    client, at_once = Routed(topology), Routed(topology, deadline_s=0)
    clients = (client, client.hurried(), at_once.hurried(), Routed(topology).hurried(hurry_s=2))
    assert [client.router.patience_s for client in clients] == [30, 0.5, 0, 2]


def test_nobody_waits_for_the_slot_of_the_registry(topology: Topology) -> None:
    """One loop reads it with a lock, for which the loops of all nodes wait."""
    registry: Any = Nodes(topology, lambda: None).registry("")
    assert registry.client.router.patience_s == 0
    waiting: Any = Registry(Routed(topology))
    assert waiting.client.router.patience_s == 0.5


def test_its_errors_name_the_node(node: ClusterNode, hurried: Routed) -> None:
    node.suspend()
    with pytest.raises(redis.TimeoutError, match=f"Redis node {node.address}"), hurried.pipeline() as pipe:
        pipe.get(KEY).execute()

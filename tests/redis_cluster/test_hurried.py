"""A hurried client waits for no node that hangs, and uses it again as soon as it answers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

import pytest
import redis

from celery_delayq.cluster import hanging
from celery_delayq.cluster.client import Routed
from celery_delayq.cluster.topology import Address, Topology
from tests.redis_cluster import servers
from tests.redis_cluster.routing import addresses_of, pool_for
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
    monkeypatch.setitem(hanging._until, address_of(node), time.monotonic())  # the time is over
    assert [hurried.get(KEY) for _ in range(3)] == [b"1"] * 3


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
    patient = Routed(topology, is_hurried=True, hurry_s=2)
    clients = (Routed(topology), Routed(topology).hurried(), patient, patient.hurried(), patient.client())
    pools = [client.router.node_for(None).client.connection_pool for client in clients]
    assert [pool.connection_kwargs["socket_timeout"] for pool in pools] == [30, 0.5, 2, 2, 2]


def test_its_errors_name_the_node(node: ClusterNode, hurried: Routed) -> None:
    node.suspend()
    with pytest.raises(redis.TimeoutError, match=f"Redis node {node.address}"), hurried.pipeline() as pipe:
        pipe.get(KEY).execute()

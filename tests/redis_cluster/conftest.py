"""A Redis Cluster for the tests: always a private one, on which everything may be deleted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from celery_delayq.cluster.client import Routed
from celery_delayq.cluster.topology import Topology
from examples.private_redis import PrivateRedis
from tests.ledger import Ledger
from tests.redis_cluster.routing import addresses_of, pool_for
from tests.redis_cluster.servers import Cluster


@pytest.fixture
def cluster(whole_cluster: Cluster) -> Cluster:
    """The session's cluster, which is empty at first. A test may move slots, but stop no server."""
    whole_cluster.flush()
    whole_cluster.put_slots_back()
    whole_cluster.reset_counts()
    return whole_cluster


@pytest.fixture
def topology(cluster: Cluster) -> Iterator[Topology]:
    with closing(Topology(addresses_of(cluster)[:1], pool_for)) as topology:
        yield topology


@pytest.fixture
def routed(topology: Topology) -> Routed:
    return Routed(topology)


@pytest.fixture
def keys(cluster: Cluster) -> list[str]:
    """A key for each node."""
    return [cluster.key_of(node) for node in cluster.nodes]


@pytest.fixture
def ledger(redis_server: PrivateRedis) -> Iterator[Ledger]:
    """An empty ledger."""
    ledger = Ledger(f"redis://127.0.0.1:{redis_server.port}/9")
    ledger.clear()
    yield ledger
    ledger.client.close()

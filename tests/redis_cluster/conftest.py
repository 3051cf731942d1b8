"""A Redis Cluster for the tests: always a private one, on which everything may be deleted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from examples.private_redis import ServerNotFound, find_server
from tests.redis_cluster import servers
from tests.redis_cluster.servers import Cluster
from tests.support import without_server


@pytest.fixture(scope="session")
def whole_cluster() -> Iterator[Cluster]:
    """Three masters without replicas: each process of pytest-xdist has its own cluster.

    Its nodes are patient: none is taken for dead because the machine is busy.
    """
    try:
        server = find_server()
    except ServerNotFound as error:
        without_server(str(error))
    with servers.cluster(server=server, settings=("--cluster-node-timeout", "15000")) as cluster:
        yield cluster


@pytest.fixture
def cluster(whole_cluster: Cluster) -> Cluster:
    """The session's cluster, which is empty at first. A test may move slots, but stop no server."""
    whole_cluster.flush()
    whole_cluster.put_slots_back()
    return whole_cluster

"""A Redis Cluster for the tests: always a private one, on which everything may be deleted."""

from __future__ import annotations

import pytest

from tests.redis_cluster.servers import Cluster


@pytest.fixture
def cluster(whole_cluster: Cluster) -> Cluster:
    """The session's cluster, which is empty at first. A test may move slots, but stop no server."""
    whole_cluster.flush()
    whole_cluster.put_slots_back()
    return whole_cluster

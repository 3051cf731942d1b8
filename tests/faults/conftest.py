"""The ledger of the integration tests, and a broker per test: each of them breaks it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from examples.private_redis import PrivateRedis, ServerNotFound, find_server
from tests.brokers import ClusterServer, Server, emptied, url_of
from tests.integration.conftest import ledger, ledger_url
from tests.redis_cluster import servers as cluster_servers
from tests.support import missing

__all__ = [
    "broker",
    "broker_url",
    "durable_cluster",
    "ledger",
    "ledger_url",
    "nothing_astray",
    "replicas",
    "steady_broker",
]

#: A node that does not answer for so long is dead to the others, and its replica takes over.
_NODE_TIMEOUT_S = 3.0


@pytest.fixture
def replicas() -> int:
    """How many replicas each master of a cluster has."""
    return 0


@pytest.fixture
def durable_cluster(replicas: int) -> Iterator[ClusterServer]:
    """Three masters that forget nothing when they are killed."""
    try:
        server = find_server()
    except ServerNotFound as error:
        missing(str(error))
    durable = ("--appendonly", "yes", "--appendfsync", "always")
    timeout = ("--cluster-node-timeout", str(round(_NODE_TIMEOUT_S * 1000)))
    with cluster_servers.cluster(replicas=replicas, server=server, settings=(*durable, *timeout)) as cluster:
        yield ClusterServer(cluster)


@pytest.fixture
def broker(broker_kind: str, request: pytest.FixtureRequest) -> Server:
    """A broker that forgets nothing when it is killed."""
    found: Server = request.getfixturevalue("durable_cluster" if broker_kind == "cluster" else "durable_server")
    return found


@pytest.fixture
def steady_broker(broker_kind: str, request: pytest.FixtureRequest) -> Server:
    """A broker for tests that do nothing to it."""
    if broker_kind == "cluster":
        return emptied(request.getfixturevalue("whole_cluster"))
    found: PrivateRedis = request.getfixturevalue("durable_server")
    return found


@pytest.fixture
def broker_url(broker: Server) -> str:
    """Its URL, for our transport."""
    return url_of(broker)


@pytest.fixture(autouse=True)
def nothing_astray() -> None:
    """Do not look for commands that go astray: slots move here, and nodes are replaced."""

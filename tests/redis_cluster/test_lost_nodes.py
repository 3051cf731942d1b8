"""A command is sent again only if its node has not executed it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any

import pytest
import redis
from redis import exceptions

from celery_delayq.cluster import topology as topology_module
from celery_delayq.cluster.client import Routed
from celery_delayq.cluster.node import Address
from celery_delayq.cluster.topology import Topology
from tests.redis_cluster import servers
from tests.redis_cluster.routing import addresses_of, calls, pool_for
from tests.redis_cluster.servers import Cluster, slot_of
from tests.soak.proxy import Proxy
from tests.support import wait_until


@pytest.fixture
def proxies(cluster: Cluster) -> Iterator[list[Proxy]]:
    """A proxy for each node."""
    proxies = [Proxy(node.port) for node in cluster.nodes]
    yield proxies
    for proxy in proxies:
        proxy.close()


@pytest.fixture
def through(cluster: Cluster, proxies: list[Proxy]) -> Iterator[Routed]:
    """A client whose connections go through the proxies. It knows the nodes."""
    ports = {node.port: proxy.port for node, proxy in zip(cluster.nodes, proxies, strict=True)}
    connect: Callable[[Address], Any] = lambda address: pool_for(Address(address.host, ports[address.port]))  # noqa: E731
    with closing(Topology(addresses_of(cluster), connect)) as topology:
        topology.refresh()
        yield Routed(topology)


class TestLostConnections:
    def test_a_command_is_not_sent_again(
        self, through: Routed, proxies: list[Proxy], cluster: Cluster, keys: list[str]
    ) -> None:
        through.set(keys[0], 0)
        cluster.reset_counts()
        proxies[0].drop_replies()
        with pytest.raises(redis.ConnectionError):
            through.incr(keys[0])
        with pytest.raises(redis.ConnectionError):  # there is not even a connection
            through.incr(keys[0])
        assert through.incr(keys[1]) == 1
        assert through.ping()
        proxies[0].drop_replies(False)
        assert through.get(keys[0]) == b"1"
        assert calls(cluster, "incrby") == [1, 1, 0]

    @pytest.mark.parametrize("transaction", [False, True])
    def test_nor_is_a_pipeline(self, transaction: bool, through: Routed, proxies: list[Proxy], keys: list[str]) -> None:
        through.set(keys[0], 0)
        with through.pipeline(transaction=transaction) as pipe:
            pipe.incr(keys[0]).incr(keys[0])
            proxies[0].drop_replies()
            with pytest.raises(redis.ConnectionError):
                pipe.execute()
        proxies[0].drop_replies(False)
        assert through.get(keys[0]) == b"2"

    def test_other_nodes_of_a_pipeline_answer(self, through: Routed, proxies: list[Proxy], keys: list[str]) -> None:
        through.mget(*keys)
        proxies[0].drop_replies()
        with through.pipeline(transaction=False) as pipe:
            pipe.incr(keys[0]).incr(keys[1]).incr(keys[0]).incr(keys[2]).execute_command("WAIT", 0, 100)
            lost, one, also_lost, two, waited = pipe.execute(raise_on_error=False)
        assert (one, two, waited) == (1, 1, 0)
        assert isinstance(lost, redis.ConnectionError)
        assert isinstance(also_lost, redis.ConnectionError)

    @pytest.mark.parametrize("kind", ["single", "pipeline", "transaction"])
    def test_a_refused_connection_leads_to_the_next_owner(
        self,
        kind: str,
        through: Routed,
        proxies: list[Proxy],
        cluster: Cluster,
        keys: list[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(topology_module, "REFRESH_PAUSE_S", 0)
        cluster.move(slot_of(keys[0]), cluster.nodes[1])
        proxies[0].refuse()
        if kind == "single":
            assert through.incr(keys[0]) == 1
            return
        with through.pipeline(transaction=kind == "transaction") as pipe:
            assert pipe.incr(keys[0]).incr(keys[0]).execute() == [1, 2]

    def test_a_refused_connection_without_another_owner(
        self, through: Routed, proxies: list[Proxy], keys: list[str]
    ) -> None:
        through.ping()
        proxies[0].refuse()
        with pytest.raises(redis.ConnectionError, match="refused"):
            through.incr(keys[0])
        with through.pipeline(transaction=False) as pipe:
            lost, done = pipe.incr(keys[0]).incr(keys[1]).execute(raise_on_error=False)
        assert isinstance(lost, redis.ConnectionError)
        assert done == 1
        with through.pipeline(transaction=False) as pipe:
            lost, waited = pipe.incr(keys[0]).execute_command("WAIT", 0, 100).execute(raise_on_error=False)
        assert isinstance(lost, redis.ConnectionError)
        assert waited == 0
        assert through.ping()  # at another home
        assert through.script_load("return 1")

    def test_a_refused_home_is_replaced_before_anything_is_sent(self, through: Routed, proxies: list[Proxy]) -> None:
        by_port = {proxy.port: proxy for proxy in proxies}
        by_port[through.connection_pool.connection_kwargs["port"]].refuse()
        assert through.ping()

    def test_a_full_pool_says_nothing_about_the_node(self, cluster: Cluster) -> None:
        def connect(address: Address) -> redis.ConnectionPool:
            return redis.ConnectionPool(host=address.host, port=address.port, max_connections=1)

        with closing(Topology(addresses_of(cluster), connect)) as topology:
            home = topology.home()
            with closing(Routed(topology).pubsub()) as pubsub:
                pubsub.subscribe("news")
                with pytest.raises(redis.ConnectionError, match=r"Too many|Max"):
                    Routed(topology).ping()
            assert topology.home() is home
            assert Routed(topology).ping()


def test_a_node_dies_and_its_replica_takes_over() -> None:
    with (
        servers.cluster(replicas=1) as cluster,
        closing(Topology(addresses_of(cluster)[:3], pool_for)) as topology,
    ):
        routed = Routed(topology)
        keys = [cluster.key_of(node) for node in cluster.nodes[:3]]
        with routed.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.set(key, 1)
            pipe.execute_command("WAIT", 1, 5000)
            assert pipe.execute() == [True, True, True, 1]
        cluster.nodes[0].kill()
        with pytest.raises(redis.ConnectionError):
            routed.incr(keys[0])
        assert [routed.incr(key) for key in keys[1:]] == [2, 2]
        assert routed.ping()

        def works() -> bool:
            with suppress(redis.ConnectionError, exceptions.ClusterDownError):
                return bool(routed.get(keys[0]))
            return False

        wait_until(works, "the replica serves the key")
        assert routed.incr(keys[0]) == 2
        assert Address("127.0.0.1", cluster.nodes[0].port) not in [node.address for node in topology.masters()]

"""The topology knows which node serves which slot, and learns of changes."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
import redis
from redis import exceptions

from celery_delayq.basics.errors import ConfigurationError
from celery_delayq.cluster import topology as topology_module
from celery_delayq.cluster.client import Routed
from celery_delayq.cluster.node import Address
from celery_delayq.cluster.topology import Topology
from examples.private_redis import PrivateRedis
from tests.redis_cluster.routing import addresses_of, know_only_slot_0, other_than, pool_for
from tests.redis_cluster.servers import Cluster, slot_of
from tests.support import wait_until


class TestTopology:
    def test_asks_nobody_before_it_is_used(self) -> None:
        topology = Topology([Address("nowhere.invalid", 1)], pool_for)
        client = Routed(topology)
        assert topology.version == 0
        assert client.connection_pool.connection_kwargs["host"] == "nowhere.invalid"
        assert not topology.serves(Address("nowhere.invalid", 1), "key")

    def test_knows_who_serves_what(self, topology: Topology, cluster: Cluster, keys: list[str]) -> None:
        assert [node.address for node in topology.masters()] == sorted(addresses_of(cluster))
        assert topology.version == 1
        for key, address, server in zip(keys, addresses_of(cluster), cluster.nodes, strict=True):
            node = topology.node_of(slot_of(key))
            assert (node.address, node.id) == (address, server.id)
            assert topology.address_of(key) == address
            assert [topology.serves(other, key) for other in addresses_of(cluster)].count(True) == 1

    def test_a_change_makes_a_new_version_and_keeps_connections(self, topology: Topology, cluster: Cluster) -> None:
        source = cluster.owner("shop")
        nodes = topology.masters()
        cluster.move(slot_of("shop"), other_than(cluster, source))
        wait_until(lambda: topology.refresh() or topology.version == 2, "the move is seen")
        topology.refresh_if_older(0)
        assert topology.version == 2
        assert topology.masters() == nodes
        assert topology.address_of("shop") != Address("127.0.0.1", source.port)

    def test_many_threads_share_one_question(
        self, topology: Topology, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(topology_module, "REFRESH_PAUSE_S", 60)
        cluster.reset_counts()
        with ThreadPoolExecutor(10) as threads:
            list(threads.map(lambda _: topology.refresh(), range(10)))
        assert cluster.counts().get("cluster|slots", cluster.counts().get("cluster")) == 1

    def test_a_clone_knows_the_same(self, topology: Topology, cluster: Cluster) -> None:
        topology.refresh()
        cluster.reset_counts()
        with closing(topology.clone()) as clone:
            assert [node.address for node in clone.masters()] == sorted(addresses_of(cluster))
            assert clone.masters() != topology.masters()  # its own connections
        assert not cluster.counts().keys() & {"cluster", "cluster|slots"}

    def test_the_home_node_stays_until_it_fails(self, topology: Topology) -> None:
        home = topology.home()
        topology.failed(next(node.address for node in topology.masters() if node is not home))
        assert topology.home() is home
        topology.failed(home.address)
        second = topology.home()
        assert second is not home
        topology.refresh()
        assert topology.home() is second
        for node in topology.masters():
            topology.failed(node.address)
        assert topology.home() in topology.masters()

    @pytest.mark.parametrize("host", ["", None, b"asked"])
    def test_an_unnamed_host_is_the_one_that_was_asked(self, host: Any) -> None:
        found = [[0, 5, [host, 7000, b"id"]], [6, 9, [b"?", 7001, b"other"], [b"replica", 1, b"x"]]]
        ranges = list(topology_module.slot_ranges(found, Address("asked", 1)))
        assert ranges == [(0, 5, Address("asked", 7000), "id")]

    def test_a_slot_without_a_node(self, topology: Topology) -> None:
        topology.refresh()
        know_only_slot_0(topology)
        assert topology.node_of(0)
        with pytest.raises(exceptions.ClusterDownError, match="no node serves slot 7"):
            topology.node_of(7)
        with pytest.raises(exceptions.ClusterDownError, match="no node serves slot"):
            Routed(topology, deadline_s=0).at("shop")

    def test_a_server_that_is_not_in_a_cluster(self, redis_server: PrivateRedis) -> None:
        with (
            closing(Topology([Address("127.0.0.1", redis_server.port)], pool_for)) as topology,
            pytest.raises(ConfigurationError, match="delayq://"),
        ):
            Routed(topology).ping()

    def test_all_seeds_are_away(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
            seeds = [Address("127.0.0.1", server.getsockname()[1]) for server in (one, two)]
        with closing(Topology(seeds, pool_for)) as topology:
            for _ in range(2):  # the second time nobody is asked
                with pytest.raises(redis.ConnectionError, match=f"{seeds[0]}, {seeds[1]}: .*refused"):
                    Routed(topology).get("key")

    def test_one_seed_is_enough(self, cluster: Cluster) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            away = Address("127.0.0.1", server.getsockname()[1])
        with closing(Topology([away, *addresses_of(cluster)[2:]], pool_for)) as topology:
            assert len(topology.masters()) == 3

"""Each command goes to the node of its keys."""

from __future__ import annotations

import os
import threading
import warnings
from contextlib import closing
from typing import Any

import pytest
import redis
from redis import exceptions
from redis.client import NEVER_DECODE

from celery_delayq.cluster.client import Routed, own_connections
from celery_delayq.cluster.node import Address
from celery_delayq.cluster.topology import Topology
from tests.redis_cluster.routing import ADD, addresses_of, calls, errors_at, pool_for
from tests.redis_cluster.servers import Cluster
from tests.support import wait_until


class TestRouting:
    def test_a_command_goes_to_the_node_of_its_key(self, routed: Routed, cluster: Cluster, keys: list[str]) -> None:
        routed.ping()
        cluster.reset_counts()
        for number, key in enumerate(keys):
            routed.set(key, number)
            assert routed.get(key) == str(number).encode()
            assert routed.node_of(key).client.get(key) == str(number).encode()
        assert calls(cluster, "get") == [2, 2, 2]
        assert [errors_at(node, "MOVED") for node in cluster.nodes] == [0, 0, 0]

    def test_replies_are_those_of_a_plain_client(self, routed: Routed) -> None:
        routed.zadd("z", {"a": 1, "b": 2})
        routed.hset("h", "field", "value")
        routed.sadd("s", "a")
        assert routed.zrange("z", 0, -1, withscores=True) == routed.node_of("z").client.zrange(
            "z", 0, -1, withscores=True
        )
        assert routed.hgetall("h") == {b"field": b"value"}
        assert routed.smembers("s") == {b"a"}
        assert routed.set("a", 1, nx=True) is True
        assert routed.brpop(["l", "{l}2"], timeout=0.01) is None  # type: ignore[arg-type]
        assert routed.execute_command("HGET", "h", "field", **{NEVER_DECODE: True}) == b"value"
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            routed.get("z")

    def test_scripts(self, routed: Routed, cluster: Cluster, keys: list[str]) -> None:
        sha = routed.script_load(ADD)
        for key in keys:
            assert routed.evalsha(sha, 2, key, f"{{{key}}}2") == 1
            assert routed.eval(ADD, 2, key, f"{{{key}}}2") == 2
        assert calls(cluster, "script|load") == [1, 1, 1] or calls(cluster, "script") == [1, 1, 1]
        assert routed.eval("return 5", 0) == 5
        for node in routed.masters():
            node.client.script_flush()
        with pytest.raises(exceptions.NoScriptError):
            routed.evalsha(sha, 2, keys[0], keys[0])
        assert routed.register_script(ADD)(keys=[keys[0], keys[0]]) == 3

    def test_commands_without_a_key_go_to_the_home_node(self, routed: Routed, topology: Topology) -> None:
        port = topology.home().address.port
        assert routed.info("server")["tcp_port"] == port
        assert routed.ping() is True
        assert len(routed.time()) == 2
        assert routed.config_get("port") == {"port": str(port)}
        assert routed.connection_pool is topology.home().client.connection_pool
        with closing(routed.pubsub(ignore_subscribe_messages=True)) as pubsub:
            pubsub.subscribe("news")
            wait_until(lambda: routed.pubsub_numsub("news") == [(b"news", 1)], "it is subscribed")
            assert routed.publish("news", "x") == 1
            message = wait_until(lambda: pubsub.get_message(timeout=1), "it is received")
            assert message["data"] == b"x"

    def test_another_home(self, routed: Routed, topology: Topology, keys: list[str]) -> None:
        for key, node in ((key, routed.node_of(key)) for key in keys):
            for client in (routed.at(key), routed.with_home(node), Routed(topology, home=node.address)):
                assert client.info("server")["tcp_port"] == node.address.port
                assert client.connection_pool is node.client.connection_pool
                assert client.set(keys[0], 1)  # others still have their keys

    def test_keys_of_several_nodes(self, routed: Routed, cluster: Cluster, keys: list[str]) -> None:
        several = [*keys, *(f"{{{key}}}2" for key in keys)]
        for number, key in enumerate(several):
            routed.set(key, number)
        assert routed.mget([*several, "none"]) == [*(str(number).encode() for number in range(6)), None]
        assert set(routed.scan_iter(count=1)) == {key.encode() for key in several}
        assert list(routed.scan_iter(match=keys[0])) == [keys[0].encode()]

    @pytest.mark.parametrize(
        "command", [("EVAL", ADD, 2, "a", "b"), ("DEL", "a", "b"), ("BLMOVE", "a", "b", "LEFT", "LEFT", 0)]
    )
    def test_keys_of_several_slots_are_refused(self, command: tuple[Any, ...], routed: Routed) -> None:
        with pytest.raises(exceptions.ClusterCrossSlotError):
            routed.execute_command(*command)

    def test_own_connections(self, routed: Routed, topology: Topology, keys: list[str]) -> None:
        node = routed.node_of(keys[1])
        with own_connections(topology, node.address) as own:
            assert own.connection_pool is not node.client.connection_pool
            assert own.info("server")["tcp_port"] == node.address.port
            for key in keys:
                assert own.set(key, 1)

    def test_closing_a_client_leaves_the_topology(self, topology: Topology, keys: list[str]) -> None:
        with Routed(topology) as client:
            number = client.at(keys[0]).client_id()
        del client
        assert Routed(topology).at(keys[0]).client_id() == number

    def test_a_forked_child_has_its_own_connections_and_locks(
        self, routed: Routed, cluster: Cluster, keys: list[str]
    ) -> None:
        routed.set(keys[0], 1)
        parent, has_begun, may_go_on = os.getpid(), threading.Event(), threading.Event()

        def connect(address: Address) -> redis.ConnectionPool:
            if os.getpid() == parent:
                has_begun.set()
                may_go_on.wait(60)
            return pool_for(address)

        with closing(Topology(addresses_of(cluster), connect)) as busy, warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # there are other threads
            asking = threading.Thread(target=busy.refresh)
            asking.start()
            try:
                assert has_begun.wait(20)  # it has the locks now
                child = os.fork()
                if not child:
                    done = threading.Event()
                    worker = threading.Thread(
                        target=lambda: (busy.refresh(), Routed(busy).incr(keys[0]), routed.incr(keys[0]), done.set()),
                        daemon=True,
                    )
                    worker.start()
                    os._exit(0 if done.wait(20) else 1)
                assert os.waitpid(child, 0)[1] == 0
            finally:
                may_go_on.set()
                asking.join(20)
        assert routed.get(keys[0]) == b"3"

    def test_a_connection_that_ended_while_idle_is_replaced(self, routed: Routed, cluster: Cluster) -> None:
        routed.set("shop", 1)
        server = cluster.owner("shop").client
        server.client_kill_filter(_id=routed.at("shop").client_id())
        assert routed.incr("shop") == 2

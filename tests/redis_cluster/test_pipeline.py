"""The commands of a pipeline go to the nodes of their keys; those of a transaction to one node."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from redis import exceptions

from celery_delayq.cluster.client import Routed
from tests.redis_cluster.routing import ADD, calls, other_than
from tests.redis_cluster.servers import Cluster, slot_of


class TestPipeline:
    def test_one_round_trip_to_each_node(self, routed: Routed, cluster: Cluster, keys: list[str]) -> None:
        with routed.pipeline(transaction=False) as pipe:
            for number in range(30):
                pipe.rpush(keys[number % 3], number)
            pipe.mget(keys[0], "none").exists(*keys, "none").hgetall("hash").publish("news", "x")
            pipe.eval("return 1", 2, "a", "b")
            *pushed, mget, exists, hgetall, published, refused = pipe.execute(raise_on_error=False)
        assert pushed == [number // 3 + 1 for number in range(30)]
        assert (exists, hgetall, published) == (3, {}, 0)
        assert mget == [None, None]  # no string
        assert isinstance(refused, exceptions.ClusterCrossSlotError)
        assert routed.lrange(keys[1], 0, -1) == [b"%d" % number for number in range(1, 30, 3)]

    def test_the_first_error_is_raised_after_all(self, routed: Routed, keys: list[str]) -> None:
        with routed.pipeline(transaction=False) as pipe:
            pipe.set(keys[0], "x").incr(keys[0]).set(keys[1], "y")
            with pytest.raises(redis.ResponseError, match=r"Command # 2 .*not an integer"):
                pipe.execute()
            assert len(pipe) == 0
        assert routed.get(keys[1]) == b"y"

    def test_wait_goes_where_the_writes_went(self, routed: Routed, cluster: Cluster, keys: list[str]) -> None:
        routed.ping()
        cluster.reset_counts()
        with routed.pipeline(transaction=False) as pipe:
            pipe.set(keys[0], 1).set(keys[1], 1).execute_command("WAIT", 0, 100).set(keys[2], 1)
            assert pipe.execute() == [True, True, 0, True]
            assert calls(cluster, "wait") == [1, 1, 0]
            assert pipe.execute_command("WAIT", 0, 100).execute() == [0]
        assert sum(calls(cluster, "wait")) == 3

    def test_wait_follows_a_write_to_another_node(self, routed: Routed, cluster: Cluster) -> None:
        routed.ping()
        cluster.move(slot_of("shop"), target := other_than(cluster, cluster.owner("shop")))
        cluster.reset_counts()
        with routed.pipeline(transaction=False) as pipe:
            assert pipe.set("shop", 1).execute_command("WAIT", 0, 100).execute() == [True, 0]
        assert target.counts()["wait"] == 1

    def test_scripts_are_loaded_first(self, routed: Routed, cluster: Cluster, keys: list[str]) -> None:
        sha = routed.script_load(ADD)
        for _ in range(2):  # the second time, a slot has moved
            routed.script_flush()
            with routed.pipeline(transaction=False) as pipe:
                for key in keys[:2]:
                    pipe.evalsha(sha, 2, key, key)
                pipe.script_load(ADD)
                assert pipe.execute()[2] in (sha, sha.encode())
                assert pipe.script_load(ADD).execute() in ([sha], [sha.encode()])
            cluster.move(slot_of(keys[0]), cluster.nodes[2])
            routed.script_flush()
            with routed.pipeline(transaction=False) as pipe:
                pipe.script_load(ADD).evalsha(sha, 2, keys[0], keys[0])
                assert pipe.execute()[1] > 1
            cluster.put_slots_back()


class TestTransaction:
    def test_loads_its_scripts_at_its_own_node(self, routed: Routed, cluster: Cluster) -> None:
        add = routed.register_script(ADD)
        cluster.reset_counts()
        with routed.pipeline() as pipe:
            add(keys=["shop", "shop"], client=pipe)
            assert pipe.execute() == [1]
        names = ("script", "script|load")  # as Redis 6.2 counts it, and later versions
        loads = [sum(node.counts().get(name, 0) for name in names) for node in cluster.nodes]
        assert loads == [int(node is cluster.owner("shop")) for node in cluster.nodes]

    def test_of_one_slot(self, routed: Routed) -> None:
        with routed.pipeline() as pipe:
            pipe.zadd("{shop}z", {"a": 1}).zrange("{shop}z", 0, -1, withscores=True).publish("news", "x")
            _, found, _ = pipe.execute()
        assert found == routed.zrange("{shop}z", 0, -1, withscores=True)

    def test_of_several_slots_is_refused_here(self, routed: Routed, cluster: Cluster, keys: list[str]) -> None:
        with routed.pipeline() as pipe:
            pipe.llen(keys[0]).rpush(keys[1], 1)
            with pytest.raises(exceptions.ClusterCrossSlotError, match="LLEN, RPUSH: the keys"):
                pipe.execute()
        assert routed.dbsize() == 0

    def test_an_error_when_queueing(self, routed: Routed) -> None:
        with routed.pipeline() as pipe:
            pipe.set("shop", 1).execute_command("GET", "shop", "too much")
            with pytest.raises(redis.ResponseError, match="wrong number"):
                pipe.execute()
        assert routed.get("shop") is None

    def test_an_error_when_executing(self, routed: Routed) -> None:
        with routed.pipeline() as pipe:
            replies = pipe.set("shop", "x").incr("shop").set("{shop}2", 1).execute(raise_on_error=False)
        assert replies[::2] == [True, True]
        assert isinstance(replies[1], redis.ResponseError)

    def test_watching(self, routed: Routed) -> None:
        with routed.pipeline() as pipe:
            pipe.watch("shop")
            assert pipe.get("shop") is None
            pipe.multi()
            assert pipe.set("shop", 1).execute() == [True]
            pipe.watch("shop")
            routed.set("shop", 2)
            pipe.multi()
            pipe.set("shop", 3)
            with pytest.raises(redis.WatchError):
                pipe.execute()
            pipe.watch("shop")
            with pytest.raises(exceptions.ClusterCrossSlotError):
                pipe.get("other")
            pipe.unwatch()
        assert routed.get("shop") == b"2"

    def test_a_watched_slot_that_moves(self, routed: Routed, cluster: Cluster) -> None:
        turns = iter([1, 2])

        def change(pipe: Any) -> None:
            if next(turns) == 1:
                cluster.move(slot_of("shop"), other_than(cluster, cluster.owner("shop")))
            pipe.multi()
            pipe.incr("shop")

        routed.ping()
        assert routed.transaction(change, "shop") == [1]

    def test_a_watched_slot_that_moved(self, routed: Routed, cluster: Cluster) -> None:
        routed.ping()
        cluster.move(slot_of("shop"), other_than(cluster, cluster.owner("shop")))
        with routed.pipeline() as pipe:
            pipe.watch("shop")
            pipe.multi()
            assert pipe.incr("shop").execute() == [1]

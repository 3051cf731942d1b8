"""The commands of a pipeline go to the nodes of their keys; those of a transaction to one node."""

from __future__ import annotations

import pytest
import redis
from redis import exceptions

from celery_delayq.cluster.client import Routed
from tests.redis_cluster.routing import calls, other_than
from tests.redis_cluster.servers import Cluster, slot_of


class TestPipeline:
    def test_one_round_trip_to_each_node(self, routed: Routed, cluster: Cluster, keys: list[str]) -> None:
        with routed.pipeline(transaction=False) as pipe:
            for number in range(30):
                pipe.rpush(keys[number % 3], number)
            pipe.hgetall("hash").publish("news", "x").eval("return 1", 2, "a", "b")
            *pushed, hgetall, published, refused = pipe.execute(raise_on_error=False)
        assert pushed == [number // 3 + 1 for number in range(30)]
        assert (hgetall, published) == ({}, 0)
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
            pipe.set(keys[0], 1).set(keys[1], 1).execute_command("WAIT", 0, 100)
            assert pipe.execute() == [True, True, 0]
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


class TestTransaction:
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
        assert not list(routed.scan_iter())

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

    def test_nothing_is_watched(self, routed: Routed) -> None:
        with routed.pipeline() as pipe, pytest.raises(NotImplementedError, match="WATCH"):
            pipe.watch("shop")

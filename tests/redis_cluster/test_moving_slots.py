"""Commands follow a slot that moves, and wait while no node serves it whole."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from redis import exceptions

from celery_delayq.cluster import topology as topology_module
from celery_delayq.cluster.client import Routed
from celery_delayq.cluster.node import Address
from celery_delayq.cluster.topology import Topology
from tests.redis_cluster.routing import ADD, errors_at, half_moved, know_only_slot_0, other_than
from tests.redis_cluster.servers import Cluster, slot_of
from tests.support import wait_until


class TestMoved:
    def test_a_command_follows_its_slot(self, routed: Routed, topology: Topology, cluster: Cluster) -> None:
        routed.set("shop", 1)
        cluster.move(slot_of("shop"), target := other_than(cluster, cluster.owner("shop")))
        cluster.reset_counts()
        assert [routed.incr("shop"), routed.incr("shop")] == [2, 3]
        assert sum(errors_at(node, "MOVED") for node in cluster.nodes) == 1
        assert topology.version == 2
        assert topology.address_of("shop") == Address("127.0.0.1", target.port)

    def test_blocking_commands_scripts_pipelines_and_transactions_do(
        self, topology: Topology, cluster: Cluster
    ) -> None:
        stale = [Routed(topology.clone()) for _ in range(4)]
        for client in stale:
            client.ping()
        cluster.move(slot_of("shop"), other_than(cluster, cluster.owner("shop")))
        stale[0].lpush("{shop}l", 1)
        assert stale[1].brpop("{shop}l", timeout=1) == (b"{shop}l", b"1")  # type: ignore[arg-type]
        with stale[2].pipeline(transaction=False) as pipe:
            assert pipe.rpush("{shop}l", 1).rpush("{shop}l", 2).eval(ADD, 2, "{shop}a", "{shop}b").execute() == [
                1,
                2,
                1,
            ]
        with stale[3].pipeline() as pipe:
            assert pipe.llen("{shop}l").incr("{shop}a").execute() == [2, 2]
        for client in stale:
            client.topology.close()

    def test_a_blocked_command_is_sent_to_the_next_node(self, routed: Routed, cluster: Cluster) -> None:
        source = cluster.owner("shop")
        target = other_than(cluster, source)
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(routed.brpop, ["shop"], 20)
            wait_until(lambda: source.client.info("clients")["blocked_clients"], "it waits")
            cluster.move(slot_of("shop"), target)
            wait_until(lambda: target.client.info("clients")["blocked_clients"], "it waits there")
            target.client.lpush("shop", "x")
            assert waiting.result(20) == (b"shop", b"x")


class TestMoving:
    def test_single_keys_are_served(self, routed: Routed, cluster: Cluster) -> None:
        with half_moved(cluster, "shop") as (source, target):
            assert [routed.get(f"{{shop}}{number}") for number in range(10)] == [b"%d" % n for n in range(10)]
            assert errors_at(source, "ASK") == 5
            assert routed.hset("{shop}new", "a", "b") == 1
            assert routed.hgetall("{shop}new") == {b"a": b"b"}
            assert target.counts()["asking"] == 7
        assert routed.hgetall("{shop}new") == {b"a": b"b"}

    @pytest.mark.parametrize("kind", ["single", "pipeline", "transaction"])
    def test_several_keys_wait(self, kind: str, routed: Routed, cluster: Cluster) -> None:
        def pipeline(transaction: bool) -> Any:
            with routed.pipeline(transaction=transaction) as pipe:
                for number in range(9):
                    pipe.eval(ADD, 2, f"{{shop}}{number}", f"{{shop}}{number + 1}")
                return pipe.execute()[-1]

        commands: dict[str, Callable[[], Any]] = {
            "single": lambda: [
                routed.eval(ADD, 2, f"{{shop}}{number}", f"{{shop}}{number + 1}") for number in range(9)
            ][-1],
            "pipeline": lambda: pipeline(False),
            "transaction": lambda: pipeline(True),
        }
        with ThreadPoolExecutor(1) as threads:
            with half_moved(cluster, "shop") as nodes:
                waiting = threads.submit(commands[kind])
                wait_until(lambda: sum(errors_at(node, "TRYAGAIN") for node in nodes) > 2, "it is refused")
                assert not waiting.done()
            assert waiting.result(20) == 9

    def test_a_pipeline_keeps_order_and_replies(self, routed: Routed, cluster: Cluster, keys: list[str]) -> None:
        with half_moved(cluster, "shop"), routed.pipeline(transaction=False) as pipe:
            for number in range(10):
                pipe.append(f"{{shop}}{number}", "!").get(f"{{shop}}{number}").rpush("{shop}list", number)
                pipe.rpush(f"{keys[number % 3]}list", number)
            replies = pipe.execute()
            assert replies[1::4] == [b"%d!" % number for number in range(10)]
            assert replies[2::4] == list(range(1, 11))
            assert routed.lrange("{shop}list", 0, -1) == [b"%d" % number for number in range(10)]

    def test_a_transaction_of_one_missing_key(self, routed: Routed, cluster: Cluster) -> None:
        with half_moved(cluster, "shop") as (_, target), routed.pipeline() as pipe:
            assert pipe.rpush("{shop}new", 1).rpush("{shop}new", 2).execute() == [1, 2]
            assert target.counts()["exec"] == 1

    def test_the_deadline(self, topology: Topology, cluster: Cluster) -> None:
        patient = Routed(topology, deadline_s=0.3)
        slot = slot_of("shop")
        command = ("EVAL", ADD, 2, "{shop}0", "{shop}new")
        with half_moved(cluster, "shop") as (source, target):
            text = f"the cluster did not serve slot {slot} for 0.3 s: .*[Mm]ultiple keys"
            with pytest.raises(exceptions.TryAgainError, match=text):
                patient.execute_command(*command)
            tries = errors_at(source, "TRYAGAIN") + errors_at(target, "TRYAGAIN")
            assert 2 <= tries <= 10
            impatient = Routed(topology, deadline_s=0)
            with pytest.raises(exceptions.TryAgainError, match=r"^Multiple keys"):
                impatient.execute_command(*command)
            assert impatient.get("{shop}new") is None
            with patient.pipeline(transaction=False) as pipe:
                pipe.execute_command(*command).execute_command(*command).set("{shop}new2", 1)
                *refused, stored = pipe.execute(raise_on_error=False)
            assert [type(reply) for reply in refused] == [exceptions.TryAgainError] * 2
            assert stored is True

    def test_nobody_serves_the_slot(self, topology: Topology, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(topology_module, "REFRESH_PAUSE_S", 60)
        topology.refresh()
        know_only_slot_0(topology)
        with pytest.raises(exceptions.ClusterDownError, match=r"for 0\.05 s: no node serves slot"):
            Routed(topology, deadline_s=0.05).get("shop")

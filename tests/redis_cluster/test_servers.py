"""The cluster that tests start does what a cluster does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from tests.redis_cluster import servers
from tests.redis_cluster.servers import Cluster, slot_of
from tests.support import missing, wait_until
from tests.support import servers as available


@pytest.fixture(params=available() or [None])
def any_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster of each kind of Redis on this machine in turn, with a replica for each master."""
    if request.param is None:
        missing("no Redis server on this machine")
    with servers.cluster(replicas=1, server=available()[request.param]) as cluster:
        yield cluster


def _fill(cluster: Cluster, tag: str, count: int) -> dict[str, bytes]:
    values = {f"{{{tag}}}:{number}": str(number).encode() for number in range(count)}
    cluster.owner(tag).client.mset(values)
    return values


def test_every_slot_has_a_master(cluster: Cluster) -> None:
    assert cluster.masters() == cluster.nodes
    for node in cluster.nodes:
        assert len(node.owners()) == servers.SLOTS
        assert cluster.owner(cluster.key_of(node)) is node


def test_a_slot_moves_with_its_keys(cluster: Cluster) -> None:
    values = _fill(cluster, "shop", 250)
    source = cluster.owner("shop")
    target = next(node for node in cluster.nodes if node is not source)
    cluster.reset_counts()

    with cluster.moving(slot_of("shop"), target):
        assert source.client.dbsize() == target.client.dbsize() == 125
        assert cluster.owner("shop") is source
        with pytest.raises(redis.ResponseError):  # TRYAGAIN, or ASK by Redis 6.2, for which redis-py 5 has no class
            source.client.mget(list(values))

    assert cluster.owner("shop") is target
    assert target.client.mget(list(values)) == list(values.values())
    assert source.client.dbsize() == 0
    assert cluster.counts()["migrate"] == 4


def test_slots_come_back_before_the_next_test(cluster: Cluster) -> None:
    source = cluster.owner("shop")
    cluster.move(slot_of("shop"), next(node for node in cluster.nodes if node is not source))
    cluster.put_slots_back()
    assert cluster.owner("shop") is source


def test_a_replica_takes_over_from_a_killed_master(any_cluster: Cluster) -> None:
    values = _fill(any_cluster, "shop", 10)
    master = any_cluster.owner("shop")
    (replica,) = any_cluster.replicas_of(master)
    assert master.client.wait(1, 20_000) == 1

    master.kill()
    wait_until(lambda: replica in any_cluster.masters(), "the replica takes over")
    assert any_cluster.owner("shop") is replica
    assert replica.client.mget(list(values)) == list(values.values())

    master.restart()
    any_cluster.wait_until_ok()
    assert any_cluster.replicas_of(replica) == [master]

    assert any_cluster.failover(replica) is master
    assert any_cluster.owner("shop") is master
    assert replica not in any_cluster.masters()

    target = next(node for node in any_cluster.masters() if node is not master)
    any_cluster.move(slot_of("shop"), target)
    assert any_cluster.owner("shop") is target
    assert target.client.mget(list(values)) == list(values.values())


def test_a_suspended_master_is_replaced(any_cluster: Cluster) -> None:
    master = any_cluster.nodes[0]
    (replica,) = any_cluster.replicas_of(master)
    master.suspend()
    wait_until(lambda: replica in any_cluster.masters(), "the replica takes over")
    master.resume()
    wait_until(lambda: any_cluster.replicas_of(replica) == [master], "the old master follows")

"""A consumer keeps a lease on a list whose slot has moved. While the other node is away, all else goes on.

Timeouts of connections are so long here that whoever waits for a node that hangs fails the test.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import pytest
import redis

from celery_delayq.cluster import hanging
from celery_delayq.cluster.client import own_connections
from celery_delayq.cluster.node import Address
from celery_delayq.cluster.topology import Topology
from celery_delayq.fetching.consumer import Consumer
from celery_delayq.fetching.watchdog import Watchdog
from celery_delayq.queue import keys
from celery_delayq.queue.connections import new_id
from celery_delayq.queue.keeper import Keeper
from celery_delayq.queue.keys import QueueKeys
from celery_delayq.queue.scripts import Renewed
from tests.consumer.conftest import MARKING, in_another_thread
from tests.consumer.lone import LONG_S
from tests.redis_cluster import servers
from tests.redis_cluster.routing import addresses_of, other_than
from tests.redis_cluster.servers import Cluster, ClusterNode, slot_of
from tests.state import now_ms, oldest_first
from tests.support import wait_until

LEASE_S = 3.0


def patient_pool(address: Address) -> redis.ConnectionPool:
    return redis.ConnectionPool(host=address.host, port=address.port, socket_timeout=300)


@pytest.fixture(scope="module")
def own() -> Iterator[Cluster]:
    """A cluster that keeps what it has when a node is killed, and in which no node is taken for dead."""
    settings = ("--appendonly", "yes", "--appendfsync", "always", "--cluster-node-timeout", "300000")
    with servers.cluster(settings=settings) as cluster:
        yield cluster


@dataclass
class Scene:
    """A consumer of one node, with a lease on `stays`, and one on `moved`, whose slot is at another node by now."""

    cluster: Cluster
    consumer: Consumer
    connect: Callable[[], Any]
    here: ClusterNode
    there: ClusterNode
    stays: str
    moved: str

    def keys(self, name: str) -> QueueKeys:
        return QueueKeys.of(name)

    def score(self, name: str, node: ClusterNode) -> float:
        return float(node.client.zscore(self.keys(name).consumers, self.consumer.id) or 0)

    def in_flight(self, name: str, node: ClusterNode) -> list[bytes]:
        return oldest_first(node.client, self.keys(name).in_flight(self.consumer.id))

    def end(self, how: str, node: ClusterNode) -> None:
        """Let a node be away."""
        node.kill() if how == "dead" else node.suspend()

    def restore(self) -> None:
        """Let all nodes be there again."""
        for node in self.cluster.nodes:
            node.resume()
            if not node.is_running:
                node.restart()
            hanging.answers(Address("127.0.0.1", node.port))
        self.cluster.wait_until_ok()


@pytest.fixture
def scene(own: Cluster) -> Iterator[Scene]:
    own.flush()
    own.put_slots_back()
    here = own.nodes[0]
    names = (f"q{number}" for number in count())
    stays, moved = [name for name, _ in zip((name for name in names if own.owner(name) is here), "ab", strict=False)]
    with closing(Topology(addresses_of(own), patient_pool)) as topology:
        topology.refresh()
        connect = partial(own_connections, topology, Address("127.0.0.1", here.port), hurries_elsewhere=True)
        consumer = Consumer(connect, lease_s=LEASE_S, redelivery=MARKING, id=new_id(), slot_of=slot_of)
        for name in (stays, moved):
            consumer.join(name)
        there = other_than(own, here)
        scene = Scene(own, consumer, connect, here, there, stays, moved)
        try:
            yield scene
        finally:
            scene.restore()
            consumer.disconnect()


def take(scene: Scene, name: str, message: bytes) -> str:
    """Let the consumer fetch and hold a message; return its tag."""
    scene.cluster.owner(name).client.lpush(name, message)
    assert scene.consumer.fetch(name, 1) == [message]
    return scene.consumer.hold(name, message)


def move(scene: Scene) -> None:
    """Move the slot, and let the consumer's client know."""
    scene.cluster.move(slot_of(scene.moved), scene.there)
    scene.consumer.renew()


@pytest.fixture
def watch(scene: Scene) -> Iterator[Callable[[], Watchdog]]:
    """Start the watchdog of the consumer, and wait until others see it."""
    started: list[Watchdog] = []

    def start() -> Watchdog:
        watchdog = Watchdog(scene.consumer, Keeper(scene.consumer.connect), patience_s=LONG_S)
        started.append(watchdog)
        watchdog.start()
        wait_until(lambda: is_visible(scene), "its watchdog is subscribed")
        return watchdog

    yield start
    scene.restore()
    for watchdog in started:
        watchdog.stop()
        wait_until(lambda watchdog=watchdog: not watchdog.is_alive(), "its watchdog has ended", 20)


def is_visible(scene: Scene) -> bool:
    """Whether the others at its node can see that the consumer lives."""
    return bool(scene.here.client.pubsub_numsub(keys.alive_channel(scene.consumer.id))[0][1])


AWAY = pytest.mark.parametrize("how", ["dead", "hangs"])


class TestConsumer:
    @AWAY
    def test_the_other_leases_are_renewed(self, scene: Scene, how: str, caplog: pytest.LogCaptureFixture) -> None:
        move(scene)
        scene.here.client.zadd(scene.keys(scene.stays).consumers, {scene.consumer.id: 1})
        scene.end(how, scene.there)
        for _ in range(3):
            assert [name for name, _ in scene.consumer.renew()] == [scene.stays]
        assert scene.score(scene.stays, scene.here) > 1
        assert caplog.text.count(f"Cannot renew the lease on '{scene.moved}'") == 1
        scene.restore()
        assert {name for name, _ in scene.consumer.renew()} == {scene.stays, scene.moved}
        assert not scene.consumer.is_lost

    def test_it_does_not_wait_for_a_node_to_which_it_is_sent(self, scene: Scene) -> None:
        """It learns only now that the slot has moved."""
        scene.cluster.move(slot_of(scene.moved), scene.there)
        scene.end("hangs", scene.there)
        with pytest.raises((redis.TimeoutError, redis.ConnectionError)):
            scene.consumer.renew()
        assert [name for name, _ in scene.consumer.renew()] == [scene.stays]

    def test_a_lost_server_is_told_after_the_lease_elsewhere_was_renewed(self, scene: Scene) -> None:
        move(scene)
        scene.there.client.zadd(scene.keys(scene.moved).consumers, {scene.consumer.id: 1})
        scene.end("dead", scene.here)
        with pytest.raises(redis.ConnectionError):
            scene.consumer.renew()
        assert scene.score(scene.moved, scene.there) > 1

    def test_a_lease_elsewhere_alone_is_an_error(self, scene: Scene) -> None:
        move(scene)
        scene.consumer.part(scene.stays)
        scene.consumer.end_leases()
        scene.end("dead", scene.there)
        with pytest.raises(redis.ConnectionError):
            scene.consumer.renew()

    @AWAY
    def test_a_lease_that_cannot_be_ended_stays(self, scene: Scene, how: str) -> None:
        move(scene)
        scene.consumer.part(scene.moved)
        scene.consumer.part(scene.stays)
        scene.end(how, scene.there)
        assert scene.consumer.end_leases() is False
        assert list(scene.consumer.lists) == [scene.moved]
        assert scene.score(scene.stays, scene.here) == 0

    @AWAY
    def test_it_closes_what_it_can(self, scene: Scene, how: str) -> None:
        """And the rest when the node is back."""
        for name in (scene.stays, scene.moved):
            take(scene, name, name.encode())
        move(scene)
        scene.end(how, scene.there)
        assert scene.consumer.close() is False
        assert oldest_first(scene.here.client, scene.stays) == [scene.stays.encode() + b" again"]
        scene.restore()
        assert in_another_thread(scene.consumer.finish) is True
        assert oldest_first(scene.there.client, scene.moved) == [scene.moved.encode() + b" again"]
        assert scene.score(scene.stays, scene.here) == scene.score(scene.moved, scene.there) == 0


class TestWatchdog:
    @AWAY
    def test_goes_on_while_the_other_node_is_away(
        self, scene: Scene, watch: Callable[[], Watchdog], how: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It renews the other leases, recovers what others left, stays visible, and settles the rest later."""
        running = take(scene, scene.stays, b"running")
        done = take(scene, scene.moved, b"done")
        move(scene)
        watch()
        scene.end(how, scene.there)
        assert in_another_thread(scene.consumer.ack, done)
        wait_until(
            lambda: scene.consumer.conversation.read_answers() or scene.consumer.outbox.owed,
            "the acknowledgement is owed",
        )
        stays = scene.keys(scene.stays)
        for number in range(2):
            end = scene.score(scene.stays, scene.here)
            gone = f"gone {number}"
            scene.here.client.lpush(stays.in_flight(gone), gone)
            scene.here.client.zadd(stays.consumers, {gone: 1})
            wait_until(lambda: scene.here.client.llen(scene.stays) > number, "what others left is put back")  # noqa: B023
            wait_until(lambda: now_ms(scene.here.client) > end, "its lease would have ended")  # noqa: B023
            assert scene.score(scene.stays, scene.here) > now_ms(scene.here.client)
            assert is_visible(scene)
        assert "interrupted" not in caplog.text
        scene.restore()
        wait_until(lambda: not scene.consumer.outbox.owed, "it is settled")
        assert scene.in_flight(scene.moved, scene.there) == []
        assert not scene.consumer.is_lost
        assert scene.consumer.is_held(running)

    def test_believes_ended_leases_there_a_lease_after_the_node_is_back(
        self,
        scene: Scene,
        watch: Callable[[], Watchdog],
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """Others could not renew theirs in the meantime."""
        move(scene)
        watch()
        believes_from = time.monotonic() + LEASE_S
        wait_until(lambda: time.monotonic() > believes_from, "it believes others")
        scene.end("dead", scene.there)
        wait_until(lambda: "Cannot renew the lease on" in caplog.text, "it has noticed")
        renew, renewed_at = scene.consumer.renew, []

        def note(client: redis.Redis) -> list[tuple[str, Renewed]]:
            sent = time.monotonic()
            seen = renew(client)
            if scene.moved in dict(seen):
                renewed_at.append(sent)
            return seen

        monkeypatch.setattr(scene.consumer, "renew", note)
        scene.restore()
        other, moved = new_id(), scene.keys(scene.moved)
        scene.there.client.lpush(moved.in_flight(other), b"running")
        scene.there.client.zadd(moved.consumers, {other: 1})
        wait_until(lambda: scene.there.client.llen(scene.moved), "it is put back")
        assert time.monotonic() - renewed_at[0] >= LEASE_S

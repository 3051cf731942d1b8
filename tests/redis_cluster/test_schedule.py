"""Periodic tasks whose queues are on different nodes: what happens to one node concerns only its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import redis

from celery_delayq.queue.keys import QueueKeys, ScheduleKeys
from celery_delayq.schedule.loop import PlannerLoop
from celery_delayq.schedule.records import Record, Seen
from celery_delayq.schedule.service import planner_loop, planners_store
from examples.private_redis import PrivateRedis
from tests.brokers import ClusterServer
from tests.redis_cluster import servers
from tests.redis_cluster.servers import Cluster, ClusterNode, cut_from_master, slot_of
from tests.support import wait_until
from tests.worker_app import publisher

#: On all nodes.
QUEUES = ("blue", "green", "red")

EVERY_MS = 100


def entry(queue: str) -> dict[str, Any]:
    """Return an entry of the configuration. Whatever was missed is made up for."""
    options = {"queue": queue, "delayq": {"missed": "all", "catch_up": 10_000}}
    return {"task": "note", "schedule": EVERY_MS / 1000, "options": options}


SCHEDULE = {queue: entry(queue) for queue in QUEUES}

SCHEDULE_KEYS = ScheduleKeys.of(together=True)


@pytest.fixture
def ledger_url(redis_server: PrivateRedis) -> str:
    return f"redis://127.0.0.1:{redis_server.port}/9"


@pytest.fixture
def broker() -> Iterator[ClusterServer]:
    """A cluster of its own, whose nodes forget nothing when they are killed. No node is taken for dead soon."""
    settings = ("--appendonly", "yes", "--appendfsync", "always", "--cluster-node-timeout", "15000")
    with servers.cluster(settings=settings) as cluster:
        yield ClusterServer(cluster)


@pytest.fixture
def replicated_broker() -> Iterator[ClusterServer]:
    """A cluster whose replicas take over 3 to 6 s after their master died."""
    with servers.cluster(replicas=1, settings=("--cluster-node-timeout", "3000")) as cluster:
        yield ClusterServer(cluster)


@contextmanager
def planning(app: Any) -> Iterator[PlannerLoop]:
    """Plan as long as the block lasts."""
    loop = planner_loop(app)
    loop.start()
    try:
        yield loop
    finally:
        loop.stop()


def planned(client: redis.Redis, queue: str) -> list[int]:
    """Return when what was planned is due, in ms: nobody transfers it."""
    found = client.zrange(QueueKeys.of(queue).timeout_set, 0, -1, withscores=True)
    return [int(score) for _, score in found]


def wait_for_more(client: redis.Redis, queues: tuple[str, ...], more: int = 5) -> None:
    """Wait until more occurrences are planned in each of these queues."""
    before = {queue: len(planned(client, queue)) for queue in queues}
    for queue in queues:
        wait_until(lambda: len(planned(client, queue)) >= before[queue] + more, f"{queue} goes on")  # noqa: B023


def assert_complete_after(client: redis.Redis) -> None:
    """See that all queues go on, and that no occurrence is missing or there twice."""
    wait_for_more(client, QUEUES)
    for queue in QUEUES:
        found = planned(client, queue)
        assert found == list(range(found[0], found[-1] + 1, EVERY_MS))


def red_pair(cluster: Cluster) -> tuple[ClusterNode, ClusterNode]:
    """Return the master of `red`, which is not that of the schedule, and its replica."""
    master = cluster.owner("red")
    assert master is not cluster.owner(SCHEDULE_KEYS.definitions)
    (replica,) = cluster.replicas_of(master)
    return master, replica


def assert_goes_on(
    client: redis.Redis, cluster: Cluster, killed: ClusterNode, replica: ClusterNode, queue: str
) -> None:
    """See that an entry of `blue` and `red`, one after the other, goes on after a failover, and lacks no occurrence."""
    wait_until(lambda: replica in cluster.masters(), "the replica takes over", 60)
    killed.restart()
    cluster.wait_until_ok()
    wait_for_more(client, (queue,), 10)
    found = sorted(planned(client, "blue") + planned(client, "red"))
    assert found == list(range(found[0], found[-1] + 1, EVERY_MS))


def test_new_entries_are_planned_while_a_node_is_away(broker: ClusterServer, ledger_url: str) -> None:
    """Except those of its queues, which cannot even be declared."""
    cluster = broker.cluster
    lost = cluster.owner("blue")
    lost.kill()
    with (
        publisher(cluster.url(3), ledger_url, beat_schedule=SCHEDULE) as app,
        broker.client() as client,
        planning(app),
    ):
        wait_for_more(client, ("green", "red"), 20)
        lost.restart()
        cluster.wait_until_ok()
        wait_for_more(client, QUEUES)
        assert {entry.error for entry in app.delayq.schedule} == {None}


@pytest.mark.parametrize("starts", [False, True], ids=["planner goes on", "planner starts"])
def test_entries_of_other_nodes_go_on_while_one_is_away(broker: ClusterServer, ledger_url: str, starts: bool) -> None:
    cluster = broker.cluster
    lost = cluster.owner("blue")
    assert lost is not cluster.owner(SCHEDULE_KEYS.definitions)
    others = tuple(queue for queue in QUEUES if cluster.owner(queue) is not lost)
    with (
        publisher(cluster.url(3), ledger_url, beat_schedule=SCHEDULE) as app,
        broker.client() as client,
        ExitStack() as stack,
    ):
        with ExitStack() as first:
            first.enter_context(planning(app))
            wait_for_more(client, QUEUES)
            if not starts:
                stack.enter_context(first.pop_all())
        lost.kill()
        if starts:
            stack.enter_context(planning(app))
        wait_for_more(client, others, 30)
        lost.restart()
        cluster.wait_until_ok()
        assert_complete_after(client)


def test_entries_of_other_nodes_go_on_while_one_hangs(broker: ClusterServer, ledger_url: str) -> None:
    """Whatever happens to what was sent to it: each occurrence is planned once."""
    cluster = broker.cluster
    hanging = cluster.owner("blue")
    assert hanging is not cluster.owner(SCHEDULE_KEYS.definitions)
    others = tuple(queue for queue in QUEUES if cluster.owner(queue) is not hanging)
    options = {"broker_transport_options": {"socket_timeout": 120.0}}  # nobody waits for that
    with (
        publisher(cluster.url(3), ledger_url, beat_schedule=SCHEDULE, **options) as app,
        broker.client() as client,
        planning(app),
    ):
        wait_for_more(client, QUEUES)
        hanging.suspend()
        try:
            wait_for_more(client, others, 150)
        finally:
            hanging.resume()
        assert_complete_after(client)


def test_entries_of_other_slots_go_on_while_one_moves(broker: ClusterServer, ledger_url: str) -> None:
    cluster = broker.cluster
    source = cluster.owner("blue")
    target = next(node for node in cluster.masters() if node is not source)
    with publisher(cluster.url(3), ledger_url, beat_schedule=SCHEDULE) as app, broker.client() as client, planning(app):
        wait_for_more(client, QUEUES)
        with cluster.moving(slot_of("blue"), target):
            wait_for_more(client, ("green", "red"), 50)
        assert_complete_after(client)


def test_planners_listen_where_the_slot_of_the_schedule_has_gone(broker: ClusterServer, ledger_url: str) -> None:
    """There they are counted; and a failover of that node shows."""
    cluster, keys = broker.cluster, SCHEDULE_KEYS
    with publisher(cluster.url(3), ledger_url, beat_schedule=SCHEDULE) as app, broker.client() as client, planning(app):
        wait_for_more(client, QUEUES)
        source = cluster.owner(keys.definitions)
        target = next(node for node in cluster.masters() if node is not source)
        cluster.move(slot_of(keys.definitions), target)
        wait_until(lambda: target.client.pubsub_numsub(keys.channel)[0][1] == 1, "it listens")
        assert source.client.pubsub_numsub(keys.channel)[0][1] == 0
        wait_for_more(client, QUEUES)


def test_all_keys_of_the_schedule_are_on_one_node() -> None:
    for prefix in ("", "shop:", "{shop}:"):
        keys = ScheduleKeys.of(prefix, together=True)
        assert len({slot_of(key) for key in (keys.definitions, keys.configurations, keys.errors)}) == 1


def test_a_failover_that_undoes_a_move_begins_nothing_anew(replicated_broker: ClusterServer, ledger_url: str) -> None:
    """The new node of an entry dies before its replica has heard of the entry: it goes on from where it was before."""
    cluster = replicated_broker.cluster
    options = {"broker_transport_options": {"replicas": 1, "replicas_timeout": 5.0}}
    with publisher(cluster.url(3), ledger_url, **options) as app, replicated_broker.client() as client, planning(app):
        schedule = app.delayq.schedule
        schedule.add("mine", "note", EVERY_MS / 1000, options=entry("blue")["options"])
        wait_for_more(client, ("blue",), 20)
        target, replica = red_pair(cluster)
        with cut_from_master(replica, target):
            schedule.update("mine", options=entry("red")["options"])
            wait_for_more(client, ("red",), 10)
            target.kill()
        assert_goes_on(client, cluster, target, replica, "red")
        wait_until(lambda: not client.hexists(QueueKeys.of("blue").schedule, "mine"), "nothing is left of the move")


def test_a_failover_of_the_node_that_an_entry_leaves_loses_no_occurrence(
    replicated_broker: ClusterServer, ledger_url: str
) -> None:
    """An entry leaves a node once a replica has what was sent there: nobody would know of it elsewhere."""
    cluster = replicated_broker.cluster
    options = {"broker_transport_options": {"replicas": 1, "replicas_timeout": 5.0}}
    with publisher(cluster.url(3), ledger_url, **options) as app, replicated_broker.client() as client, planning(app):
        schedule = app.delayq.schedule
        schedule.add("mine", "note", EVERY_MS / 1000, options=entry("red")["options"])
        wait_for_more(client, ("red",), 20)
        source, replica = red_pair(cluster)
        with cut_from_master(replica, source):
            wait_for_more(client, ("red",), 10)
            schedule.update("mine", options=entry("blue")["options"])
            wait_until(lambda: schedule.get("mine").error, "it may not leave")
            assert "replica" in schedule.get("mine").error
            assert planned(client, "blue") == []
            source.kill()
        assert_goes_on(client, cluster, source, replica, "blue")
        wait_until(lambda: schedule.get("mine").error is None, "it may leave")


def test_what_a_failover_has_undone_is_not_kept(replicated_broker: ClusterServer, ledger_url: str) -> None:
    """A planner may have seen it just before."""
    options = {"broker_transport_options": {"replicas": 1, "replicas_timeout": 5.0}}
    with (
        publisher(replicated_broker.cluster.url(3), ledger_url, **options) as app,
        replicated_broker.client() as client,
        app.connection() as connection,
    ):
        store = planners_store(connection.default_channel)
        client.hset(QueueKeys.of("red").schedule, "mine", "a state")
        store.write_record("mine", b"", Record("a fingerprint", 0, {}))
        (seen,) = store.seen([("mine", "red")])
        for stored, undone in ((seen, Seen(b"undone", seen.forgotten)), (store.record("mine"), b"undone")):
            assert store.check_kept("mine", "red", stored)
            assert not store.check_kept("mine", "red", undone)


def test_transfers_do_not_wait_for_a_planner_whose_node_is_away(broker: ClusterServer, ledger_url: str) -> None:
    cluster = broker.cluster
    with publisher(cluster.url(3), ledger_url, beat_schedule=SCHEDULE) as app, broker.client() as client:
        with planning(app):
            wait_for_more(client, QUEUES)
        cluster.owner(SCHEDULE_KEYS.definitions).kill()
        with planning(app) as loop:
            assert loop.wait_until_planned(8), "less than a transfer would wait otherwise"

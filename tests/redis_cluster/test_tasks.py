"""Tasks on a real Redis Cluster, with real workers."""

from __future__ import annotations

import signal
import time

import pytest
from celery import Celery, chord, group
from kombu import Connection

from celery_delayq import ConfigurationError, register
from celery_delayq.cluster.node import Address
from celery_delayq.queue.keys import QueueKeys, ScheduleKeys
from examples.private_redis import PrivateRedis
from tests.ledger import Ledger
from tests.redis_cluster.routing import other_than
from tests.redis_cluster.servers import Cluster, slot_of
from tests.support import wait_until
from tests.worker_app import publisher
from tests.workers import Worker

#: Queues on all three nodes, some with priorities.
QUEUES = [f"q{number}" for number in range(6)]


@pytest.fixture(params=["", "shop:", "{shop}:"], ids=["plain", "prefix", "one-slot"])
def prefix(request: pytest.FixtureRequest) -> str:
    """Each kind of `global_keyprefix`."""
    return str(request.param)


def options(prefix: str) -> dict[str, dict[str, str]]:
    """The configuration for a key prefix."""
    return {"broker_transport_options": {"global_keyprefix": prefix}} if prefix else {}


def test_queues_are_on_several_nodes(cluster: Cluster) -> None:
    assert len({cluster.owner(queue).port for queue in QUEUES}) == 3


def test_what_waits_can_be_seen_and_changed(cluster: Cluster, ledger: Ledger, prefix: str) -> None:
    with publisher(cluster.url(), ledger.url, **options(prefix)) as app:
        note = app.tasks["note"]
        results = [
            note.apply_async((number,), countdown=3600, queue=queue, priority=number % 10)
            for number, queue in enumerate(QUEUES)
        ]
        many = app.delayq.apply_async_many(
            note.s(number).set(countdown=7200, queue=QUEUES[number % 6]) for number in range(60)
        )
        assert len(many) == 60
        counts = app.delayq.counts()
        assert {queue.queue: queue.delayed for queue in counts.queues if queue.delayed} == dict.fromkeys(QUEUES, 11)
        assert {task.id for task in app.delayq.scheduled(limit=100)} == {it.id for it in (*results, *many)}
        assert app.delayq.get(results[0].id).queue == QUEUES[0]
        assert app.delayq.cancel(results[0].id)
        assert app.delayq.run_now(results[1].id)
        assert app.delayq.reschedule(results[2].id, countdown=60)
        assert app.delayq.cancel_all(queue=QUEUES[3]) == 11
        assert sum(it.delayed for it in app.delayq.counts().queues) == 66 - 1 - 1 - 11


@pytest.mark.thorough
@pytest.mark.parametrize("pool", ["prefork", "solo", "threads"])
def test_tasks_run_once_and_not_early(cluster: Cluster, ledger: Ledger, pool: str) -> None:
    runs_everywhere(cluster, ledger, pool, "")


@pytest.mark.thorough
@pytest.mark.parametrize("prefix", ["{shop}:", "shop:"])
def test_tasks_run_with_a_key_prefix(cluster: Cluster, ledger: Ledger, prefix: str) -> None:
    runs_everywhere(cluster, ledger, "solo", prefix)


def runs_everywhere(cluster: Cluster, ledger: Ledger, pool: str, prefix: str) -> None:
    """Run tasks of all queues, at once and delayed, with and without a priority."""
    conf = options(prefix)
    with (
        publisher(cluster.url(), ledger.url, **conf) as app,
        Worker("-Q", ",".join(QUEUES), pool=pool, broker=cluster.url(), ledger=ledger.url, conf=conf) as worker,
    ):
        note = app.tasks["note"]
        ids = []
        for number in range(60):
            queue = QUEUES[number % 6]
            ids.append(note.apply_async((number,), queue=queue, priority=number % 10).id)
            ids.append(note.apply_async((number,), queue=queue, countdown=0.5, priority=number % 10).id)
        wait_until(lambda: len(ledger.runs()) >= len(ids), "all tasks ran", 30)
        assert sorted(run.task_id for run in ledger.runs()) == sorted(ids)
        (answer,) = app.control.ping(timeout=5)
        asked = time.monotonic()
        assert app.control.ping(destination=list(answer), timeout=60) == [answer]
        assert time.monotonic() - asked < 30, "it did not wait for more answers than there can be"
        assert app.control.inspect(timeout=5).active_queues()
        assert "Traceback" not in worker.log


def test_a_killed_workers_messages_come_back(cluster: Cluster, ledger: Ledger) -> None:
    with publisher(cluster.url(), ledger.url) as app:
        with Worker("-Q", ",".join(QUEUES), pool="threads", broker=cluster.url(), ledger=ledger.url) as first:
            ids = [app.tasks["work_late"].apply_async((60,), queue=queue).id for queue in QUEUES]
            wait_until(lambda: len(ledger.executions()) >= 2, "two tasks have begun")
            first.kill()
        with Worker(
            *("-Q", ",".join(QUEUES)), pool="threads", concurrency=6, broker=cluster.url(), ledger=ledger.url
        ) as second:
            wait_until(
                lambda: {it.task_id for it in ledger.executions() if it.worker == second.pid} == set(ids),
                "all have begun again",
                30,
            )
            second.kill()


def test_a_slot_moves_while_its_queue_is_used(cluster: Cluster, ledger: Ledger) -> None:
    queue = QUEUES[0]
    with (
        publisher(cluster.url(), ledger.url) as app,
        Worker("-Q", ",".join(QUEUES), pool="threads", broker=cluster.url(), ledger=ledger.url),
    ):
        note = app.tasks["note"]
        ids = []

        def publish(count: int) -> None:
            for number in range(count):
                ids.append(note.apply_async((number,), queue=queue).id)
                ids.append(note.apply_async((number,), queue=queue, countdown=0.5).id)

        publish(20)
        for node in cluster.masters():
            if node.port != cluster.owner(queue).port:
                cluster.move(slot_of(queue), node)
                publish(20)
        wait_until(lambda: len(ledger.runs()) >= len(ids), "all tasks ran", 30)
        assert sorted(run.task_id for run in ledger.runs()) == sorted(ids)


def test_results_and_chords(cluster: Cluster, ledger: Ledger) -> None:
    conf = {"result_backend": cluster.url()}
    with (
        publisher(cluster.url(), ledger.url, **conf) as app,
        Worker(broker=cluster.url(), ledger=ledger.url, conf=conf),
    ):
        add, total = app.tasks["add"], app.tasks["total"]
        assert add.delay(2, 3).get(timeout=20) == 5
        assert group(add.s(n, n) for n in range(10)).apply_async().get(timeout=20) == [2 * n for n in range(10)]
        assert chord((add.s(n, n) for n in range(10)), total.s()).apply_async().get(timeout=20) == 90


def test_a_worker_that_ends_leaves_no_binding(cluster: Cluster, ledger: Ledger) -> None:
    """Such as that of its queue for remote control: bindings would pile up."""
    bindings = "{_kombu.binding}.celery.pidbox"
    assert cluster.owner(bindings) is not cluster.nodes[0], "the home node"
    with Worker(broker=cluster.url(), ledger=ledger.url) as worker:
        wait_until(lambda: cluster.owner(bindings).client.exists(bindings), "it listens")
        worker.send_signal(signal.SIGTERM)
        worker.wait()
    assert not cluster.owner(bindings).client.smembers(bindings)


@pytest.mark.parametrize("name", ["{q0}", "{q}"])
def test_a_queue_does_not_get_the_lists_of_another_one(cluster: Cluster, ledger: Ledger, name: str) -> None:
    """The list for priority 3 of `q0` is `{q0}` with that priority."""
    with publisher(cluster.url(), ledger.url) as app, pytest.raises(ConfigurationError, match="priorities"):
        app.tasks["note"].apply_async(queue=name, priority=3)


@pytest.mark.parametrize("name", ["a}b", "}x", "{}x"])
def test_names_whose_keys_would_be_on_several_nodes_are_refused(cluster: Cluster, ledger: Ledger, name: str) -> None:
    with publisher(cluster.url(), ledger.url) as app, pytest.raises(ConfigurationError, match="slot"):
        app.tasks["note"].apply_async(queue=name)


def test_a_single_server_is_not_a_cluster(redis_server: PrivateRedis, ledger: Ledger) -> None:
    url = f"delayq+cluster://127.0.0.1:{redis_server.port}"
    with publisher(url, ledger.url) as app, pytest.raises(ConfigurationError, match="delayq://"):
        app.tasks["note"].delay()


def test_it_has_database_0_only(cluster: Cluster, ledger: Ledger) -> None:
    with publisher(f"{cluster.url(1)}/2", ledger.url) as app, pytest.raises(ConfigurationError, match="database 0"):
        app.tasks["note"].delay()


@pytest.mark.parametrize("number", range(3))
def test_planners_listen_where_their_signs_of_life_are_counted(cluster: Cluster, ledger: Ledger, number: int) -> None:
    """Or all of them would seem to have been away when they were only slow."""
    node = cluster.nodes[number]
    prefixes = (f"shop{n}:" for n in range(1000))
    prefix = next(it for it in prefixes if cluster.owner(ScheduleKeys.of(it, together=True).configurations) is node)
    conf = {**options(prefix), "beat_scheduler": "celery_delayq.beat:Scheduler"}
    with Worker(broker=cluster.url(), ledger=ledger.url, conf=conf):
        channel = ScheduleKeys.of(prefix).channel
        wait_until(lambda: node.client.pubsub_numsub(channel)[0][1] == 1, "it listens")


def test_the_last_queue_of_a_node_may_move_while_the_node_is_asked(cluster: Cluster) -> None:
    """Another thread may have noticed that; it ended the worker."""
    register()
    slot, source = slot_of("q0"), cluster.owner("q0")
    target = other_than(cluster, source)
    try:
        with Connection(cluster.url()) as connection:
            queue = connection.SimpleQueue("q0")
            queue.put("message")
            transport = connection.transport

            def move() -> int:
                """Called when a fetch has begun, and asks how much may be fetched."""
                transport.program.most_ahead = lambda: 0
                cluster.move(slot, target)
                connection.default_channel.topology.moved(slot, Address("127.0.0.1", target.port))
                transport.on_nodes_changed()
                return 0

            transport.program.most_ahead = move
            assert queue.get(timeout=20).payload == "message"
            assert cluster.owner("q0") is target
            queue.close()
    finally:
        cluster.put_slots_back()


def send_to_each(app: Celery) -> None:
    for queue in QUEUES:
        app.tasks["note"].apply_async(queue=queue)


def test_a_cluster_is_not_a_single_server(cluster: Cluster, ledger: Ledger) -> None:
    """Whichever node the URL names."""
    for node in cluster.nodes:
        url = f"delayq://127.0.0.1:{node.port}"
        with publisher(url, ledger.url) as app, pytest.raises(ConfigurationError, match=r"delayq\+cluster://"):
            send_to_each(app)


def test_a_registry_that_is_full_holds_up_no_queue_of_another_node(cluster: Cluster, ledger: Ledger) -> None:
    registry = cluster.owner("delayq:queues")
    queue = cluster.key_of(next(node for node in cluster.nodes if node is not registry))
    with publisher(cluster.url(), ledger.url) as app:
        app.tasks["note"].apply_async(queue=queue)
        registry.client.config_set("maxmemory", 1)
        try:
            app.tasks["note"].apply_async(queue=queue, countdown=60)
        finally:
            registry.client.config_set("maxmemory", 0)
        assert cluster.owner(queue).client.zcard(QueueKeys.of(queue).timeout_set) == 1

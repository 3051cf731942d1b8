"""A slot that stays half moved, as an interrupted reshard leaves it, holds up nothing but its own queue."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import count

import pytest
from redis import exceptions

from celery_delayq.basics.times import to_datetime
from celery_delayq.cluster.client import Routed
from celery_delayq.queue import scripts
from celery_delayq.queue.delayed_queue import DelayedQueue
from celery_delayq.queue.keys import QueueKeys
from celery_delayq.transfer.settings import TransferSettings
from tests.brokers import ClusterServer
from tests.cli.running import run
from tests.ledger import Ledger
from tests.redis_cluster.routing import errors_at, other_than
from tests.redis_cluster.servers import Cluster, slot_of
from tests.state import FAR, delivered
from tests.support import wait_until
from tests.transferring import transferring
from tests.worker_app import publisher
from tests.workers import Worker

#: Long enough for what is due to be transferred many times over, and less than a command may wait for a slot.
_SOON_S = 15


def beside(cluster: Cluster, queue: str) -> str:
    """Return another queue at the node of a queue, in another slot."""
    names = (f"{queue}-{number}" for number in count())
    return next(name for name in names if cluster.owner(name) is cluster.owner(queue))


def test_delayed_tasks_and_leases_of_the_other_queues_of_the_node_go_on(cluster: Cluster, ledger: Ledger) -> None:
    stuck = "celery"
    other = beside(cluster, stuck)
    source = cluster.owner(stuck)
    lease = {"broker_transport_options": {"lease": 5.0}}
    with (
        publisher(cluster.url(3), ledger.url) as app,
        Worker("-Q", f"{stuck},{other}", broker=cluster.url(3), ledger=ledger.url, conf=lease) as worker,
    ):
        note = app.tasks["note"]
        first = note.apply_async(queue=other)
        wait_until(lambda: ledger.has([first.id]), "it works")
        held_up = [note.apply_async(queue=stuck, countdown=1, priority=priority).id for priority in (0, 3, 6)]
        consumers = QueueKeys.of(other).consumers
        with cluster.moving(slot_of(stuck), other_than(cluster, source)):
            ends = dict(source.client.zrange(consumers, 0, -1, withscores=True))
            ids = [note.apply_async(queue=other, countdown=1).id for _ in range(5)]
            wait_until(lambda: ledger.has(ids), "delayed tasks of the other queue run", _SOON_S)
            wait_until(
                lambda: all(source.client.zscore(consumers, one) > end + 4000 for one, end in ends.items()),
                "its leases are renewed twice",
                _SOON_S,
            )
        wait_until(lambda: ledger.has(held_up), "what was held up runs when the slot has moved")
        assert {run.task_id for run in ledger.runs()} == {first.id, *ids, *held_up}
        assert len(ledger.runs()) == 1 + len(ids) + len(held_up), "nothing runs twice"
        assert "Traceback" not in worker.log


@pytest.mark.parametrize("tag", ["celery", "{_kombu.binding}"], ids=["queue", "bindings"])
def test_a_worker_starts_meanwhile(cluster: Cluster, ledger: Ledger, tag: str) -> None:
    queues = ["celery", beside(cluster, "celery")]
    with publisher(cluster.url(3), ledger.url) as app:
        note = app.tasks["note"]
        held_up = [
            note.apply_async(queue="celery", countdown=countdown, priority=priority).id
            for countdown in (None, 1)
            for priority in (0, 3, 6)
        ]
        with ExitStack() as stack:
            with cluster.moving(slot_of(tag), other_than(cluster, cluster.owner(tag))):
                worker = stack.enter_context(Worker("-Q", ",".join(queues), broker=cluster.url(3), ledger=ledger.url))
                ids = [note.apply_async(queue=queues[1], countdown=countdown).id for countdown in (None, 1)]
                wait_until(lambda: ledger.has(ids), "tasks of the other queue run", _SOON_S)
            wait_until(lambda: ledger.has(held_up), "what was held up runs when the slot has moved")
            assert len(ledger.runs()) == len(held_up) + len(ids), "nothing runs twice"
            assert "Traceback" not in worker.log


def test_a_fetch_that_empties_a_list_returns_its_messages(cluster: Cluster) -> None:
    """The server then takes the list for one that has moved, and refuses to read it once more."""
    keys, source = QueueKeys.of("q"), cluster.owner("q")
    client, target = source.client, other_than(cluster, source)
    client.zadd(keys.consumers, {"me": FAR})
    client.lpush(keys.in_flight("me"), "before")
    client.lpush("q", "1", "2")
    target.client.execute_command("CLUSTER", "SETSLOT", slot_of("q"), "IMPORTING", source.id)
    client.execute_command("CLUSTER", "SETSLOT", slot_of("q"), "MIGRATING", target.id)
    try:
        fetch = scripts.fetch(keys, consumer="me", limit=10)
        assert fetch.run(client) == [b"1", b"2"]
        assert client.lrange(keys.in_flight("me"), 0, -1) == [b"2", b"1", b"before"]
        with pytest.raises(exceptions.ResponseError):
            fetch.run(client)
    finally:
        for node in (source, target):
            node.client.execute_command("CLUSTER", "SETSLOT", slot_of("q"), "STABLE")


def test_a_check_names_the_slot_and_what_mends_it(cluster: Cluster, ledger: Ledger) -> None:
    slot = slot_of("celery")
    target = other_than(cluster, cluster.owner("celery"))
    with publisher(cluster.url(3), ledger.url) as app, cluster.moving(slot, target):
        done = run(app, "check", "--json")
    (finding,) = (line for line in done.lines() if line["check"] == "overdue" and "celery" in line["message"])
    assert finding["level"] == "note"
    assert f"slot {slot} " in finding["message"]
    assert "redis-cli --cluster fix" in finding["message"]


def test_only_its_own_queue_is_tried_again_soon(cluster: Cluster, routed: Routed) -> None:
    stuck, other = DelayedQueue(routed, "celery"), DelayedQueue(routed, beside(cluster, "celery"))
    source = cluster.owner("celery")
    target = other_than(cluster, source)
    for queue in (stuck, other):
        queue.offer(b"later", eta=to_datetime(FAR))
    with transferring(ClusterServer(cluster), TransferSettings(interval_s=300.0)):
        channels = (stuck.keys.channel, other.keys.channel)
        wait_until(lambda: all(count for _, count in source.client.pubsub_numsub(*channels)), "it watches both")
        with cluster.moving(slot_of("celery"), target):
            cluster.reset_counts()
            routed.publish(stuck.keys.channel, 1)  # as if something was due
            wait_until(lambda: sum(errors_at(node, "TRYAGAIN") for node in (source, target)) > 8, "it is refused")
            assert not [name for name in source.counts() if name.startswith("pubsub")], "nobody has looked at the other"
        stuck.offer(b"due", eta=to_datetime(1))
        wait_until(lambda: delivered(stuck) == [b"due"], "it is transferred when the slot has moved")

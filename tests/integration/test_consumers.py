"""`delayq.consumers`: who consumes which queues, what they hold, and who transfers."""

from __future__ import annotations

import socket
from typing import Any

import pytest
import redis
from celery import Celery

from celery_delayq import DelayedQueue
from celery_delayq.basics.times import to_datetime, to_ms
from celery_delayq.inspector.consumers import Lease, consumers
from celery_delayq.inspector.held import held
from celery_delayq.web.broker import Broker
from tests.brokers import list_for
from tests.ledger import Ledger
from tests.state import FAR, give, lease, nothing_changes, now_ms
from tests.support import wait_until
from tests.workers import Worker

pytestmark = pytest.mark.on_cluster

ONE, TWO = "host:1:place-start-random", "host:2:random"


def leases(app: Celery) -> dict[str, tuple[Lease, ...]]:
    return {consumer.id: consumer.leases for consumer in app.delayq.consumers().consumers}


def test_all_that_is_known_of_a_consumer(app: Celery, waiting: DelayedQueue) -> None:
    client = waiting.client
    high = DelayedQueue(client, list_for(client, "celery", 9))
    ends_ms = int(lease(waiting, ONE))
    ended_ms = int(lease(high, ONE, ms_left=-1000))
    lease(high, TWO)
    give(waiting, ONE, b"held", b"too")
    give(high, ONE, b"left behind")
    client.set(high.keys.transferrer, f"{now_ms(client)}:host:1:loop")
    begin = now_ms(client)
    with nothing_changes(client):
        found = app.delayq.consumers()
    assert begin <= to_ms(found.at, "at") <= now_ms(client)
    assert not found.lost
    one, two = found.consumers
    assert (one.id, one.node, one.pid, one.in_flight, one.queues) == (ONE, "host", 1, 3, ("celery",))
    assert one.leases == (
        Lease("celery", "celery", 0, to_datetime(ends_ms), True, False, 2, False),
        Lease("celery", high.name, 9, to_datetime(ended_ms), False, False, 1, True),
    )
    assert (two.id, two.in_flight, [it.is_punctual for it in two.leases]) == (TWO, 0, [False])


def test_what_a_consumer_holds(app: Celery, waiting: DelayedQueue) -> None:
    high = DelayedQueue(waiting.client, list_for(waiting.client, "celery", 9))
    for queue in (waiting, high):
        lease(queue, ONE)
    lease(waiting, TWO)
    give(waiting, ONE, *(b"%d" % number for number in range(25)))
    give(high, ONE, b"high")
    give(waiting, TWO, b"of another")
    with Broker(app).inspector() as inspector:
        one, two = consumers(inspector.lists).consumers
        with nothing_changes(waiting.client):
            found = held(inspector.lists, [one])
        payloads = [task.entry.payload for task in found]
        assert payloads == [*(b"%d" % number for number in range(25)), b"high"]
        assert {task.priority for task in found} == {0, 9}
        assert [task.entry.payload for task in held(inspector.lists, [one, two], 7)] == payloads[:7]
        assert [task.entry.payload for task in held(inspector.lists, [two])] == [b"of another"]


def test_one_that_was_given_up(app: Celery, waiting: DelayedQueue) -> None:
    waiting.client.zadd(waiting.keys.consumers, {ONE: -1_700_000_000_000})
    (found,) = leases(app)[ONE]
    assert (found.ends, found.is_lasting, found.is_given_up) == (to_datetime(1_700_000_000_000), False, True)


def test_of_several_queues(app: Celery, waiting: DelayedQueue) -> None:
    other = DelayedQueue(waiting.client, "other")
    waiting.client.zadd("delayq:queues", {"other": FAR})
    try:
        for queue in (waiting, other):
            lease(queue, ONE)
        (one,) = app.delayq.consumers().consumers
        assert one.queues == ("celery", "other")
        assert [it.queue for it in one.leases] == ["celery", "other"]
    finally:
        waiting.client.zrem("delayq:queues", "other")


@pytest.mark.parametrize("transferrer", [None, b"", b"garbage", b"\xff:\xff", b"1:other:1:loop", b"1:host:11:loop"])
def test_a_loop_of_another_process_is_not_punctual(
    app: Celery, waiting: DelayedQueue, transferrer: bytes | None
) -> None:
    lease(waiting, ONE)
    if transferrer is not None:
        waiting.client.set(waiting.keys.transferrer, transferrer)
    assert [it.is_punctual for it in leases(app)[ONE]] == [False]


@pytest.mark.parametrize("name", [b"somebody", b"\xff", b"a:b"])
def test_an_id_of_another_form(app: Celery, waiting: DelayedQueue, name: bytes) -> None:
    waiting.client.zadd(waiting.keys.consumers, {name: now_ms(waiting.client) + 60_000, "": 1})
    waiting.client.set(waiting.keys.transferrer, b"1:" + name)
    (found,) = app.delayq.consumers().consumers
    assert (found.host, found.pid) == (name.decode(errors="replace"), None)
    assert [it.is_punctual for it in found.leases] == [False]


def test_no_more_than_a_thousand_of_a_list(app: Celery, waiting: DelayedQueue) -> None:
    """Those whose leases last come first."""
    ends_ms = now_ms(waiting.client) + 60_000
    waiting.client.zadd(waiting.keys.consumers, {f"gone:{number}:x": -ends_ms for number in range(1100)})
    waiting.client.zadd(waiting.keys.consumers, {ONE: ends_ms})
    found = leases(app)
    assert len(found) == 1000
    assert ONE in found


def test_of_nobody(app: Celery, waiting: DelayedQueue) -> None:
    assert app.delayq.consumers().consumers == ()


def test_a_worker(app: Celery, waiting: DelayedQueue, broker_url: str, ledger: Ledger, broker_client: Any) -> None:
    """It holds what it runs, and transfers."""
    with Worker(broker=broker_url, ledger=ledger.url) as worker:
        app.tasks["work_late"].apply_async((60,), countdown=1)

        def found() -> Any:
            """Who moved the message is asked before what is held: the task may begin between the two."""
            working = (it for it in app.delayq.consumers().consumers if it.in_flight)
            return next((it for it in working if any(lease.is_punctual for lease in it.leases)), None)

        consumer = wait_until(found, "the worker works, and is punctual", 20)
        assert consumer.pid == worker.pid
        assert consumer.node == f"w{id(worker):x}@{socket.gethostname()}", "as Celery has it"
        assert consumer.host == socket.gethostname()
        assert consumer.queues == ("celery",)
        (held,) = [it for it in consumer.leases if it.in_flight]
        assert (held.broker_list, held.priority, held.in_flight) == ("celery", 0, 1)
        assert (held.is_lasting, held.is_punctual) == (True, True)
        assert len(consumer.leases) == 4, "one for each priority"
        worker.kill()


def test_a_key_of_another_type_is_an_error(app: Celery, waiting: DelayedQueue) -> None:
    waiting.client.set(waiting.keys.consumers, "no ZSET")
    with pytest.raises(Exception, match="WRONGTYPE"):
        app.delayq.consumers()


def test_does_not_depend_on_what_waits(app: Celery, waiting: DelayedQueue, broker_client: redis.Redis) -> None:
    lease(waiting, ONE)

    def sent() -> int:
        broker_client.config_resetstat()
        app.delayq.consumers()
        return sum(stat["calls"] for stat in broker_client.info("commandstats").values())

    sent()  # of the connections
    before = sent()
    waiting.client.zadd(waiting.keys.timeout_set, {b"%d" % number: number + 1 for number in range(5000)})
    assert sent() == before

"""What is fetched long before its eta, and no delayed queue has held, waits in Redis like what was delayed."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis

from celery_delayq import DelayedQueue
from celery_delayq.queue.keys import QueueKeys
from celery_delayq.transport.eta_tasks import EtaTasks
from examples.private_redis import PrivateRedis
from tests.fetching.reading import DB, Reader, publish, with_options
from tests.integration.long_tasks import in_flight
from tests.integration.publishing import LATER, Broker, broker, milliseconds
from tests.state import out_of_memory
from tests.support import wait_until

ETA = LATER.isoformat()


def headers(eta: Any = ETA, **more: Any) -> dict[str, Any]:
    return {"task": "note", "id": "the-id", "eta": eta, **more}


@pytest.fixture
def stock(redis_server: PrivateRedis, ours: Broker) -> Iterator[Broker]:
    """A producer with kombu's own transport, in the same database."""
    with broker(redis_server, "redis", DB) as stock:
        yield stock


@contextmanager
def worker(ours: Broker, *names: str, **options: Any) -> Iterator[Reader]:
    """A consumer that would hold tasks until their eta, as a worker does."""
    with ours.connection.clone() as connection:
        connection.transport.program.may_wait = lambda headers: True
        yield Reader(connection.default_channel, *names, **options)


def test_it_waits_unchanged_but_for_the_property_of_what_was_delayed(stock: Broker, ours: Broker) -> None:
    publish(stock, "q", "body", headers=headers(x=[], y={"z": 1.5, "n": 2**60}), priority=5)
    ((raw,),) = [stock.client.lrange(name, 0, -1) for name in ("q\x06\x163",)]
    with worker(ours, "q", prefetch=4) as it:
        publish(stock, "q", "now")
        assert it.drain(1) == ["now"]
        wait_until(lambda: it.wait(0.1) and DelayedQueue(ours.client, "q\x06\x163").size() == 1, "it waits")
        assert it.bodies == ["now"]
        assert in_flight(ours.client) == 0
        (entry,) = DelayedQueue(ours.client, "q\x06\x163").find("the-id")
    assert entry.score == milliseconds(LATER)
    message = json.loads(raw)
    message["properties"]["delayq_due"] = entry.score
    assert json.loads(entry.payload) == message
    assert set(ours.client.zrange("delayq:queues", 0, -1)) == {b"q\x06\x163"}


def test_it_takes_no_credit(stock: Broker, ours: Broker) -> None:
    publish(stock, "q", *range(50), headers=headers())
    publish(stock, "q", "now")
    with worker(ours, "q", prefetch=1) as it:
        assert it.drain(1) == ["now"]
        assert in_flight(ours.client) == 0
    assert DelayedQueue(ours.client, "q").size() == 50


@pytest.mark.parametrize("seconds", [-60, 0.5])
def test_what_is_due_soon_is_delivered(stock: Broker, ours: Broker, seconds: float) -> None:
    eta = datetime.now(timezone.utc) + timedelta(seconds=seconds)
    publish(stock, "q", "soon", headers=headers(eta.isoformat()))
    with worker(ours, "q") as it:
        assert it.drain(1) == ["soon"]
    assert not ours.client.exists("delayq:queues")


def test_what_a_delayed_queue_has_held_is_delivered_whatever_its_eta_says(stock: Broker, ours: Broker) -> None:
    """Its time has come by the server's clock."""
    publish(ours, "q", "delayed", headers=headers())
    ours.transfer_all()
    with worker(ours, "q") as it:
        assert it.drain(1) == ["delayed"]


@pytest.mark.parametrize(
    "odd",
    [
        headers("no time"),
        headers(5),
        headers(id={"a": 1}),
        {"eta": ETA, "task": "note"},
        {"eta": ETA, "id": "the-id"},
    ],
    ids=["no time", "a number", "an odd id", "no id", "no task"],
)
def test_what_is_no_task_with_an_eta_is_delivered(stock: Broker, ours: Broker, odd: dict[str, Any]) -> None:
    publish(stock, "q", "odd", headers=odd)
    with worker(ours, "q") as it:
        assert it.drain(1) == ["odd"]


def test_only_where_a_worker_says_that_it_would_hold_it(stock: Broker, ours: Broker) -> None:
    """Any other consumer takes what it fetches, to send it elsewhere for example; so does `basic_get`."""
    publish(stock, "q", 1, 2, headers=headers())
    with worker(ours) as it:
        message = it.channel.basic_get("q")
        assert message.payload == 1
        message.ack()
        asked = []
        it.channel.connection.program.may_wait = asked.append
        reader = Reader(it.channel, "q")
        assert reader.drain(1) == [2]
        assert asked == [headers()]


def test_without_acknowledgements_it_is_delivered(stock: Broker, ours: Broker) -> None:
    publish(stock, "q", 1, headers=headers())
    with worker(ours, "q", no_ack=True) as it:
        assert it.drain(1) == [1]


def test_with_a_mirror_list_and_a_key_prefix(redis_server: PrivateRedis) -> None:
    options = {"mirror_list": True, "global_keyprefix": "shop:"}
    with with_options(redis_server, **options) as ours, ours.connection.clone() as connection:
        connection.transport.program.may_wait = lambda headers: False
        with broker(redis_server, "redis", DB, global_keyprefix="shop:") as stock:
            publish(stock, "q", 1, headers=headers())
        queue = DelayedQueue(ours.client, "shop:q")
        with worker(ours, "q") as it:
            wait_until(lambda: it.wait(0.1) == [] and queue.size() == 1, "it waits")
        assert ours.client.lrange(queue.keys.delay_list, 0, -1) == [queue.find("the-id")[0].raw]
        assert set(ours.client.zrange("shop:delayq:queues", 0, -1)) == {b"shop:q"}


def test_without_a_connection_for_that_it_goes_back(
    stock: Broker, ours: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has none left. It is fetched again a second later."""
    wait_in_redis = EtaTasks.wait_in_redis

    def once_full(*args: Any) -> bool:
        monkeypatch.setattr(EtaTasks, "wait_in_redis", wait_in_redis)
        raise redis.ConnectionError("max number of clients reached")

    monkeypatch.setattr(EtaTasks, "wait_in_redis", once_full)
    publish(stock, "q", 1, headers=headers())
    with worker(ours, "q") as it:
        wait_until(lambda: it.wait(0.1) == [] and DelayedQueue(ours.client, "q").size() == 1, "it waits")
        assert in_flight(ours.client) == 0


def test_a_server_whose_memory_is_full_has_it_delivered(
    stock: Broker, ours: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    publish(stock, "q", 1, 2, headers=headers())
    with worker(ours, "q", ack=False) as it:
        with out_of_memory(ours.client), caplog.at_level(logging.WARNING):
            for _ in range(2):
                it.channel.connection.client.drain_events(timeout=10)
        assert it.bodies == [1, 2]
        assert caplog.text.count("are held in memory until their eta") == 1
        assert in_flight(ours.client) == 2
        it.acknowledge_all()
    assert in_flight(ours.client) == DelayedQueue(ours.client, "q").size() == 0


def test_a_delayed_queue_that_the_server_refuses_has_it_delivered(stock: Broker, ours: Broker) -> None:
    ours.client.set("delayq:index:{q}", "of a wrong type")
    publish(stock, "q", 1, headers=headers())
    with worker(ours, "q") as it:
        assert it.drain(1) == [1]


def test_what_others_have_taken_over_is_neither_stored_nor_delivered(stock: Broker, ours: Broker) -> None:
    publish(stock, "q", 1, headers=headers())
    with worker(ours, "q") as it:
        transport = it.channel.connection

        def recovered(headers: dict[str, Any]) -> bool:
            (name,) = ours.client.scan_iter("delayq:inflight:*")
            return bool(ours.client.delete(name))

        transport.program.may_wait = recovered
        assert it.wait(0.2) == []
        it.consumer.cancel()
        leases = QueueKeys.of("q").consumers
        wait_until(lambda: not it.wait(0.1) and not ours.client.exists(leases), "it holds nothing, and leaves the list")
    assert DelayedQueue(ours.client, "q").size() == 0


def test_a_lost_connection_is_an_error_and_loses_nothing(
    stock: Broker, ours: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(stock, "q", 1, headers=headers())
    with worker(ours, "q") as it:

        def cut(*args: Any, **kwargs: Any) -> Any:
            raise redis.ConnectionError("cut")

        with monkeypatch.context() as patched:
            patched.setattr("celery_delayq.queue.scripts.offer_fetched", cut)
            with pytest.raises(redis.ConnectionError, match="cut"):
                it.drain(1)
    assert in_flight(ours.client) == 0
    assert ours.client.llen("q") == 1


def test_it_costs_a_command_and_ordinary_messages_none(stock: Broker, ours: Broker) -> None:
    client, delayed = ours.client, DelayedQueue(ours.client, "q")

    def has_moved(count: int) -> bool:
        it.wait(0.1)
        return delayed.size() == count

    with worker(ours, "q") as it:
        publish(stock, "q", "first", headers=headers(id="first"))
        wait_until(lambda: has_moved(1), "it waits in Redis")
        registered_at = client.zscore("delayq:queues", "q")
        publish(stock, "q", *range(20), headers=headers(None))
        client.config_resetstat()
        it.drain(20)
        assert "cmdstat_lpos" not in client.info("commandstats")
        publish(stock, "q", *range(20), headers=headers())
        wait_until(lambda: has_moved(21), "they wait in Redis, too")
        assert client.info("commandstats")["cmdstat_lpos"]["calls"] == 20
        assert client.zscore("delayq:queues", "q") == registered_at


def test_a_second_refusal_is_told_again(stock: Broker, ours: Broker, caplog: pytest.LogCaptureFixture) -> None:
    """In between, the server stored what was given to it."""
    queue = DelayedQueue(ours.client, "q")
    with worker(ours, "q", ack=False) as it, caplog.at_level(logging.WARNING):
        for count in (1, 2):
            ours.client.delete(queue.keys.index)
            ours.client.set(queue.keys.index, "of a wrong type")
            publish(stock, "q", "refused", "too", headers=headers())
            assert it.drain(2 * count) == ["refused", "too"] * count
            ours.client.delete(queue.keys.index)
            publish(stock, "q", "stored", headers=headers())
            wait_until(lambda: it.wait(0.1) and queue.size() == count, "it waits")  # noqa: B023
            assert caplog.text.count("are held in memory until their eta") == count
        it.acknowledge_all()

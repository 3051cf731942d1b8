"""A message that is one delivery short of the limit is delivered alone, so that nothing else dies in its place."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from celery_delayq.queue import scripts
from celery_delayq.queue.call import Call
from celery_delayq.transport import last_delivery
from celery_delayq.transport.messages import CANCELLED_PROPERTY
from celery_delayq.transport.redelivery import ALONE, DELIVERY_COUNT
from tests.brokers import Server
from tests.fetching.reading import bodies_on, publish, queue, reader, with_options
from tests.integration.long_tasks import in_flight
from tests.integration.publishing import Broker
from tests.state import calls
from tests.support import wait_until

pytestmark = pytest.mark.on_cluster

LIMIT = 3


@pytest.fixture
def ours(any_broker: Server) -> Iterator[Broker]:
    with with_options(any_broker, delivery_limit=LIMIT) as ours:
        yield ours


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is offered to others stays so until the worker is idle."""
    monkeypatch.setattr(last_delivery, "OFFER_S", 60)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is offered to others is kept the next time."""
    monkeypatch.setattr(last_delivery, "OFFER_S", 0)


def suspect(ours: Broker, *bodies: Any, deliveries: int = LIMIT - 1, **options: Any) -> None:
    publish(ours, "q", *bodies, headers={"id": "1", "task": "t", DELIVERY_COUNT: deliveries}, **options)


def headers_in_flight(ours: Broker) -> list[dict[str, Any]]:
    """The headers of all messages in flight."""
    keys = list(ours.client.scan_iter("delayq:inflight:*"))
    return [json.loads(raw)["headers"] for key in keys for raw in ours.client.lrange(key, 0, -1)]


def is_alone(ours: Broker) -> bool:
    (headers,) = headers_in_flight(ours)
    return bool(headers.get(ALONE))


def test_nothing_is_fetched_beside_it(ours: Broker) -> None:
    suspect(ours, "suspect")
    publish(ours, "q", "behind", "last")
    with reader(ours, "q", prefetch=4, ack=False) as it:
        assert it.drain(1) == ["suspect"]
        assert it.wait() == ["suspect"]
        assert is_alone(ours)
        assert bodies_on(ours.client) == ["behind", "last"]
        publish(ours, "q", "urgent", priority=0)
        assert it.wait() == ["suspect"]
        it.messages[0].ack()
        it.drain(4)


@pytest.mark.usefixtures("patient")
def test_a_busy_consumer_takes_nothing_else_until_it_is_idle(ours: Broker) -> None:
    publish(ours, "q", "before")
    suspect(ours, "suspect")
    publish(ours, "q", "behind")
    with reader(ours, "q", prefetch=4, ack=False) as it:
        assert it.drain(1) == ["before"]
        assert it.wait() == ["before"]
        assert bodies_on(ours.client) == ["suspect", "behind"]
        it.messages[0].ack()
        assert it.drain(2) == ["before", "suspect"]
        assert it.wait() == ["before", "suspect"]
        assert is_alone(ours)


@pytest.mark.usefixtures("patient")
def test_a_busy_consumer_does_not_wait_for_what_took_the_place_of_a_cancelled_task(ours: Broker) -> None:
    publish(ours, "q", "before")
    suspect(ours, "cancelled", **{CANCELLED_PROPERTY: True})
    publish(ours, "q", "behind")
    with reader(ours, "q", prefetch=4, ack=False) as it:
        assert it.drain(2) == ["before", "behind"]
        wait_until(lambda: in_flight(ours.client) == 2, "it is dropped")


@pytest.mark.usefixtures("patient")
def test_an_idle_consumer_takes_what_a_busy_one_has_put_back(ours: Broker) -> None:
    publish(ours, "q", "before")
    with reader(ours, "q", prefetch=4, ack=False) as busy, reader(ours, "q", prefetch=4, ack=False) as idle:
        busy.drain(1)
        suspect(ours, "suspect")
        publish(ours, "q", "behind")
        assert busy.wait() == ["before"]
        assert idle.drain(1) == ["suspect"]
        assert idle.wait() == ["suspect"]
        assert bodies_on(ours.client) == ["behind"]
        assert sum(ALONE in headers for headers in headers_in_flight(ours)) == 1


@pytest.mark.usefixtures("hasty")
def test_one_of_two_busy_consumers_keeps_it_and_the_other_goes_on(ours: Broker) -> None:
    publish(ours, "q", "first", "second")
    with reader(ours, "q", prefetch=1, ack=False) as one, reader(ours, "q", prefetch=1, ack=False) as other:
        one.drain(1)
        other.drain(1)
        for it in (one, other):
            it.consumer.qos(prefetch_count=4)
        suspect(ours, "suspect")
        publish(ours, "q", "behind")
        assert one.wait() == ["first"]
        assert bodies_on(ours.client) == ["behind"]
        assert other.drain(2) == ["second", "behind"]
        one.messages[0].ack()
        assert one.drain(2) == ["first", "suspect"]


@pytest.mark.usefixtures("hasty")
def test_what_is_kept_goes_back_at_the_end(ours: Broker) -> None:
    publish(ours, "q", "before")
    suspect(ours, "suspect")
    with reader(ours, "q", prefetch=4, ack=False) as it:
        it.drain(1)
        it.wait()
        assert in_flight(ours.client) == 2
    assert bodies_on(ours.client) == ["before", "suspect"]


@pytest.mark.usefixtures("hasty")
def test_a_consumer_that_is_busy_for_long_goes_on_and_the_delivery_does_not_count(
    ours: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(last_delivery, "KEEP_S", 0.2)
    publish(ours, "q", "long")
    suspect(ours, "suspect")
    publish(ours, "q", "behind")
    with reader(ours, "q", prefetch=4, ack=False) as it:
        assert it.drain(3) == ["long", "suspect", "behind"]
        assert not any(ALONE in headers for headers in headers_in_flight(ours))


@pytest.mark.parametrize("how", ["closed", "recovered", "requeued"])
def test_it_is_not_counted_if_it_is_put_back(ours: Broker, how: str) -> None:
    suspect(ours, "suspect")
    with reader(ours, "q", prefetch=1, ack=False) as it:
        it.drain(1)
        assert is_alone(ours)
        if how == "recovered":
            it.consumer.cancel()
            it.consumer.recover(requeue=True)
        elif how == "requeued":
            it.consumer.cancel()
            it.messages[0].requeue()
    (raw,) = ours.client.lrange("q", 0, -1)
    headers = json.loads(raw)["headers"]
    assert (headers[DELIVERY_COUNT], headers.get(ALONE)) == (LIMIT - 1, None)


def test_one_after_the_other_is_delivered_alone(ours: Broker) -> None:
    suspect(ours, *range(4))
    publish(ours, "q", 4)
    with reader(ours, "q", prefetch=4, ack=False) as it:
        for number in range(4):
            assert it.drain(number + 1) == list(range(number + 1))
            assert it.wait(0.1) == list(range(number + 1))
            assert is_alone(ours)
            it.messages[number].ack()
        assert it.drain(5) == list(range(5))
        assert not is_alone(ours)


def test_what_begins_beside_it_takes_the_mark_off(ours: Broker) -> None:
    suspect(ours, "suspect")
    publish(ours, "q", "behind")
    with reader(ours, "q", prefetch=4, ack=False) as it:
        it.drain(1)
        it.channel.on_begin(it.messages[0].delivery_tag)
        assert is_alone(ours), "it may begin itself"
        it.channel.on_begin("another")
        assert not is_alone(ours)
        assert it.drain(2) == ["suspect", "behind"]
        it.acknowledge_all()
    assert in_flight(ours.client) == 0
    assert not ours.client.exists("q")


def test_what_was_acknowledged_is_not_written_any_more(ours: Broker) -> None:
    suspect(ours, "suspect")
    with reader(ours, "q", prefetch=4, ack=False) as it:
        it.drain(1)
        it.messages[0].ack()
        it.channel.on_begin("another")
    assert in_flight(ours.client) == 0
    assert not ours.client.exists("q")


def test_it_may_be_acknowledged_while_something_begins_beside_it(ours: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """In another thread, while the mark is taken off."""
    suspect(ours, "suspect")
    with reader(ours, "q", prefetch=4, ack=False) as it:
        it.drain(1)
        threads: list[threading.Thread] = []
        replace = scripts.replace

        def slowly(*args: Any, **kwargs: Any) -> Call[bool]:
            threads.append(threading.Thread(target=it.messages[0].ack))
            threads[0].start()
            threads[0].join(0.2)
            assert threads[0].is_alive(), "it has to wait"
            return replace(*args, **kwargs)

        monkeypatch.setattr(scripts, "replace", slowly)
        it.channel.on_begin("another")
        threads[0].join()
        wait_until(lambda: in_flight(ours.client) == 0, "it is acknowledged")


@pytest.mark.parametrize("limit", [0, 1, LIMIT, 20])
def test_what_was_never_in_flight_at_a_crash_is_no_suspect(any_broker: Server, limit: int) -> None:
    with with_options(any_broker, delivery_limit=limit) as ours:
        publish(ours, "q", 1, 2, 3)
        with reader(ours, "q", prefetch=3, ack=False) as it:
            assert it.drain(3) == [1, 2, 3]


def test_the_eta_of_a_stock_producer_does_not_isolate_a_worker(ours: Broker) -> None:
    """It would wait in the worker, and the worker with it."""
    headers = {"id": "1", "task": "t", "eta": "2040-01-01T00:00:00+00:00", DELIVERY_COUNT: LIMIT - 1}
    message = {"body": '"far"', "content-type": "application/json", "content-encoding": "utf-8", "headers": headers}
    properties = {"delivery_tag": "1", "delivery_info": {}}
    ours.client.lpush("q", json.dumps({**message, "properties": properties}))
    publish(ours, "q", "behind")
    with reader(ours, "q", prefetch=2, ack=False) as it:
        assert it.drain(2) == ["far", "behind"]


def test_get_marks_it_where_nothing_else_is_held(ours: Broker) -> None:
    suspect(ours, 1, 2)
    (first, second) = (queue("q")(ours.channel).get() for _ in range(2))
    assert [first.payload, second.payload] == [1, 2]
    assert sorted(bool(headers.get(ALONE)) for headers in headers_in_flight(ours)) == [False, True]
    first.ack()
    second.ack()
    wait_until(lambda: in_flight(ours.client) == 0, "both are acknowledged")


def test_ordinary_messages_cost_no_further_command(ours: Broker) -> None:
    publish(ours, "q", *range(100))
    ours.client.config_resetstat()
    with reader(ours, "q", prefetch=10) as it:
        it.drain(100)
        assert calls(ours.client, "evalsha") + calls(ours.client, "eval") <= 40

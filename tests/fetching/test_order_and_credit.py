"""In which order messages come, and how many."""

from __future__ import annotations

import socket
import threading
import time
from bisect import bisect
from collections import Counter

import pytest

from celery_delayq.transport import fetcher, rounds
from tests.brokers import Server
from tests.fetching.reading import fetching, publish, reader, size, with_options
from tests.integration.long_tasks import in_flight
from tests.integration.publishing import Broker
from tests.support import wait_until

pytestmark = pytest.mark.on_cluster

_ORDER = pytest.mark.one_server("nodes are asked in turn: an order of queues holds only among those of one node")

# -- order


@_ORDER
@pytest.mark.parametrize("prefetch", [1, 4, 0])
@pytest.mark.parametrize(
    ("strategy", "expected"),
    [("priority", ["b"] * 40 + ["a"] * 40), ("sorted", ["a"] * 40 + ["b"] * 40)],
)
def test_a_queue_that_is_preferred_is_emptied_first(
    any_broker: Server, strategy: str, expected: list[str], prefetch: int
) -> None:
    with with_options(any_broker, queue_order_strategy=strategy) as ours:
        publish(ours, "a", *["a"] * 40)
        publish(ours, "b", *["b"] * 40)
        with reader(ours, "b", "a", prefetch=prefetch) as it:
            assert it.drain(80) == expected


@pytest.mark.parametrize("prefetch", [1, *(pytest.param(prefetch, marks=_ORDER) for prefetch in (2, 4, 0))])
def test_round_robin_gives_each_queue_its_share(
    any_broker: Server, prefetch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "LATE_ANSWER_S", 30.0)  # on a busy machine, one node may be asked instead of the other
    with with_options(any_broker, queue_order_strategy="round_robin") as ours:
        publish(ours, "a", *["a"] * 60)
        publish(ours, "b", *["b"] * 60)
        with reader(ours, "a", "b", prefetch=prefetch) as it:
            received = it.drain(120)
    turn = max(prefetch, 2) if prefetch else 20
    assert all(Counter(received[at : at + turn]) == {"a": turn / 2, "b": turn / 2} for at in range(0, 120, turn))


@pytest.mark.parametrize("steps", [None, [0, 5], list(range(10))])
def test_a_higher_priority_comes_first(any_broker: Server, steps: list[int] | None) -> None:
    with with_options(any_broker, **({"priority_steps": steps} if steps else {})) as ours:
        published = [9, 0, 5, 1, 9, 4, 0, 6]
        for priority in published:
            publish(ours, "q", priority, priority=priority)
        expected = sorted(published, key=lambda priority: bisect(steps or [0, 3, 6, 9], priority))
        with reader(ours, "q", prefetch=1) as it:
            assert it.drain(8) == expected


@pytest.mark.parametrize("prefetch", [1, 4, 0])
def test_a_higher_priority_overtakes_a_backlog_that_is_being_fetched(ours: Broker, prefetch: int) -> None:
    publish(ours, "q", *["low"] * 100, priority=9)
    with reader(ours, "q", prefetch=prefetch) as it:
        it.drain(10)
        already = len(it.messages)
        publish(ours, "q", "high", priority=0)
        received = it.drain(101)
    assert received.index("high") <= already + (prefetch or 20)


@_ORDER
def test_a_priority_of_one_queue_overtakes_another_queue(ours: Broker) -> None:
    publish(ours, "a", *["low"] * 10, priority=9)
    publish(ours, "b", *["high"] * 10, priority=3)
    with reader(ours, "a", "b", prefetch=1) as it:
        assert it.drain(20) == ["high"] * 10 + ["low"] * 10


# -- how many


@pytest.mark.parametrize("prefetch", [1, 3])
@pytest.mark.parametrize("priorities", [(0,), (0, 9)])
def test_no_more_than_the_prefetch_count_is_taken_from_the_broker_lists(
    ours: Broker, prefetch: int, priorities: tuple[int, ...]
) -> None:
    with reader(ours, "q", prefetch=prefetch, ack=False) as it:
        assert it.wait(0.1) == []  # it waits on the server now, on every list
        for number in range(10):
            publish(ours, "q", number, priority=priorities[number % len(priorities)])
        it.drain(prefetch)
        assert len(it.wait()) == prefetch
        assert size(ours) == 10 - prefetch
        assert in_flight(ours.client) == prefetch
        it.messages[0].ack()
        assert len(it.wait()) == prefetch + 1


def test_without_a_prefetch_count_everything_is_delivered(ours: Broker) -> None:
    publish(ours, "q", *range(100))
    with reader(ours, "q", prefetch=0, ack=False) as it:
        assert it.drain(100) == list(range(100))
        publish(ours, "q", *range(100, 200))
        assert it.drain(200) == list(range(200))


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool may be busy for as long as it likes."""
    monkeypatch.setattr(fetcher, "PATIENCE_S", 60)


@pytest.mark.usefixtures("patient")
def test_a_busy_pool_is_given_more_when_as_much_can_be_fetched_as_waits_for_it(ours: Broker) -> None:
    publish(ours, "q", *range(20))
    with reader(ours, "q", prefetch=8, ack=False) as it:
        it.drain(8)
        it.channel.connection.program.tasks_waiting = lambda: sum(not message.acknowledged for message in it.messages)
        for number in range(3):
            it.messages[number].ack()
            assert it.wait(0.05) == list(range(8))
        assert in_flight(ours.client) == 5
        it.messages[3].ack()
        assert it.drain(12) == list(range(12))
        assert in_flight(ours.client) == 8


def test_a_pool_that_is_busy_for_long_is_given_what_the_prefetch_count_allows(ours: Broker) -> None:
    publish(ours, "q", *range(20))
    with reader(ours, "q", prefetch=8, ack=False) as it:
        it.drain(8)
        it.channel.connection.program.tasks_waiting = lambda: 1000
        it.messages[0].ack()
        assert it.drain(9) == list(range(9))
        assert in_flight(ours.client) == 8


@pytest.mark.one_server("each node has a connection that fetches")
def test_replies_that_nobody_has_read_yet_do_no_harm_to_a_health_check(
    any_broker: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        with_options(any_broker, health_check_interval=1) as ours,
        reader(ours, "q", prefetch=8, ack=False) as it,
    ):
        it.wait(0.1)
        publish(ours, "q", *range(8))
        it.drain(8)
        connection = fetching(ours.client)["id"]
        for message in it.messages[:4]:
            message.ack()
            time.sleep(0.5)  # in all, longer than the interval
        publish(ours, "q", 8)
        assert it.drain(9) == list(range(9))
        assert fetching(ours.client)["id"] == connection
        assert in_flight(ours.client) == 5
    assert not caplog.records


@pytest.mark.usefixtures("patient")
def test_what_became_of_acknowledgements_is_looked_at_where_nothing_is_fetched(ours: Broker) -> None:
    publish(ours, "q", *range(4))
    with reader(ours, "q", prefetch=4, ack=False) as it:
        it.drain(4)
        it.channel.connection.program.tasks_waiting = lambda: 1000
        done, *others = [message.delivery_tag for message in it.messages]
        it.messages[0].ack()
        wait_until(lambda: it.wait(0.05) and not it.channel.is_held(done), "the reply is read", 10)
        assert all(map(it.channel.is_held, others))


def test_without_a_prefetch_count_a_busy_pool_is_given_everything(ours: Broker) -> None:
    publish(ours, "q", *range(60))
    with reader(ours, "q", prefetch=0, ack=False) as it:
        it.channel.connection.program.tasks_waiting = lambda: 1000
        assert it.drain(60) == list(range(60))


def test_the_prefetch_count_changes_at_run_time(ours: Broker) -> None:
    with reader(ours, "q", prefetch=2, ack=False) as it:
        publish(ours, "q", *range(20))
        assert len(it.wait()) == 2
        it.consumer.qos(prefetch_count=5)
        assert len(it.wait()) == 5
        it.consumer.qos(prefetch_count=3)
        for message in it.messages[:3]:
            message.ack()
        assert len(it.wait()) == 6
        assert size(ours) == 14
        it.consumer.qos(prefetch_count=0)
        assert it.drain(20) == list(range(20))


def test_two_idle_consumers_of_one_message_each_share_a_burst(ours: Broker) -> None:
    with reader(ours, "q", prefetch=1, ack=False) as one, reader(ours, "q", prefetch=1, ack=False) as other:
        one.wait(0.1)
        other.wait(0.1)
        publish(ours, "q", 1, 2, priority=0)
        publish(ours, "q", 3, priority=9)
        one.drain(1)
        other.drain(1)
        assert len({*one.wait(), *other.wait()}) == 2
        assert size(ours) == 1


# -- drain_events


def test_drain_events_delivers_one_message_a_call(ours: Broker) -> None:
    publish(ours, "q", *range(50))
    with reader(ours, "q", prefetch=0) as it:
        for number in range(50):
            it.channel.connection.client.drain_events(timeout=5)
            assert len(it.messages) == number + 1


@pytest.mark.parametrize("timeout", [0.05, 0.4, 1.7])
def test_drain_events_times_out_in_time(ours: Broker, timeout: float) -> None:
    with reader(ours, "q") as it:
        it.wait(0.1)
        begin = time.monotonic()
        with pytest.raises(socket.timeout):
            it.channel.connection.client.drain_events(timeout=timeout)
        assert timeout * 0.9 <= time.monotonic() - begin < timeout + 1.1


def test_drain_events_times_out_when_there_is_no_credit(ours: Broker) -> None:
    publish(ours, "q", 1, 2)
    with reader(ours, "q", prefetch=1, ack=False) as it:
        it.drain(1)
        with pytest.raises(socket.timeout):
            it.channel.connection.client.drain_events(timeout=0.2)
        assert it.bodies == [1]


def test_drain_events_without_a_timeout_waits_for_a_message(ours: Broker) -> None:
    with reader(ours, "q") as it:
        later = threading.Timer(1.5, publish, (ours, "q", "late"))
        later.start()
        it.channel.connection.client.drain_events()
        later.join()
        assert it.bodies == ["late"]

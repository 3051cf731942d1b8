"""A delayed message waits for exactly the list, and as exactly the message, that kombu would have pushed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from kombu import Exchange, Queue

from celery_delayq import InvalidEta
from celery_delayq.inspector.broker_lists import BrokerLists
from celery_delayq.queue.registry import registered
from examples.private_redis import PrivateRedis
from tests.brokers import ClusterServer, Server
from tests.integration.publishing import (
    DIRECT,
    EARLIER,
    LATER,
    Broker,
    broker,
    brokers,
    milliseconds,
    without_what_differs,
)
from tests.support import wait_until

pytestmark = pytest.mark.on_cluster

Pair = tuple[Broker, Broker]


@pytest.fixture
def pair(redis_server: PrivateRedis, any_broker: Server) -> Iterator[Pair]:
    """kombu's broker, which is always one server, and ours."""
    with brokers(redis_server, any_broker) as both:
        yield both


@pytest.fixture
def ours(any_broker: Server) -> Iterator[Broker]:
    with broker(any_broker, "delayq", 2) as ours:
        yield ours


def named_by_kombu(found: Mapping[str, Any], pair: Pair, keyprefix: str = "") -> dict[str, Any]:
    """What lists have, under the names that kombu gives them: on a cluster, those for priorities have others."""
    stock, ours = pair
    lists = map(BrokerLists(ours.channel).parse, found)
    suffixes = {it: f"{stock.channel.sep}{it.priority}" if it.priority else "" for it in lists}
    return {f"{keyprefix}{it.queue}{suffix}": found[it.name] for it, suffix in suffixes.items()}


def dumped(ours: Broker) -> dict[str, Any]:
    """The whole database but for the registry, with kombu's names of its bindings."""
    found = {name.replace("{_kombu.binding}", "_kombu.binding"): value for name, value in ours.dump().items()}
    return {name: value for name, value in found.items() if not name.endswith("delayq:queues")}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"priority_steps": [0, 2, 5, 8], "sep": ":"},
        {"priority_steps": list(range(10)), "queue_order_strategy": "priority"},
        {"global_keyprefix": "shop:", "sep": "|"},
        {"global_keyprefix": "{shop}"},
    ],
    ids=str,
)
def test_it_waits_for_the_list_that_kombu_would_push_to(
    redis_server: PrivateRedis, any_broker: Server, options: dict[str, Any]
) -> None:
    keyprefix = options.get("global_keyprefix", "")
    with brokers(redis_server, any_broker, **options) as pair:
        stock, ours = pair
        for priority in (None, 0, 1, 2, 3, 5, 6, 9):
            for to in (stock, ours):
                to.publish(((priority,), {}, {}), eta=LATER.isoformat(), priority=priority)
        expected = stock.lists()
        assert len(expected) > 1
        waiting = named_by_kombu(ours.waiting(keyprefix), pair, keyprefix)
        assert {name: len(messages) for name, messages in waiting.items()} == {
            name: len(messages) for name, messages in expected.items()
        }
        assert ours.lists() == {}
        ours.transfer_all(keyprefix)
        lists = named_by_kombu(ours.lists(), pair, keyprefix)
        assert {name: [without_what_differs(m) for m in messages] for name, messages in lists.items()} == {
            name: [without_what_differs(m) for m in messages] for name, messages in expected.items()
        }


@pytest.mark.parametrize(
    "options",
    [
        {"serializer": "json"},
        {"serializer": "pickle"},
        {"compression": "zlib"},
        {"serializer": "pickle", "compression": "bzip2", "priority": 2},
        {"delivery_mode": 1, "reply_to": "me", "correlation_id": "c", "expiration": 30},
        {"body": ([[], {}, 2**60, "é\x00\u2028"], {"a": []}, {"chain": None})},
    ],
    ids=str,
)
def test_the_message_is_the_one_that_kombu_would_push(pair: Pair, options: dict[str, Any]) -> None:
    stock, ours = pair
    for to in pair:
        to.publish(eta=LATER.isoformat(), **options)
    ((due_ms, message),) = ours.waiting()["tasks"]
    (expected,) = stock.lists()["tasks"]
    assert due_ms == milliseconds(LATER)
    assert message["properties"]["delayq_due"] == due_ms
    assert without_what_differs(message) == without_what_differs(expected)
    assert set(message["properties"]) - set(expected["properties"]) == {"delayq_due"}
    assert list(message) == list(expected)


NOT_DELAYED = {
    "no eta": {"task": "note", "id": "i", "eta": None},
    "no eta header": {"task": "note", "id": "i"},
    "past eta": {"task": "note", "id": "i", "eta": EARLIER.isoformat()},
    "naive past eta": {"task": "note", "id": "i", "eta": EARLIER.replace(tzinfo=None).isoformat()},
    "no task": {"id": "i", "eta": LATER.isoformat()},
    "no id": {"task": "note", "eta": LATER.isoformat()},
    "protocol 1": {},
}


@pytest.mark.parametrize("headers", NOT_DELAYED.values(), ids=NOT_DELAYED)
def test_any_other_message_goes_byte_for_byte_where_kombu_puts_it(pair: Pair, headers: dict[str, Any]) -> None:
    body = {"task": "note", "id": "i", "args": [], "kwargs": {}, "eta": LATER.isoformat()}
    for to in pair:
        to.publish(body, headers=dict(headers), priority=4)
    stock, ours = pair
    assert len(stock.lists()) == 1
    assert named_by_kombu(dumped(ours), pair) == stock.dump()


def test_a_fanout_message_is_broadcast_at_once_whatever_its_eta(pair: Pair, any_broker: Server) -> None:
    fanout = Queue("everyone", Exchange("everyone", "fanout"))
    received = []
    for to, db in zip(pair, (1, 0 if isinstance(any_broker, ClusterServer) else 2), strict=True):
        with to.client.pubsub() as listener:
            listener.psubscribe(f"/{db}.*")
            wait_until(lambda: listener.get_message(timeout=1), "the confirmation")
            to.publish(to=fanout, eta=LATER.isoformat())
            heard = wait_until(lambda: listener.get_message(timeout=1), "the broadcast")
            channel, message = heard["channel"].decode(), json.loads(heard["data"])
            received.append((channel.replace(f"/{db}.", "/"), message))
    (stock_channel, stock_message), (our_channel, our_message) = received
    assert our_channel == stock_channel
    assert "delayq_due" not in our_message["properties"]
    assert without_what_differs(our_message) == without_what_differs(stock_message)
    assert dumped(pair[1]) == pair[0].dump()


@pytest.mark.parametrize("kind", ["direct", "topic"])
def test_it_waits_for_every_list_that_the_exchange_would_push_to(pair: Pair, kind: str) -> None:
    exchange = Exchange("orders", kind)
    key = "orders.unpaid" if kind == "direct" else "orders.#"
    queues = [Queue(name, exchange, routing_key=key) for name in ("bills", "stock")]
    for to in pair:
        to.publish(to=queues, exchange=exchange, routing_key="orders.unpaid", eta=LATER.isoformat())
    stock, ours = pair
    assert ours.waiting().keys() == stock.lists().keys() == {"bills", "stock"}
    ours.transfer_all()
    for name, messages in stock.lists().items():
        assert [without_what_differs(m) for m in ours.lists()[name]] == [without_what_differs(m) for m in messages]


@pytest.mark.parametrize(
    ("eta", "due"),
    [
        (LATER.isoformat(), LATER),
        (LATER.replace(tzinfo=None).isoformat(), LATER),
        (LATER.astimezone(timezone(timedelta(hours=5, minutes=30))).isoformat(), LATER),
        (LATER.isoformat().replace("+00:00", "Z"), LATER),
        ((LATER + timedelta(microseconds=1)).isoformat(), LATER + timedelta(milliseconds=1)),
        ((LATER + timedelta(microseconds=999)).isoformat(), LATER + timedelta(milliseconds=1)),
    ],
    ids=["aware", "naive is UTC", "another zone", "Z", "rounded up", "rounded up by little"],
)
def test_it_is_due_at_its_eta_in_whole_milliseconds_and_never_earlier(ours: Broker, eta: str, due: datetime) -> None:
    ours.publish(eta=eta)
    ((due_ms, _message),) = ours.waiting()["tasks"]
    assert due_ms == milliseconds(due)


@pytest.mark.parametrize(
    "eta",
    [
        datetime.now(timezone.utc).replace(microsecond=0) + timedelta(days=3653),
        datetime.max.replace(microsecond=999000, tzinfo=timezone.utc),
    ],
)
def test_a_far_eta_waits_and_delays_nothing_else(ours: Broker, eta: datetime) -> None:
    ours.publish(eta=eta.isoformat())
    ours.publish(eta=LATER.isoformat())
    due_ms = [due_ms for due_ms, _message in ours.waiting()["tasks"]]
    assert due_ms == [
        milliseconds(LATER),
        (eta - datetime.fromtimestamp(0, timezone.utc)) / timedelta(milliseconds=1),
    ]


@pytest.mark.parametrize(
    "eta", ["tomorrow", "2030-13-01T00:00:00", "12:00", 1893456000, 1.5, ["2030"], {"in": 3}, True]
)
def test_an_eta_that_is_not_a_time_is_refused_and_nothing_is_stored(ours: Broker, eta: object) -> None:
    ours.publish(eta=None)  # declares the queue
    before = ours.dump()
    with pytest.raises(InvalidEta, match="eta of task note must be a datetime"):
        ours.publish(eta=eta)
    assert ours.dump() == before


def test_a_delayed_message_survives_losing_every_script(ours: Broker) -> None:
    ours.publish(((1,), {}, {}), eta=LATER.isoformat())
    ours.client.script_flush()
    ours.publish(((2,), {}, {}), eta=LATER.isoformat())
    assert len(ours.waiting()["tasks"]) == 2


def test_the_same_message_published_again_is_stored_once(ours: Broker) -> None:
    """Each time with the same delivery tag. A caller who missed the reply may publish again."""
    for _ in range(3):
        ours.publish(eta=LATER.isoformat())
    ((_, message),) = ours.waiting()["tasks"]
    ours.transfer_all()
    ours.publish(eta=LATER.isoformat())
    ((_, again),) = ours.waiting()["tasks"]
    assert again == message


@pytest.mark.parametrize(
    "other",
    [
        {"body": ((2,), {}, {}), "eta": LATER.isoformat()},
        {"headers": {"task": "note", "id": "another", "eta": LATER.isoformat()}},
        {"headers": {"task": "note", "id": "the-id", "eta": (LATER + timedelta(seconds=1)).isoformat()}},
    ],
    ids=["body", "id", "eta"],
)
def test_another_message_has_another_delivery_tag(ours: Broker, other: dict[str, Any]) -> None:
    ours.publish(eta=LATER.isoformat())
    ours.publish(**other)
    (_, first), (_, second) = ours.waiting()["tasks"]
    assert first["properties"]["delivery_tag"] != second["properties"]["delivery_tag"]


def test_a_refused_offer_is_an_error_of_the_connection_and_stores_nothing(ours: Broker) -> None:
    ours.client.set("redisson_delay_queue_timeout:{tasks}", "of another type")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        ours.publish(eta=LATER.isoformat())
    assert ours.lists() == {}


def test_it_is_offered_by_one_script_after_the_queue_is_known(ours: Broker) -> None:
    ours.publish(eta=LATER.isoformat())
    ours.client.config_resetstat()
    for number in range(5):
        ours.publish(((number,), {}, {}), eta=LATER.isoformat())
    stats = ours.client.info("commandstats")
    assert stats["cmdstat_evalsha"]["calls"] == 5
    assert "cmdstat_lpush" not in stats
    assert registered(ours.client) == {"tasks"}


class TestMirrorList:
    def test_it_is_written_where_asked_for_and_emptied_by_the_transfer(self, any_broker: Server) -> None:
        with broker(any_broker, "delayq", 2, mirror_list=True) as ours:
            ours.publish(eta=LATER.isoformat())
            raw = ours.client.zrange("redisson_delay_queue_timeout:{tasks}", 0, -1)
            assert ours.client.lrange("redisson_delay_queue:{tasks}", 0, -1) == raw
            ours.client.zadd("redisson_delay_queue_timeout:{tasks}", {raw[0]: 1})
            ours.channel.delayed_queue("tasks").transfer()
            assert ours.client.exists("redisson_delay_queue:{tasks}") == 0
            assert len(ours.lists()["tasks"]) == 1


class TestBatch:
    """`Producer.batch` of kombu 5.7 sends many messages in one pipeline."""

    @pytest.mark.parametrize("keyprefix", ["", "shop:"])
    @pytest.mark.parametrize("known", [True, False], ids=["script known", "script unknown"])
    def test_delayed_and_other_messages_of_a_batch_go_where_they_belong(
        self, any_broker: Server, keyprefix: str, known: bool
    ) -> None:
        with broker(any_broker, "delayq", 2, global_keyprefix=keyprefix) as ours:
            producer = ours.connection.Producer(ours.channel)
            if not hasattr(producer, "batch"):
                pytest.skip("Producer.batch came with kombu 5.7")
            if not known:
                ours.client.script_flush()
            with producer.batch():
                for number in range(10):
                    producer.publish(
                        ((number,), {}, {}),
                        headers={
                            "task": "note",
                            "id": str(number),
                            "eta": LATER.isoformat() if number % 2 else None,
                        },
                        exchange=DIRECT.exchange,
                        routing_key="tasks",
                        declare=[DIRECT],
                    )
                assert ours.client.exists(f"{keyprefix}tasks") == 0
            name = f"{keyprefix}tasks"
            waiting = ours.waiting(keyprefix)[name]
            assert [m["headers"]["id"] for _, m in waiting] == ["1", "3", "5", "7", "9"]
            pushed = ours.lists()[name]
            assert [m["headers"]["id"] for m in pushed] == ["8", "6", "4", "2", "0"]
            assert ours.channel.delayed_queue(name).cancel("3") == 1

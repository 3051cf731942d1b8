"""DelayedQueue with every kind of client; what the scripts do in detail is tested in tests/lua."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from redis.client import NEVER_DECODE

from celery_delayq import DelayedQueue, Entry
from celery_delayq.basics.errors import InvalidEntry
from celery_delayq.queue import codec, scripts
from celery_delayq.queue.call import load
from celery_delayq.queue.entry import pairs
from celery_delayq.queue.registry import registered
from examples.private_redis import PrivateRedis
from tests.state import FAR, now_ms, now_us

CLIENTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "decoding": {"decode_responses": True},
    "latin1": {"decode_responses": True, "encoding": "latin-1"},
    "resp2": {"protocol": 2},
    "resp3": {"protocol": 3},
    "resp3-decoding": {"protocol": 3, "decode_responses": True},
}


@pytest.fixture(params=CLIENTS.values(), ids=CLIENTS)
def any_client(
    request: pytest.FixtureRequest, redis_server: PrivateRedis, client: redis.Redis
) -> Iterator[redis.Redis]:
    """A client with the options that users have; the database is empty."""
    with redis_server.client(**request.param) as any_client:
        yield any_client


@pytest.fixture
def queue(any_client: redis.Redis) -> DelayedQueue:
    return DelayedQueue(any_client, "orders")


@pytest.fixture
def plain(client: redis.Redis) -> DelayedQueue:
    return DelayedQueue(client, "orders")


class TestWithAnyClient:
    @pytest.mark.parametrize("payload", [b"", b"pay", bytes(range(256)), b"\xff" * 70_000])
    def test_a_message_comes_out_as_it_went_in(self, queue: DelayedQueue, client: redis.Redis, payload: bytes) -> None:
        queue.offer(payload, due_ms=1)
        assert [entry.payload for entry in queue.peek()] == [payload]
        assert queue.transfer().moved == 1
        assert client.lrange("orders", 0, -1) == [payload]
        assert queue.take(0) == payload
        assert client.llen("orders") == queue.size() == 0

    def test_peek_shows_the_next_ones_in_order(self, queue: DelayedQueue) -> None:
        for due_ms in (FAR + 2, FAR, FAR + 1):
            queue.offer(b"%d" % due_ms, due_ms=due_ms, message_id=str(due_ms))
        entries = queue.peek(2)
        assert [(entry.due_ms, entry.payload) for entry in entries] == [
            (FAR, b"%d" % FAR),
            (FAR + 1, b"%d" % (FAR + 1)),
        ]
        offer_id = codec.OfferId.from_bytes(entries[0].id)
        assert offer_id
        assert offer_id.message_key == codec.message_key(str(FAR))
        assert codec.unpack(entries[0].raw) == (entries[0].id, entries[0].payload)
        assert queue.size() == 3

    def test_cancel(self, queue: DelayedQueue, client: redis.Redis) -> None:
        message_id = queue.offer(b"pay", due_ms=FAR)
        other = queue.offer(b"other", due_ms=FAR)
        assert queue.cancel(message_id) == 1
        assert queue.cancel(message_id) == queue.cancel("never offered") == 0
        assert [entry.payload for entry in queue.peek(9)] == [b"other"]
        assert queue.cancel(other) == 1
        assert client.keys() == [b"delayq:queues"]

    def test_transfer_tells_what_it_did_and_saw(self, queue: DelayedQueue) -> None:
        before = now_ms(queue.client)
        queue.offer(b"due", due_ms=1)
        queue.offer(b"later", due_ms=FAR)
        queue.client.zadd(queue.keys.timeout_set, {"garbage": 2})
        done = queue.transfer()
        assert (done.moved, done.dead, done.head_due_ms) == (1, 1, FAR)
        assert (done.punctual, done.last_sign_ms) == ("", 0)
        assert before <= done.now_us // 1000 <= now_ms(queue.client)

    def test_a_loop_takes_part_in_who_is_punctual(self, queue: DelayedQueue) -> None:
        queue.offer(b"due", due_ms=1)
        done = queue.transfer(transferrer="me:1", grace_ms=250)
        assert done.punctual == "me:1"
        assert done.last_sign_ms == done.now_us // 1000
        assert queue.resign("someone else") is False
        assert queue.resign("me:1") is True
        assert queue.resign("me:1") is False

    @pytest.mark.parametrize(("score", "due_ms"), [(0, 0), (1.5, 2), ("-inf", 0), ("inf", None)])
    def test_a_score_in_ms(self, any_client: redis.Redis, score: Any, due_ms: int | None) -> None:
        any_client.zadd("scores", {"entry": score})
        ((_, found),) = pairs(
            any_client.execute_command("ZRANGE", "scores", 0, 0, "WITHSCORES", **{NEVER_DECODE: True})
        )
        assert scripts.score_to_ms(found) == due_ms

    def test_the_registry(self, queue: DelayedQueue, any_client: redis.Redis) -> None:
        queue.offer(b"pay", due_ms=FAR)
        DelayedQueue(any_client, "refunds", keyprefix="shop.").offer(b"", due_ms=FAR)
        any_client.zadd("delayq:queues", {"": FAR, b"\xff": FAR})
        assert registered(any_client) == {"orders"}
        assert registered(any_client, "shop.") == {"refunds"}


class TestOffer:
    def test_makes_an_id_where_none_is_given(self, plain: DelayedQueue) -> None:
        ids = {plain.offer(b"pay", due_ms=FAR) for _ in range(20)}
        assert len(ids) == 20
        assert [plain.cancel(message_id) for message_id in ids] == [1] * 20

    @pytest.mark.parametrize("message_id", ["", "a", "ä€😀" * 500, "\x00\n{}", "\ud800"])
    def test_takes_any_text_for_an_id(self, plain: DelayedQueue, message_id: str) -> None:
        assert plain.offer(b"pay", due_ms=FAR, message_id=message_id) == message_id
        assert plain.cancel(message_id + "x") == 0
        assert plain.cancel(message_id) == 1

    @pytest.mark.parametrize("delay_s", [0, 0.0004, 0.25, 3600, 315_360_000])
    def test_a_delay_counts_from_now_by_the_server(
        self, plain: DelayedQueue, client: redis.Redis, delay_s: float
    ) -> None:
        delay_us = round(delay_s * 1000) * 1000
        for message_id in "abcdefgh":  # each begins at another microsecond
            before_us = now_us(client)
            plain.offer(b"pay", delay_s=delay_s, message_id=message_id)
            (entry,) = plain.find(message_id)
            assert before_us + delay_us <= entry.due_ms * 1000 <= now_us(client) + 1000 + delay_us

    @pytest.mark.parametrize(
        "times",
        [
            {},
            {"due_ms": None, "delay_s": None},
            {"due_ms": FAR, "delay_s": 1},
            {"due_ms": -1},
            {"delay_s": -0.001},
            {"delay_s": math.nan},
            {"delay_s": math.inf},
            {"due_ms": 2**53},
            {"due_ms": 1.5},
            {"due_ms": math.nan},
            {"delay_s": 1e13},
        ],
    )
    def test_refuses_other_times_and_stores_nothing(
        self, plain: DelayedQueue, client: redis.Redis, times: dict[str, Any]
    ) -> None:
        with pytest.raises((ValueError, TypeError), match=r"offer|float"):
            plain.offer(b"pay", **times)
        assert client.keys() == []

    def test_the_last_moment_there_is(self, plain: DelayedQueue) -> None:
        year_9999 = 253_402_300_799_999
        plain.offer(b"pay", due_ms=year_9999, message_id="a")
        assert plain.peek()[0].due_ms == year_9999
        assert plain.cancel("a") == 1

    def test_registers_once_a_minute_and_announces_a_new_queue(self, plain: DelayedQueue, client: redis.Redis) -> None:
        with client.pubsub() as pubsub:
            pubsub.subscribe("delayq:queues")
            assert pubsub.get_message(timeout=5)["type"] == "subscribe"
            client.config_resetstat()
            for queue in (plain, plain, DelayedQueue(client, "orders")):
                queue.offer(b"pay", due_ms=FAR)
            assert pubsub.get_message(timeout=5)["data"] == b"orders"
            assert pubsub.get_message(timeout=0) is None
        assert client.info("commandstats")["cmdstat_zadd"]["calls"] == 3 + 2

    def test_a_queue_may_have_any_name(self, client: redis.Redis) -> None:
        queue = DelayedQueue(client, "größe\x06\x163")
        queue.offer(b"pay", due_ms=1)
        assert registered(client) == {"größe\x06\x163"}
        assert queue.take(0) == b"pay"

    def test_the_mirror_list_is_written_where_it_is_asked_for(self, client: redis.Redis) -> None:
        queue = DelayedQueue(client, "orders", mirror_list=True)
        queue.offer(b"pay", due_ms=FAR, message_id="a")
        queue.offer(b"pay", due_ms=1)
        assert client.llen("redisson_delay_queue:{orders}") == 2
        assert queue.cancel("a") == 1
        assert queue.transfer().moved == 1
        assert client.llen("redisson_delay_queue:{orders}") == 0


class TestPeek:
    def test_leaves_out_what_is_no_entry(self, plain: DelayedQueue, client: redis.Redis) -> None:
        client.zadd(plain.keys.timeout_set, {b"garbage": 1, b"": 2})
        plain.offer(b"pay", due_ms=FAR)
        assert [entry.payload for entry in plain.peek(3)] == [b"pay"]

    def test_shows_what_java_has_offered(self, plain: DelayedQueue, client: redis.Redis) -> None:
        raw = codec.pack(b"12345678", b"java")
        client.zadd(plain.keys.timeout_set, {raw: FAR})
        assert plain.peek(5) == [Entry(FAR, b"java", b"12345678", raw)]

    @pytest.mark.parametrize("count", [0, -1])
    def test_of_nothing_is_refused(self, plain: DelayedQueue, count: int) -> None:
        plain.offer(b"pay", due_ms=FAR)
        with pytest.raises(ValueError, match="count"):
            plain.peek(count)

    def test_of_an_empty_queue(self, queue: DelayedQueue) -> None:
        assert queue.peek(10) == []
        assert queue.size() == 0


class TestTransfer:
    @pytest.mark.parametrize("limit", [0, -1, 1001])
    def test_has_a_limit(self, plain: DelayedQueue, limit: int) -> None:
        with pytest.raises(ValueError, match="limit must be 1 to 1000"):
            plain.transfer(limit)

    def test_moves_no_more_than_that(self, plain: DelayedQueue) -> None:
        for i in range(7):
            plain.offer(b"", due_ms=i)
        assert [plain.transfer(3).moved for _ in range(4)] == [3, 3, 1, 0]


class TestTake:
    def test_takes_in_order_of_due_times(self, plain: DelayedQueue) -> None:
        for due_ms in (3, 1, 2):
            plain.offer(b"%d" % due_ms, due_ms=due_ms)
        assert [plain.take(0) for _ in range(4)] == [b"1", b"2", b"3", None]

    def test_takes_what_was_pushed_without_a_delay(self, plain: DelayedQueue, client: redis.Redis) -> None:
        client.lpush("orders", b"first", b"second")
        assert [plain.take(), plain.take()] == [b"first", b"second"]

    @pytest.mark.parametrize("timeout_s", [0, -1, 0.05, 1.2])
    def test_gives_up_when_the_time_is_over_and_not_before(self, queue: DelayedQueue, timeout_s: float) -> None:
        queue.offer(b"later", due_ms=FAR)
        started = time.monotonic()
        assert queue.take(timeout_s) is None
        assert time.monotonic() - started >= timeout_s
        assert queue.size() == 1

    @pytest.mark.parametrize("timeout_s", [None, 30])
    def test_waits_for_what_becomes_due(self, queue: DelayedQueue, timeout_s: float | None) -> None:
        queue.offer(b"pay", delay_s=0.2)
        (entry,) = queue.peek()
        assert queue.take(timeout_s) == b"pay"
        assert now_ms(queue.client) >= entry.due_ms

    def test_wakes_for_what_others_push_meanwhile(self, plain: DelayedQueue, client: redis.Redis) -> None:
        plain.offer(b"later", due_ms=FAR)
        taken: list[bytes | None] = []
        taker = threading.Thread(target=lambda: taken.append(plain.take(60)))
        taker.start()
        client.lpush("orders", b"pushed")
        taker.join(20)
        assert taken == [b"pushed"]

    def test_notices_what_others_offer_meanwhile(self, plain: DelayedQueue) -> None:
        taken: list[bytes | None] = []
        taker = threading.Thread(target=lambda: taken.append(plain.take(60)))
        taker.start()
        plain.offer(b"offered", delay_s=0.1)
        taker.join(20)
        assert taken == [b"offered"]

    def test_passes_by_what_is_no_entry(self, plain: DelayedQueue, client: redis.Redis) -> None:
        client.zadd(plain.keys.timeout_set, {b"garbage%d" % i: 1 for i in range(250)})
        plain.offer(b"pay", due_ms=2)
        assert plain.take(20) == b"pay"

    def test_many_takers_share_without_taking_twice(self, plain: DelayedQueue) -> None:
        for i in range(200):
            plain.offer(b"%d" % i, delay_s=i / 1000)
        taken: list[bytes] = []

        def take_all() -> None:
            while (payload := plain.take(2)) is not None:
                taken.append(payload)

        takers = [threading.Thread(target=take_all) for _ in range(4)]
        for taker in takers:
            taker.start()
        for taker in takers:
            taker.join(60)
        assert sorted(map(int, taken)) == list(range(200))


class TestErrors:
    def test_of_the_server_are_raised_as_they_are(self, plain: DelayedQueue, client: redis.Redis) -> None:
        client.set(plain.keys.timeout_set, "no ZSET")
        for call in (
            lambda: plain.offer(b"", due_ms=1),
            plain.transfer,
            plain.peek,
            plain.size,
            lambda: plain.take(1),
        ):
            with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
                call()

    def test_a_server_that_forgot_the_scripts_learns_them_again(self, plain: DelayedQueue, client: redis.Redis) -> None:
        for script in ("offer", "cancel", "transfer", "resign"):
            load(script)
        client.script_flush()
        message_id = plain.offer(b"pay", due_ms=FAR)
        client.script_flush()
        assert plain.cancel(message_id) == 1

    def test_an_invalid_entry_says_what_it_is(self) -> None:
        with pytest.raises(InvalidEntry, match="garbage"):
            codec.unpack(b"garbage")


def test_the_database_is_part_of_the_channel_for_signs_of_life(redis_server: PrivateRedis) -> None:
    """Pub/Sub knows no databases; a loop must not take another database's for its own."""
    with redis_server.client(db=3) as client:
        assert DelayedQueue(client, "q").keys.transferrer_channel.startswith("delayq:transfer_channel:3:")
    with redis.Redis.from_url(redis_server.url.removesuffix("0") + "5") as client:
        assert ":5:" in DelayedQueue(client, "q").keys.transferrer_channel

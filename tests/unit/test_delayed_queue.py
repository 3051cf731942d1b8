"""DelayedQueue with every kind of client; what the scripts do in detail is tested in tests/lua."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from redis.client import NEVER_DECODE

from celery_delayq import DelayedQueue, Entry
from celery_delayq.basics.errors import InvalidEntry
from celery_delayq.basics.times import to_datetime
from celery_delayq.queue import codec, scripts
from celery_delayq.queue.call import load
from celery_delayq.queue.entry import pairs
from celery_delayq.queue.registry import registered
from examples.private_redis import PrivateRedis
from tests.state import FAR, floor_ms, now_ms, now_us

SOON = datetime(2040, 1, 2, 3, 4, 5, 678_000, tzinfo=timezone.utc)

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
        queue.offer(payload, eta=to_datetime(1))
        assert [entry.payload for entry in queue.peek()] == [payload]
        assert queue.transfer().moved == 1
        assert client.lrange("orders", 0, -1) == [payload]
        assert queue.take(0) == payload
        assert client.llen("orders") == queue.size() == 0

    def test_peek_shows_the_next_ones_in_order(self, queue: DelayedQueue) -> None:
        for due_ms in (FAR + 2, FAR, FAR + 1):
            queue.offer(b"%d" % due_ms, eta=to_datetime(due_ms), message_id=str(due_ms))
        entries = queue.peek(2)
        assert [(entry.score, entry.payload) for entry in entries] == [
            (FAR, b"%d" % FAR),
            (FAR + 1, b"%d" % (FAR + 1)),
        ]
        offer_id = codec.OfferId.from_bytes(entries[0].id)
        assert offer_id
        assert offer_id.message_key == codec.message_key(str(FAR))
        assert codec.unpack(entries[0].raw) == (entries[0].id, entries[0].payload)
        assert queue.size() == 3

    def test_cancel(self, queue: DelayedQueue, client: redis.Redis) -> None:
        message_id = queue.offer(b"pay", eta=to_datetime(FAR))
        other = queue.offer(b"other", eta=to_datetime(FAR))
        assert queue.cancel(message_id) == 1
        assert queue.cancel(message_id) == queue.cancel("never offered") == 0
        assert [entry.payload for entry in queue.peek(9)] == [b"other"]
        assert queue.cancel(other) == 1
        assert client.keys() == [b"delayq:queues"]

    def test_transfer_tells_what_it_did_and_saw(self, queue: DelayedQueue) -> None:
        before = now_ms(queue.client)
        queue.offer(b"due", eta=to_datetime(1))
        queue.offer(b"later", eta=to_datetime(FAR))
        queue.client.zadd(queue.keys.timeout_set, {"garbage": 2})
        done = queue.transfer()
        assert (done.moved, done.dead, done.head_due) == (1, 1, to_datetime(FAR))
        assert (done.punctual, floor_ms(done.last_sign)) == ("", 0)
        assert before <= floor_ms(done.now) <= now_ms(queue.client)

    def test_a_loop_takes_part_in_who_is_punctual(self, queue: DelayedQueue) -> None:
        queue.offer(b"due", eta=to_datetime(1))
        done = queue.transfer(transferrer="me:1", grace=0.25)
        assert done.punctual == "me:1"
        assert floor_ms(done.last_sign) == floor_ms(done.now)
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
        queue.offer(b"pay", eta=to_datetime(FAR))
        DelayedQueue(any_client, "refunds", keyprefix="shop.").offer(b"", eta=to_datetime(FAR))
        any_client.zadd("delayq:queues", {"": FAR, b"\xff": FAR})
        assert registered(any_client) == {"orders"}
        assert registered(any_client, "shop.") == {"refunds"}


class TestOffer:
    def test_makes_an_id_where_none_is_given(self, plain: DelayedQueue) -> None:
        ids = {plain.offer(b"pay", eta=to_datetime(FAR)) for _ in range(20)}
        assert len(ids) == 20
        assert [plain.cancel(message_id) for message_id in ids] == [1] * 20

    @pytest.mark.parametrize("message_id", ["", "a", "ä€😀" * 500, "\x00\n{}", "\ud800"])
    def test_takes_any_text_for_an_id(self, plain: DelayedQueue, message_id: str) -> None:
        assert plain.offer(b"pay", eta=to_datetime(FAR), message_id=message_id) == message_id
        assert plain.cancel(message_id + "x") == 0
        assert plain.cancel(message_id) == 1

    @pytest.mark.parametrize("countdown", [0, -5, 0.0004, 0.25, 3600, timedelta(days=3650)])
    def test_a_countdown_is_from_now_by_the_server(
        self, plain: DelayedQueue, client: redis.Redis, countdown: float | timedelta
    ) -> None:
        seconds = countdown.total_seconds() if isinstance(countdown, timedelta) else countdown
        delay_us = max(0, math.ceil(seconds * 1000)) * 1000
        for message_id in "abcdefgh":  # each begins at another microsecond
            before_us = now_us(client)
            plain.offer(b"pay", countdown=countdown, message_id=message_id)
            (entry,) = plain.find(message_id)
            assert before_us + delay_us <= entry.score * 1000 <= now_us(client) + 1000 + delay_us

    @pytest.mark.parametrize(
        "times",
        [
            {},
            {"eta": None, "countdown": None},
            {"eta": SOON, "countdown": 1},
            {"countdown": "1"},
            {"countdown": True},
            {"countdown": math.nan},
            {"countdown": math.inf},
            {"countdown": 1e13},
            {"countdown": timedelta.max},
            {"eta": 2**53},
            {"eta": "2030-01-01"},
            {"eta": math.nan},
            {"eta": datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)))},
        ],
    )
    def test_refuses_other_times_and_stores_nothing(
        self, plain: DelayedQueue, client: redis.Redis, times: dict[str, Any]
    ) -> None:
        with pytest.raises((ValueError, TypeError), match=r"countdown|eta"):
            plain.offer(b"pay", **times)
        assert client.keys() == []

    @pytest.mark.parametrize(
        "eta", [SOON, SOON.replace(tzinfo=None), SOON.timestamp(), SOON.astimezone(timezone(timedelta(hours=5)))]
    )
    def test_an_eta_is_a_datetime_or_unix_time(self, plain: DelayedQueue, eta: datetime | float) -> None:
        plain.offer(b"pay", eta=eta)
        (entry,) = plain.peek()
        assert (entry.due, entry.score) == (SOON, SOON.timestamp() * 1000)
        assert plain.count(due_after=eta) == 1
        assert plain.count(due_before=eta) == 0

    def test_an_eta_in_the_past_is_due_now(self, plain: DelayedQueue) -> None:
        plain.offer(b"pay", eta=datetime(1, 1, 1, tzinfo=timezone.utc))
        assert plain.take(0) == b"pay"

    def test_the_last_moment_there_is(self, plain: DelayedQueue) -> None:
        year_9999 = 253_402_300_799_999
        plain.offer(b"pay", eta=to_datetime(year_9999), message_id="a")
        assert plain.peek()[0].score == year_9999
        assert plain.cancel("a") == 1

    def test_registers_once_a_minute_and_announces_a_new_queue(self, plain: DelayedQueue, client: redis.Redis) -> None:
        with client.pubsub() as pubsub:
            pubsub.subscribe("delayq:queues")
            assert pubsub.get_message(timeout=5)["type"] == "subscribe"
            client.config_resetstat()
            for queue in (plain, plain, DelayedQueue(client, "orders")):
                queue.offer(b"pay", eta=to_datetime(FAR))
            assert pubsub.get_message(timeout=5)["data"] == b"orders"
            assert pubsub.get_message(timeout=0) is None
        assert client.info("commandstats")["cmdstat_zadd"]["calls"] == 3 + 2

    def test_a_queue_may_have_any_name(self, client: redis.Redis) -> None:
        queue = DelayedQueue(client, "größe\x06\x163")
        queue.offer(b"pay", eta=to_datetime(1))
        assert registered(client) == {"größe\x06\x163"}
        assert queue.take(0) == b"pay"

    def test_the_mirror_list_is_written_where_it_is_asked_for(self, client: redis.Redis) -> None:
        queue = DelayedQueue(client, "orders", mirror_list=True)
        queue.offer(b"pay", eta=to_datetime(FAR), message_id="a")
        queue.offer(b"pay", eta=to_datetime(1))
        assert client.llen("redisson_delay_queue:{orders}") == 2
        assert queue.cancel("a") == 1
        assert queue.transfer().moved == 1
        assert client.llen("redisson_delay_queue:{orders}") == 0


class TestPeek:
    def test_leaves_out_what_is_no_entry(self, plain: DelayedQueue, client: redis.Redis) -> None:
        client.zadd(plain.keys.timeout_set, {b"garbage": 1, b"": 2})
        plain.offer(b"pay", eta=to_datetime(FAR))
        assert [entry.payload for entry in plain.peek(3)] == [b"pay"]

    def test_shows_what_java_has_offered(self, plain: DelayedQueue, client: redis.Redis) -> None:
        raw = codec.pack(b"12345678", b"java")
        client.zadd(plain.keys.timeout_set, {raw: FAR})
        assert plain.peek(5) == [Entry(FAR, b"java", b"12345678", raw)]

    @pytest.mark.parametrize("count", [0, -1])
    def test_of_nothing_is_refused(self, plain: DelayedQueue, count: int) -> None:
        plain.offer(b"pay", eta=to_datetime(FAR))
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
            plain.offer(b"", eta=to_datetime(i))
        assert [plain.transfer(3).moved for _ in range(4)] == [3, 3, 1, 0]


class TestTake:
    def test_takes_in_order_of_due_times(self, plain: DelayedQueue) -> None:
        for due_ms in (3, 1, 2):
            plain.offer(b"%d" % due_ms, eta=to_datetime(due_ms))
        assert [plain.take(0) for _ in range(4)] == [b"1", b"2", b"3", None]

    def test_takes_what_was_pushed_without_a_delay(self, plain: DelayedQueue, client: redis.Redis) -> None:
        client.lpush("orders", b"first", b"second")
        assert [plain.take(), plain.take()] == [b"first", b"second"]

    @pytest.mark.parametrize("timeout", [0, -1, 0.05, timedelta(seconds=1.2)])
    def test_gives_up_when_the_time_is_over_and_not_before(
        self, queue: DelayedQueue, timeout: float | timedelta
    ) -> None:
        queue.offer(b"later", eta=to_datetime(FAR))
        started = time.monotonic()
        assert queue.take(timeout) is None
        timeout_s = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        assert time.monotonic() - started >= timeout_s
        assert queue.size() == 1

    @pytest.mark.parametrize("timeout", [None, 30])
    def test_waits_for_what_becomes_due(self, queue: DelayedQueue, timeout: float | None) -> None:
        queue.offer(b"pay", countdown=0.2)
        (entry,) = queue.peek()
        assert queue.take(timeout) == b"pay"
        assert now_ms(queue.client) >= entry.score

    def test_wakes_for_what_others_push_meanwhile(self, plain: DelayedQueue, client: redis.Redis) -> None:
        plain.offer(b"later", eta=to_datetime(FAR))
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
        plain.offer(b"offered", countdown=0.1)
        taker.join(20)
        assert taken == [b"offered"]

    def test_passes_by_what_is_no_entry(self, plain: DelayedQueue, client: redis.Redis) -> None:
        client.zadd(plain.keys.timeout_set, {b"garbage%d" % i: 1 for i in range(250)})
        plain.offer(b"pay", eta=to_datetime(2))
        assert plain.take(20) == b"pay"

    def test_many_takers_share_without_taking_twice(self, plain: DelayedQueue) -> None:
        for i in range(200):
            plain.offer(b"%d" % i, countdown=i / 1000)
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
    @pytest.mark.parametrize("span", ["1", True, math.nan, math.inf])
    @pytest.mark.parametrize(("method", "name"), [("take", "timeout"), ("transfer", "grace"), ("transfer", "lead")])
    def test_a_wrong_span_is_named(self, plain: DelayedQueue, method: str, name: str, span: Any) -> None:
        with pytest.raises((TypeError, ValueError), match=f"{name} must be a number of seconds, or a timedelta"):
            getattr(plain, method)(**{name: span})

    @pytest.mark.parametrize("method", ["page", "count"])
    @pytest.mark.parametrize("name", ["due_after", "due_before"])
    def test_a_wrong_time_is_named(self, plain: DelayedQueue, method: str, name: str) -> None:
        with pytest.raises(TypeError, match=f"{name} must be a datetime, or unix time in seconds"):
            getattr(plain, method)(**{name: "2030-01-01"})

    def test_of_the_server_are_raised_as_they_are(self, plain: DelayedQueue, client: redis.Redis) -> None:
        client.set(plain.keys.timeout_set, "no ZSET")
        for call in (
            lambda: plain.offer(b"", eta=to_datetime(1)),
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
        message_id = plain.offer(b"pay", eta=to_datetime(FAR))
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

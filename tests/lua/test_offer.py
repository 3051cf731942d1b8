"""offer.lua: what it stores, in which order, and whom it tells."""

from __future__ import annotations

import struct

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from celery_delayq.queue import codec, scripts
from celery_delayq.queue.codec import OfferId, message_key
from celery_delayq.queue.delayed_queue import DelayedQueue
from tests.lua.conftest import Heard
from tests.properties import on_a_server
from tests.state import (
    DELAY_LIST,
    FAR,
    INDEX,
    REPEATED,
    TIMEOUT_SET,
    delivered,
    nothing_changes,
    now_ms,
    now_us,
    offer,
    offer_many,
    out_of_memory,
    seed,
    state,
    waiting,
    wrong_type,
)


def place(due_ms: int, offered_us: int) -> bytes:
    """Return what the index says about an entry."""
    return struct.pack(">QQ", due_ms, offered_us)


class TestWhatItStores:
    def test_byte_for_byte(self, queue: DelayedQueue) -> None:
        client = queue.client
        before = now_us(client)
        offer(queue, "a", payload=b"pay")
        after = now_us(client)

        ((entry, score),) = client.zrange(TIMEOUT_SET, 0, -1, withscores=True)
        offered_us = int.from_bytes(entry[1:8], "big")
        assert before <= offered_us <= after
        key = message_key("a")
        assert entry == b"\x18" + entry[1:8] + b"\xd0" + key + b"\x03" + bytes(7) + b"pay"
        assert score == FAR
        assert state(client) == {
            TIMEOUT_SET: [(entry, FAR)],
            INDEX: {key: place(FAR, offered_us)},
        }

    @pytest.mark.parametrize("payload", [b"", b"\x00", bytes(range(256)), b"\xff" * 100_000])
    def test_what_the_codec_reads(self, queue: DelayedQueue, payload: bytes) -> None:
        offer(queue, "a", payload=payload)
        (entry,) = queue.peek()
        assert entry.payload == payload
        offer_id = OfferId.from_bytes(entry.id)
        assert offer_id == OfferId(offer_id.offered_us if offer_id else 0, message_key("a"))

    def test_mirrored(self, queue: DelayedQueue) -> None:
        queue.mirror_list = True
        offer(queue, "a")
        offer(queue, "b", FAR - 1)
        entries = queue.client.zrange(TIMEOUT_SET, 0, -1)
        assert [entry[8] for entry in entries] == [0xD1, 0xD1]
        assert queue.client.lrange(DELAY_LIST, 0, -1) == entries[::-1]

    def test_the_same_message_id_twice(self, queue: DelayedQueue) -> None:
        for due_ms, payload in ((FAR, b"first"), (FAR + 1, b"second"), (FAR, b"third")):
            offer(queue, "a", due_ms, payload)
        first, third, second = queue.peek(9)
        ids = [OfferId.from_bytes(entry.id) for entry in (first, second, third)]
        assert [i.repeated for i in ids if i] == [False, True, True]
        offered = [i.offered_us for i in ids if i]
        assert queue.client.hgetall(INDEX) == {message_key("a"): place(FAR, offered[0])}
        assert queue.client.zrange(REPEATED, 0, -1, withscores=True) == [
            (message_key("a") + place(FAR, offered[2]), 0),
            (message_key("a") + place(FAR + 1, offered[1]), 0),
        ]

    def test_a_delay_counts_from_the_servers_now(self, queue: DelayedQueue) -> None:
        before = now_ms(queue.client)
        due_ms, alone = scripts.offer(
            queue.keys,
            due_ms=None,
            delay_ms=86_400_000,
            message_key=bytes(16),
            payload=b"",
            mirrored=False,
        ).run(queue.client)
        assert alone
        assert before + 86_400_000 <= due_ms <= now_ms(queue.client) + 86_400_001
        assert [entry.score for entry in queue.peek()] == [due_ms]

    @pytest.mark.parametrize("due_ms", [0, 1, FAR, 253_402_300_800_000, 2**52 - 1])
    def test_any_due_time(self, queue: DelayedQueue, due_ms: int) -> None:
        offer(queue, "a", due_ms)
        assert [entry.score for entry in queue.peek()] == [due_ms]
        assert queue.cancel("a") == 1


class TestOrder:
    @on_a_server(max_examples=25)
    @given(messages=st.lists(st.tuples(st.text(), st.binary(max_size=300)), max_size=30))
    def test_of_one_due_time_is_that_of_the_offers(
        self, one_queue: DelayedQueue, messages: list[tuple[str, bytes]]
    ) -> None:
        one_queue.client.flushall()
        for message_id, payload in messages:
            offer(one_queue, message_id, payload=payload)
        assert waiting(one_queue) == [payload for _, payload in dict.fromkeys(messages)]

    def test_in_a_transaction_too(self, queue: DelayedQueue) -> None:
        """There, and in pipelines of fast servers, the clock may stand still."""
        offer(queue, "0")
        messages = [str(i) for i in range(100)]
        with queue.client.pipeline(transaction=True) as pipeline:
            for message_id in messages:
                call = scripts.offer(
                    queue.keys,
                    due_ms=1,
                    message_key=message_key(message_id),
                    payload=message_id.encode(),
                    mirrored=False,
                )
                pipeline.execute_command(*call.by_text())
            pipeline.execute()
        while queue.transfer().moved:
            pass
        assert delivered(queue) == [message_id.encode() for message_id in messages]

    def test_when_the_servers_clock_was_set_back(self, queue: DelayedQueue) -> None:
        """What was offered before, by a clock that was an hour ahead, still goes first."""
        an_hour_ahead = now_us(queue.client) + 3_600_000_000
        offer_id = OfferId(an_hour_ahead, message_key("before"))
        seed(queue, {codec.pack(offer_id.to_bytes(), b"before"): FAR})
        offer(queue, "one")
        offer(queue, "two")
        assert waiting(queue) == [b"before", b"one", b"two"]
        assert queue.cancel("one") == 1

    def test_the_same_id_in_the_same_microsecond_is_as_many_entries(self, queue: DelayedQueue) -> None:
        payloads = [b"%d" % number for number in range(5)]
        with queue.client.pipeline(transaction=True) as pipeline:
            for payload in payloads:
                call = scripts.offer(
                    queue.keys,
                    due_ms=FAR,
                    message_key=message_key("a"),
                    payload=payload,
                    mirrored=False,
                )
                pipeline.execute_command(*call.by_text())
            pipeline.execute()
        assert waiting(queue) == payloads
        assert queue.cancel("a") == 5

    @pytest.mark.parametrize(
        "last",
        [
            b"\x18" + b"\xff" * 50,
            b"\x18\xff",
            b"\xff" * 16,
            codec.pack(b"\xff" * 24, b"java"),
            codec.pack(b"\xff" * 7 + b"\xd0" + b"\xff" * 16, b"ours by chance"),
        ],
    )
    def test_after_what_is_not_ours(self, queue: DelayedQueue, last: bytes) -> None:
        """Whatever is in the queue, an offer is stored, found, and in its order."""
        seed(queue, {last: FAR})
        for message_id in ("one", "two", "three"):
            offer(queue, message_id)
        entries = [entry for entry in queue.client.zrange(TIMEOUT_SET, 0, -1) if entry != last]
        assert [codec.unpack(entry)[1] for entry in entries] == [b"one", b"two", b"three"]
        assert [queue.cancel(message_id) for message_id in ("two", "one", "three")] == [1, 1, 1]


class TestNotification:
    @pytest.fixture
    def heard(self, queue: DelayedQueue) -> Heard:
        """A subscription to Redisson's channel."""
        return Heard(queue.client, "redisson_delay_queue_channel:{q}")

    def test_only_of_a_new_head(self, queue: DelayedQueue, heard: Heard) -> None:
        for due_ms in (FAR, FAR + 1, FAR, FAR - 1, FAR - 1, 7):
            offer(queue, str(due_ms), due_ms)
        assert heard.all() == [b"%d" % FAR, b"%d" % (FAR - 1), b"7"]

    def test_as_a_whole_number_for_a_delay_too(self, queue: DelayedQueue, heard: Heard) -> None:
        queue.offer(b"pay", countdown=1e9)
        (entry,) = queue.peek()
        assert heard.all() == [b"%d" % entry.score]

    def test_a_user_who_may_not_publish_can_offer(self, queue: DelayedQueue) -> None:
        client = queue.client
        client.execute_command("ACL", "SETUSER", "mute", "on", "nopass", "+@all", "~*", "resetchannels")
        pool = client.connection_pool.connection_kwargs
        mute = redis.Redis(host=pool["host"], port=pool["port"], username="mute", password="any")
        try:
            offer(DelayedQueue(mute, "q"), "a")
        finally:
            mute.close()
            client.execute_command("ACL", "DELUSER", "mute")
        assert waiting(queue) == [b"a"]


class TestAllOrNothing:
    @pytest.mark.parametrize("mirror_list", [False, True])
    def test_out_of_memory(self, queue: DelayedQueue, mirror_list: bool) -> None:
        queue.mirror_list = mirror_list
        offer(queue, "a")
        with (
            nothing_changes(queue.client),
            out_of_memory(queue.client),
            pytest.raises(redis.ResponseError, match="maxmemory"),
        ):
            offer(queue, "a", payload=b"again")

    @pytest.mark.parametrize("key", [TIMEOUT_SET, INDEX, DELAY_LIST])
    @pytest.mark.parametrize("repeated", [False, True])
    def test_keys_of_another_type(self, queue: DelayedQueue, key: str, repeated: bool) -> None:
        queue.mirror_list = True
        if repeated:
            offer(queue, "a")
        wrong_type(queue, key, lambda: offer(queue, "a", payload=b"again"))


MESSAGES = st.lists(
    st.tuples(st.sampled_from([1, FAR - 1, FAR, FAR + 1]), st.sampled_from("abcdef"), st.binary(max_size=9)),
    max_size=scripts.MAX_OFFERS,
)


class TestMany:
    """offer_many.lua: as if they were offered one by one."""

    @on_a_server(max_examples=25)
    @given(before=MESSAGES, messages=MESSAGES, mirror_list=st.booleans())
    def test_as_one_by_one(
        self,
        one_queue: DelayedQueue,
        before: list[tuple[int, str, bytes]],
        messages: list[tuple[int, str, bytes]],
        mirror_list: bool,
    ) -> None:
        client = one_queue.client
        one_queue.mirror_list = mirror_list
        client.flushall()
        for due_ms, message_id, payload in before + messages:
            offer(one_queue, message_id, due_ms, payload)
        expected = waiting(one_queue)
        mirrored = [codec.unpack(entry)[1] for entry in client.lrange(DELAY_LIST, 0, -1)]
        cancelled = {message_id: one_queue.cancel(message_id) for message_id in "abcdef"}

        client.flushall()
        for due_ms, message_id, payload in before:
            offer(one_queue, message_id, due_ms, payload)
        alone = offer_many(one_queue, messages)
        if len(set(messages)) == len(messages):
            assert alone == (set(before) <= set(messages))
        assert waiting(one_queue) == expected
        assert [codec.unpack(entry)[1] for entry in client.lrange(DELAY_LIST, 0, -1)] == mirrored
        assert {message_id: one_queue.cancel(message_id) for message_id in "abcdef"} == cancelled
        assert one_queue.size() == 0
        assert not client.exists(DELAY_LIST)

    def test_the_same_id_many_times_is_so_many_entries(self, queue: DelayedQueue) -> None:
        for call in range(2):
            offer_many(queue, [(FAR + number % 2, "a", b"%d" % (100 * call + number)) for number in range(100)])
        assert queue.size() == 200
        assert queue.cancel("a") == 200

    def test_the_same_id_where_the_servers_clock_was_set_back(self, queue: DelayedQueue) -> None:
        an_hour_ahead = now_us(queue.client) + 3_600_000_000
        before = OfferId(an_hour_ahead, message_key("before")).to_bytes()
        seed(queue, {codec.pack(before, b"before"): FAR})
        messages = [(FAR, "a", b"one"), (FAR + 1, "a", b"two"), (FAR, "a", b"three")]
        for _ in range(2):
            offer_many(queue, messages)
            assert waiting(queue) == [b"before", b"one", b"three", b"two"]
        assert queue.cancel("a") == 3

    def test_listeners_hear_of_each_new_head(self, queue: DelayedQueue) -> None:
        heard = Heard(queue.client, "redisson_delay_queue_channel:{q}")
        offer_many(queue, [(FAR, "a", b""), (FAR + 1, "b", b""), (FAR - 1, "c", b"")])
        assert heard.all() == [b"%d" % FAR, b"%d" % (FAR - 1)]

    def test_out_of_memory(self, queue: DelayedQueue) -> None:
        offer(queue, "a")
        with (
            nothing_changes(queue.client),
            out_of_memory(queue.client),
            pytest.raises(redis.ResponseError, match="maxmemory"),
        ):
            offer_many(queue, [(FAR, "b", b""), (FAR, "c", b"")])

    @pytest.mark.parametrize("key", [TIMEOUT_SET, INDEX, DELAY_LIST])
    def test_keys_of_another_type(self, queue: DelayedQueue, key: str) -> None:
        queue.mirror_list = True
        wrong_type(queue, key, lambda: offer_many(queue, [(FAR, "a", b""), (FAR, "b", b"")]))

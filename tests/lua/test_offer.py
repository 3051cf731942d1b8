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
from celery_delayq.queue.script import load
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
            queue.client,
            queue.keys,
            due_ms=None,
            delay_ms=86_400_000,
            message_key=bytes(16),
            payload=b"",
            mirrored=False,
        )
        assert alone
        assert before + 86_400_000 <= due_ms <= now_ms(queue.client) + 86_400_001
        assert [entry.due_ms for entry in queue.peek()] == [due_ms]

    @pytest.mark.parametrize("due_ms", [0, 1, FAR, 253_402_300_800_000, 2**52 - 1])
    def test_any_due_time(self, queue: DelayedQueue, due_ms: int) -> None:
        offer(queue, "a", due_ms)
        assert [entry.due_ms for entry in queue.peek()] == [due_ms]
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
                keys, args = scripts.offer_call(
                    queue.keys,
                    due_ms=1,
                    message_key=message_key(message_id),
                    payload=message_id.encode(),
                    mirrored=False,
                )
                pipeline.eval(load("offer").text, len(keys), *keys, *args)
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
                keys, args = scripts.offer_call(
                    queue.keys,
                    due_ms=FAR,
                    message_key=message_key("a"),
                    payload=payload,
                    mirrored=False,
                )
                pipeline.eval(load("offer").text, len(keys), *keys, *args)
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
        queue.offer(b"pay", delay_s=1e9)
        (entry,) = queue.peek()
        assert heard.all() == [b"%d" % entry.due_ms]

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


def offer_many(queue: DelayedQueue, messages: list[tuple[int, str, bytes]]) -> bool:
    """Run the script for many messages; each is its due time, its id and its payload."""
    return scripts.offer_many(
        queue.client,
        queue.keys,
        messages=[(due_ms, message_key(message_id), payload) for due_ms, message_id, payload in messages],
        mirrored=queue.mirror_list,
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


def offer_for_reply(queue: DelayedQueue, due_ms: int | None = FAR, delay_ms: int = 0) -> tuple[int, bool]:
    """Offer "a" and return what the script replies."""
    return scripts.offer(
        queue.client,
        queue.keys,
        due_ms=due_ms,
        delay_ms=delay_ms,
        message_key=message_key("a"),
        payload=b"a",
        mirrored=queue.mirror_list,
    )


class TestTheSameMessage:
    """It is stored once, so that a caller who missed the reply may repeat the call."""

    @pytest.mark.parametrize("mirror_list", [False, True])
    def test_one_by_one(self, queue: DelayedQueue, mirror_list: bool) -> None:
        queue.mirror_list = mirror_list
        offer(queue, "other")
        offer(queue, "a")
        with nothing_changes(queue.client):
            for _ in range(3):
                offer(queue, "a")
        assert queue.cancel("a") == 1

    @pytest.mark.parametrize("mirror_list", [False, True])
    def test_in_one_call(self, queue: DelayedQueue, mirror_list: bool) -> None:
        queue.mirror_list = mirror_list
        offer_many(queue, [(FAR, "a", b"same"), (FAR + 1, "a", b"same")] * 50)
        assert [(entry.due_ms, entry.payload) for entry in queue.peek(9)] == [(FAR, b"same"), (FAR + 1, b"same")]
        assert queue.client.llen(DELAY_LIST) == (2 if mirror_list else 0)
        assert queue.cancel("a") == 2
        assert state(queue.client) == {}

    @pytest.mark.parametrize("mirror_list", [False, True])
    @pytest.mark.parametrize("ids", [25, 100])
    def test_in_several_calls(self, queue: DelayedQueue, ids: int, mirror_list: bool) -> None:
        queue.mirror_list = mirror_list
        messages = [(FAR + number % 3, str(number % ids), b"%d" % number) for number in range(100)]
        offer_many(queue, messages)
        assert queue.size() == 100
        with nothing_changes(queue.client):
            offer_many(queue, messages)
            for due_ms, message_id, payload in messages:
                offer(queue, message_id, due_ms, payload)

    @pytest.mark.parametrize("mirror_list", [False, True])
    def test_of_a_call_of_which_some_wait(self, queue: DelayedQueue, mirror_list: bool) -> None:
        """The others are stored, in their order."""
        queue.mirror_list = mirror_list
        offer_many(queue, [(FAR, "a", b"0"), (FAR, "b", b"1")])
        offer_many(queue, [(FAR, "a", b"2"), (FAR, "b", b"1"), (FAR, "a", b"0"), (FAR, "b", b"3"), (FAR, "a", b"4")])
        assert waiting(queue) == [b"0", b"1", b"2", b"3", b"4"]
        assert (queue.cancel("a"), queue.cancel("b")) == (3, 2)
        assert state(queue.client) == {}

    @pytest.mark.parametrize("before", [False, True])
    @pytest.mark.parametrize("after", [False, True])
    def test_whether_it_was_mirrored_or_not(self, queue: DelayedQueue, before: bool, after: bool) -> None:
        queue.mirror_list = before
        offer(queue, "a", payload=b"first")
        offer(queue, "a", payload=b"second")
        queue.mirror_list = after
        with nothing_changes(queue.client):
            offer(queue, "a", payload=b"first")
            offer(queue, "a", payload=b"second")
            offer_many(queue, [(FAR, "a", b"second"), (FAR, "a", b"first")])

    def test_where_the_first_of_its_id_was_transferred(self, queue: DelayedQueue) -> None:
        offer(queue, "a", 1)
        offer(queue, "a")
        queue.transfer()
        assert not queue.client.exists(INDEX)
        assert queue.client.zcard(REPEATED) == 1
        with nothing_changes(queue.client):
            offer(queue, "a")
            offer_many(queue, [(FAR, "a", b"a")] * 2)
        assert queue.cancel("a") == 1

    def test_that_was_transferred_or_cancelled_is_stored_again(self, queue: DelayedQueue) -> None:
        offer(queue, "stays")
        for _ in range(2):
            offer(queue, "a", 1)
            assert queue.transfer().moved == 1
        assert delivered(queue) == [b"a", b"a"]
        for _ in range(2):
            offer(queue, "a")
            assert queue.cancel("a") == 1

    def test_that_somebody_else_removed_is_stored_again(self, queue: DelayedQueue) -> None:
        """The index still knows its place then."""
        offer(queue, "stays")
        offer(queue, "a")
        queue.client.zrem(TIMEOUT_SET, queue.find("a")[0].raw)
        offer(queue, "a")
        assert waiting(queue) == [b"stays", b"a"]
        assert queue.cancel("a") == 1

    @pytest.mark.parametrize(
        "other",
        [
            (FAR, "a", b"other"),
            (FAR, "a", b""),
            (FAR, "a", b"same\x00"),
            (FAR + 1, "a", b"same"),
            (FAR - 1, "a", b"same"),
            (FAR, "b", b"same"),
        ],
    )
    @pytest.mark.parametrize("many", [False, True])
    def test_is_another_one_with_another_payload_due_time_or_id(
        self, queue: DelayedQueue, other: tuple[int, str, bytes], many: bool
    ) -> None:
        for due_ms, message_id, payload in [(FAR, "a", b"same"), other] * 2:
            if many:
                offer_many(queue, [(due_ms, message_id, payload)])
            else:
                offer(queue, message_id, due_ms, payload)
        stored = sorted((entry.due_ms, entry.payload) for entry in queue.peek(9))
        assert stored == sorted([(FAR, b"same"), (other[0], other[2])])
        assert queue.cancel("a") + queue.cancel("b") == 2

    @pytest.mark.parametrize("payload", [b"", b"\x00\xff", b"\xff" * 100_000])
    def test_of_any_payload(self, queue: DelayedQueue, payload: bytes) -> None:
        offer(queue, "a", payload=payload + b"!")
        offer(queue, "a", payload=payload)
        with nothing_changes(queue.client):
            offer(queue, "a", payload=payload)

    @pytest.mark.parametrize("due_ms", [0, 1, 253_402_300_800_000, 2**52 - 1])
    def test_of_any_due_time(self, queue: DelayedQueue, due_ms: int) -> None:
        offer(queue, "a", due_ms, b"first")
        offer(queue, "a", due_ms)
        with nothing_changes(queue.client):
            offer(queue, "a", due_ms)

    def test_among_many_of_its_id_and_due_time(self, queue: DelayedQueue) -> None:
        """One that the index knows, and a hundred further ones."""
        offer(queue, "a", FAR - 1)
        offer(queue, "b")
        messages = [(FAR, "a", b"%d" % number) for number in range(100)]
        offer_many(queue, messages)
        with nothing_changes(queue.client):
            for number in (0, 1, 50, 98, 99):
                offer(queue, "a", payload=b"%d" % number)

    def test_among_many_of_its_id_with_other_due_times(self, queue: DelayedQueue) -> None:
        for start in (0, 200, 100):
            offer_many(queue, [(FAR + number, "a", b"same") for number in range(start, start + 100)])
        with nothing_changes(queue.client):
            for number in (0, 1, 99, 100, 199, 200, 299):
                offer(queue, "a", FAR + number, b"same")

    def test_has_the_same_reply(self, queue: DelayedQueue) -> None:
        assert offer_for_reply(queue) == (FAR, True)
        assert offer_for_reply(queue) == (FAR, True)
        offer(queue, "b", FAR + 1)
        assert offer_for_reply(queue) == (FAR, False)
        queue.cancel("b")
        assert offer_for_reply(queue) == (FAR, True)
        assert queue.size() == 1

    def test_has_the_same_reply_among_many(self, queue: DelayedQueue) -> None:
        messages = [(FAR, "a", b"0"), (FAR, "a", b"1"), (FAR, "b", b"2")]
        assert [offer_many(queue, messages) for _ in range(2)] == [True, True]
        offer(queue, "c")
        assert not offer_many(queue, messages)

    def test_is_not_announced_again(self, queue: DelayedQueue) -> None:
        heard = Heard(queue.client, "redisson_delay_queue_channel:{q}")
        for _ in range(2):
            offer(queue, "a")
            offer_many(queue, [(FAR, "a", b"a")] * 2)
        assert heard.all() == [b"%d" % FAR]

    @pytest.mark.parametrize("mirror_list", [False, True])
    def test_needs_no_memory(self, queue: DelayedQueue, mirror_list: bool) -> None:
        queue.mirror_list = mirror_list
        messages = [(FAR, "a", b"0"), (FAR, "a", b"1"), (FAR + 1, "b", b"2")]
        offer_many(queue, messages)
        with nothing_changes(queue.client), out_of_memory(queue.client):
            assert offer_many(queue, messages)
        with nothing_changes(queue.client), out_of_memory(queue.client):
            offer(queue, "a", payload=b"1")

"""transfer.lua: what is due is moved once and in order, what is no entry stops nobody."""

from __future__ import annotations

import struct
from unittest.mock import ANY

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_delayq.basics.errors import InvalidEntry
from celery_delayq.basics.times import to_datetime
from celery_delayq.queue import codec
from celery_delayq.queue.codec import OfferId, message_key
from celery_delayq.queue.delayed_queue import DelayedQueue
from tests.properties import on_a_server
from tests.state import (
    DEAD,
    DELAY_LIST,
    FAR,
    INDEX,
    RECORDS,
    TIMEOUT_SET,
    TRANSFERRER,
    bury,
    delivered,
    floor_ms,
    nothing_changes,
    now_ms,
    offer,
    out_of_memory,
    records,
    seed,
    state,
    waiting,
    wrong_type,
)


def old_entry(entry_id: float, payload: bytes) -> bytes:
    """Pack as Redisson did before 3.21.1."""
    return struct.pack(f"<dQ{len(payload)}s", entry_id, len(payload), payload)


def transfer_all(queue: DelayedQueue, limit: int = 100) -> tuple[int, int]:
    """Transfer until nothing is due; return how many were moved, and how many are dead."""
    moved = dead = 0
    while (done := queue.transfer(limit)).moved + done.dead:
        moved, dead = moved + done.moved, dead + done.dead
    return moved, dead


class TestWhatIsDue:
    def test_is_moved_and_leaves_nothing_behind(self, queue: DelayedQueue) -> None:
        offer(queue, "a", 1)
        offer(queue, "b", 2)
        done = queue.transfer()
        assert (done.moved, done.dead, done.head_due) == (2, 0, None)
        assert state(queue.client) == {"q": [b"b", b"a"]}

    def test_goes_behind_what_is_in_the_list_already(self, queue: DelayedQueue) -> None:
        queue.client.lpush("q", b"ready")
        offer(queue, "due", 1)
        queue.transfer()
        assert delivered(queue) == [b"ready", b"due"]

    def test_is_decided_by_the_servers_clock(self, queue: DelayedQueue) -> None:
        now = now_ms(queue.client)
        offer(queue, "due", now)
        offer(queue, "not yet", now + 3_600_000)
        done = queue.transfer()
        assert delivered(queue) == [b"due"]
        assert waiting(queue) == [b"not yet"]
        assert done.head_due == to_datetime(now + 3_600_000)
        assert now <= floor_ms(done.now) <= now_ms(queue.client)

    def test_includes_what_is_due_within_the_lead(self, queue: DelayedQueue) -> None:
        now = now_ms(queue.client)
        offer(queue, "soon", now + 60_000)
        offer(queue, "later", now + 7_200_000)
        done = queue.transfer(lead=3600)
        assert (done.moved, done.head_due) == (1, to_datetime(now + 7_200_000))
        assert delivered(queue) == [b"soon"]
        assert now <= floor_ms(done.now) <= now_ms(queue.client)

    def test_what_is_not_stays_as_it_is(self, queue: DelayedQueue) -> None:
        offer(queue, "later")
        seed(queue, {b"garbage": FAR + 1})
        with nothing_changes(queue.client):
            done = queue.transfer()
        assert (done.moved, done.dead, done.head_due) == (0, 0, to_datetime(FAR))

    def test_an_empty_queue(self, queue: DelayedQueue) -> None:
        done = queue.transfer(transferrer="me", grace=0.25)
        assert (done.moved, done.dead, done.head_due, done.punctual) == (0, 0, None, "")
        assert state(queue.client) == {}

    def test_any_score(self, queue: DelayedQueue) -> None:
        """Java or an operator may have stored what we never do."""
        entries = [codec.pack(b"%d" % i, b"%d" % i) for i in range(4)]
        scores = [float("-inf"), -1.5, 0.25, float("inf")]
        seed(queue, dict(zip(entries, scores, strict=True)))
        done = queue.transfer()
        assert delivered(queue) == [b"0", b"1", b"2"]
        assert done.head_due is None
        assert queue.size() == 1


class TestOrder:
    @on_a_server(max_examples=40)
    @given(
        messages=st.lists(st.tuples(st.integers(0, 3), st.text()), max_size=60),
        limit=st.integers(1, 70),
    )
    def test_is_that_of_due_times_and_then_of_the_offers(
        self, one_queue: DelayedQueue, messages: list[tuple[int, str]], limit: int
    ) -> None:
        one_queue.client.flushall()
        for number, (due_ms, message_id) in enumerate(messages):
            offer(one_queue, message_id, due_ms, payload=b"%d" % number)
        transfer_all(one_queue, limit)
        in_order = sorted(range(len(messages)), key=lambda number: messages[number][0])
        assert delivered(one_queue) == [b"%d" % number for number in in_order]
        assert set(state(one_queue.client)) <= {"q"}


class TestPackings:
    def test_both_of_redisson_are_read(self, queue: DelayedQueue) -> None:
        seed(
            queue,
            {
                codec.pack(b"12345678", b"current"): 1,
                old_entry(0.5, b"old"): 2,
                codec.pack(b"", b"no id"): 3,
                codec.pack(b"i" * 255, b"long id"): 4,
                old_entry(0.0, b""): 5,
            },
        )
        assert queue.transfer().moved == 5
        assert delivered(queue) == [b"current", b"old", b"no id", b"long id", b""]

    @on_a_server(max_examples=40)
    @given(
        raw=st.one_of(
            st.binary(max_size=40),
            st.builds(old_entry, st.floats(), st.binary(max_size=40)),
            st.builds(codec.pack, st.binary(max_size=255), st.binary(max_size=40)),
            st.builds(
                lambda first, length, rest: first + struct.pack("<Q", length) + rest,
                st.binary(min_size=1, max_size=30),
                st.integers(0, 50) | st.integers(2**53, 2**64 - 1),
                st.binary(max_size=50),
            ),
        )
    )
    def test_are_told_apart_as_the_codec_does(self, one_queue: DelayedQueue, raw: bytes) -> None:
        one_queue.client.flushall()
        seed(one_queue, {raw: 1})
        one_queue.transfer()
        try:
            expected = {"q": [codec.unpack(raw)[1]]}
        except InvalidEntry:
            assert records(one_queue.client, "q") == [NO_ENTRY + raw]
            expected = {DEAD: ANY, RECORDS: ANY}
        assert state(one_queue.client) == expected


#: How the record of a corrupt entry begins.
NO_ENTRY = b'{"reason": "not-an-entry"}\n'

GARBAGE = [
    b"",
    b"\x00",
    b"\x18",
    b"\x18" + b"\xff" * 60,
    b"garbage",
    b'{"id": "a"}',
    b"\x08" + b"12345678" + struct.pack("<Q", 4) + b"pay",
    b"\x08" + b"12345678" + struct.pack("<Q", 2**64 - 1) + b"pay",
    b"\x08" + b"12345678" + struct.pack(">Q", 3) + b"pay",
    b"\xff" * 300,
    bytes(15),
]


class TestGarbage:
    def test_is_set_aside_and_its_neighbours_are_delivered_once(self, queue: DelayedQueue) -> None:
        for number, raw in enumerate(GARBAGE):
            offer(queue, f"before {number}", 2 * number)
            seed(queue, {raw: 2 * number + 1})
        offer(queue, "last", 1000)
        assert transfer_all(queue, limit=4) == (len(GARBAGE) + 1, len(GARBAGE))
        good = [b"before %d" % number for number in range(len(GARBAGE))]
        assert delivered(queue) == [*good, b"last"]
        assert records(queue.client, "q") == [NO_ENTRY + raw for raw in GARBAGE]
        assert state(queue.client).keys() == {"q", DEAD, RECORDS}

    @on_a_server(max_examples=40)
    @given(
        entries=st.lists(st.tuples(st.integers(0, 2), st.one_of(st.none(), st.binary(max_size=60))), max_size=40),
        limit=st.integers(1, 50),
        mirror_list=st.booleans(),
    )
    def test_of_any_shape_among_good_ones(
        self,
        one_queue: DelayedQueue,
        entries: list[tuple[int, bytes | None]],
        limit: int,
        mirror_list: bool,
    ) -> None:
        """None stands for an offer of ours, bytes for what somebody else put there."""
        one_queue.client.flushall()
        one_queue.mirror_list = mirror_list
        good, foreign = [], {}
        for number, (due_ms, raw) in enumerate(entries):
            if raw is None:
                good.append((due_ms, b"%d" % number))
                offer(one_queue, str(number), due_ms)
            else:
                foreign[raw] = due_ms
                seed(one_queue, {raw: due_ms})
        transfer_all(one_queue, limit)
        dead = {record.removeprefix(NO_ENTRY) for record in records(one_queue.client, "q")}
        assert dead <= foreign.keys()
        by_chance = [codec.unpack(raw)[1] for raw in foreign.keys() - dead]
        ours = sorted(good, key=lambda message: message[0])
        if not by_chance:
            assert delivered(one_queue) == [payload for _, payload in ours]
        assert sorted(delivered(one_queue)) == sorted(by_chance + [raw for _, raw in good])
        assert set(state(one_queue.client)) <= {"q", DEAD, RECORDS}

    def test_more_of_it_than_a_call_takes(self, queue: DelayedQueue) -> None:
        seed(queue, {b"garbage %d" % number: 1 for number in range(250)})
        offer(queue, "good", 2)
        done = queue.transfer(100)
        assert (done.moved, done.dead, done.head_due) == (0, 100, to_datetime(1))
        assert transfer_all(queue) == (1, 150)


class TestBounds:
    @pytest.mark.parametrize("limit", [1, 49, 50, 51, 100, 1000])
    def test_no_more_entries_than_the_limit(self, queue: DelayedQueue, limit: int) -> None:
        seed(queue, {codec.pack(b"%d" % i, b""): i for i in range(limit + 1)})
        assert queue.transfer(limit).moved == limit
        assert queue.size() == 1

    def test_no_further_slice_after_256_kib(self, queue: DelayedQueue) -> None:
        """So that big messages do not make a call long; of small ones, it takes them all."""
        seed(queue, {codec.pack(b"%03d" % i, bytes(1_000_000)): i for i in range(3)})
        assert queue.transfer(300).moved == 1
        queue.client.flushall()
        seed(queue, {codec.pack(b"%03d" % i, bytes(10_000)): i for i in range(300)})
        assert queue.transfer(300).moved == 262144 // 10_012 + 1
        queue.client.flushall()
        seed(queue, {codec.pack(b"%03d" % i, bytes(100)): i for i in range(300)})
        assert queue.transfer(300).moved == 300

    def test_fewer_while_a_long_delay_list_has_to_be_walked(self, queue: DelayedQueue) -> None:
        entries = [codec.pack(b"%05d" % i, b"") for i in range(10_000)]
        queue.client.rpush(DELAY_LIST, *entries)
        seed(queue, {entry: i for i, entry in enumerate(entries)})
        assert queue.transfer(1000).moved == 2
        assert queue.client.llen(DELAY_LIST) == 9_998


class TestIndex:
    def test_of_repeated_ids_stays_right(self, queue: DelayedQueue) -> None:
        """Whichever of the entries is moved, cancel finds those that are left."""
        for due_ms in (2, FAR, 1, FAR + 1, 3):
            offer(queue, "a", due_ms, payload=b"%d" % due_ms)
        offer(queue, "other")
        assert queue.transfer(1).moved == 1
        assert queue.transfer(1).moved == 1
        assert delivered(queue) == [b"1", b"2"]
        assert queue.cancel("a") == 3
        assert waiting(queue) == [b"other"]
        assert set(queue.client.hgetall(INDEX)) == {message_key("other")}

    @on_a_server(max_examples=40)
    @given(
        offers=st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=25),
        limit=st.integers(0, 30),
    )
    def test_after_any_offers_and_transfers(
        self, one_queue: DelayedQueue, offers: list[tuple[str, bool]], limit: int
    ) -> None:
        one_queue.client.flushall()
        for number, (message_id, due) in enumerate(offers):
            offer(one_queue, message_id, number if due else FAR + number)
        if limit:
            one_queue.transfer(limit)
        left = waiting(one_queue)
        for message_id in "abc":
            assert one_queue.cancel(message_id) == left.count(message_id.encode())
        assert set(state(one_queue.client)) <= {"q"}

    def test_is_emptied_of_what_others_have_removed(self, queue: DelayedQueue) -> None:
        """RDelayedQueue.remove in Java knows nothing of our index."""
        offer(queue, "a")
        queue.client.delete(TIMEOUT_SET)
        queue.transfer()
        assert state(queue.client) == {}

    def test_survives_an_id_of_ours_without_a_place(self, queue: DelayedQueue) -> None:
        for flags in ({}, {"repeated": True}):
            offer_id = OfferId(5, message_key("a"), **flags)
            seed(queue, {codec.pack(offer_id.to_bytes(), b"pay"): 1})
        assert queue.transfer().moved == 2
        assert state(queue.client) == {"q": [b"pay", b"pay"]}


class TestDelayList:
    def test_entries_of_all_sources_are_removed_from_it(self, queue: DelayedQueue) -> None:
        java, old = codec.pack(b"12345678", b"java"), old_entry(0.5, b"old")
        stays = codec.pack(b"stays...", b"later")
        queue.client.rpush(DELAY_LIST, java, b"garbage", old, stays)
        seed(queue, {java: 1, old: 2, b"garbage": 3, stays: FAR})
        queue.mirror_list = True
        offer(queue, "mirrored", 4)
        queue.mirror_list = False
        offer(queue, "not mirrored", 5)
        transfer_all(queue)
        assert delivered(queue) == [b"java", b"old", b"mirrored", b"not mirrored"]
        assert state(queue.client) == {
            "q": [b"not mirrored", b"mirrored", b"old", b"java"],
            DEAD: ANY,
            RECORDS: ANY,
            TIMEOUT_SET: [(stays, FAR)],
            DELAY_LIST: [stays],
        }


class TestAllOrNothing:
    def seed_everything(self, queue: DelayedQueue) -> None:
        """Fill every key, with 60 good entries (more than a slice) before the garbage."""
        queue.mirror_list = True
        for number in range(60):
            offer(queue, str(number // 2), number)
        seed(queue, {b"garbage": 60})
        bury(queue.client, "q", b"dead before")
        queue.client.lpush("q", b"ready before")
        queue.client.set(TRANSFERRER, "1:me")

    @pytest.mark.parametrize("key", ["q", TIMEOUT_SET, DELAY_LIST, INDEX, DEAD, RECORDS, TRANSFERRER])
    def test_keys_of_another_type(self, queue: DelayedQueue, key: str) -> None:
        self.seed_everything(queue)
        wrong_type(queue, key, lambda: queue.transfer(transferrer="me", grace=0.25))

    @pytest.mark.parametrize("transferrer", ["", "me"])
    def test_a_full_server_does_not_stop_it(self, queue: DelayedQueue, transferrer: str) -> None:
        """What is moved needs no more memory than before, so messages that fill the memory can leave it."""
        self.seed_everything(queue)
        seed(queue, {b"garbage first": -1})
        with out_of_memory(queue.client):
            done = queue.transfer(transferrer=transferrer, grace=0.25)
        assert (done.moved, done.dead, done.head_due) == (60, 2, None)
        assert delivered(queue) == [b"ready before", *(b"%d" % (number // 2) for number in range(60))]
        assert state(queue.client).keys() == {"q", DEAD, RECORDS, TRANSFERRER}
        assert records(queue.client, "q") == [b"dead before", NO_ENTRY + b"garbage first", NO_ENTRY + b"garbage"]

"""page.lua: every entry that waits is on one page, whatever lies among them, and each call is bounded."""

from __future__ import annotations

import os
import random

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from celery_delayq.basics.times import Time, to_datetime
from celery_delayq.queue import codec
from celery_delayq.queue.delayed_queue import DelayedQueue
from celery_delayq.queue.entry import Entry, Position
from tests.properties import on_a_server
from tests.state import FAR, calls, nothing_changes, offer, seed, wrong_type

#: Members of a timeout set: entries of any id and payload, and what is no entry.
MEMBERS = st.one_of(
    st.binary(max_size=40),
    st.builds(bytes.__add__, st.just(b"\x18"), st.binary(max_size=12)),
    st.builds(codec.pack, st.binary(max_size=30), st.binary(max_size=5)),
)


def read_all(queue: DelayedQueue, limit: int = 100, **span: Time) -> list[Entry]:
    return [entry for page in queue.pages(limit=limit, **span) for entry in page]


def payloads(entries: list[Entry]) -> list[bytes]:
    return [entry.payload for entry in entries]


def is_entry(member: bytes) -> bool:
    try:
        codec.unpack(member)
    except codec.InvalidEntry:
        return False
    return True


class TestOrder:
    def test_is_that_of_due_times_and_of_offers(self, queue: DelayedQueue) -> None:
        for name, due_ms in [("c", FAR + 1), ("a", FAR), ("b", FAR), ("d", FAR + 1), ("first", 5)]:
            offer(queue, name, due_ms)
        with nothing_changes(queue.client):
            assert payloads(read_all(queue, 2)) == [b"first", b"a", b"b", b"c", b"d"]

    @on_a_server(max_examples=60)
    @given(members=st.dictionaries(MEMBERS, st.sampled_from([FAR, FAR + 1]), max_size=40), limit=st.integers(1, 7))
    def test_every_entry_is_on_one_page_whatever_else_is_there(
        self, one_queue: DelayedQueue, members: dict[bytes, float], limit: int
    ) -> None:
        """Also after entries that are none, the empty one included, and after pages of nothing else."""
        one_queue.client.flushall()
        if members:
            seed(one_queue, members)
        expected = [raw for raw in one_queue.client.zrange(one_queue.keys.timeout_set, 0, -1) if is_entry(raw)]
        found = [entry.raw for entry in read_all(one_queue, limit)]
        # Entries that differ in nothing but the payload are as good as impossible: ids are unique.
        assert len(found) == len(set(found))
        assert {Entry(0, codec.unpack(raw)[1], b"", raw).position for raw in expected} == {
            Entry(0, codec.unpack(raw)[1], b"", raw).position for raw in found
        }
        assert found == [raw for raw in expected if raw in found]

    def test_what_is_never_due_is_on_no_page(self, queue: DelayedQueue) -> None:
        seed(queue, {codec.pack(os.urandom(8), b"never"): float("inf"), codec.pack(os.urandom(8), b"now"): -1})
        assert payloads(read_all(queue)) == [b"now"]


class TestSpan:
    @pytest.mark.parametrize(
        ("span", "expected"),
        [
            ({}, "abcd"),
            ({"due_after": to_datetime(FAR + 1)}, "bcd"),
            ({"due_before": to_datetime(FAR + 2)}, "abc"),
            ({"due_after": to_datetime(FAR + 1), "due_before": to_datetime(FAR + 2)}, "bc"),
            ({"due_after": FAR / 1000 + 1}, ""),
            ({"due_before": 5}, ""),
        ],
    )
    def test_includes_its_beginning(self, queue: DelayedQueue, span: dict[str, Time], expected: str) -> None:
        for name, due_ms in [("a", FAR), ("b", FAR + 1), ("c", FAR + 1), ("d", FAR + 2)]:
            offer(queue, name, due_ms)
        assert b"".join(payloads(read_all(queue, 1, **span))).decode() == expected
        assert queue.count(**span) == len(expected)


class TestAChangingQueue:
    def test_the_last_entry_of_a_page_need_not_wait_any_more(self, queue: DelayedQueue) -> None:
        for number in range(6):
            offer(queue, str(number), FAR + number // 3)
        page = queue.page(limit=2)
        queue.cancel("1")
        queue.cancel("2")
        offer(queue, "late", FAR)
        assert payloads(queue.page(page[-1])) == [b"late", b"3", b"4", b"5"]

    def test_a_position_says_as_much_as_the_entry(self, queue: DelayedQueue) -> None:
        for number in range(4):
            offer(queue, str(number), FAR, payload=b"\xff" * 50)
        first, *rest = queue.page()
        assert len(first.position.start) == 1 + codec.ID_SIZE + 8
        assert queue.page(first.position) == queue.page(first) == rest

    def test_a_position_whose_entries_are_gone(self, queue: DelayedQueue) -> None:
        offer(queue, "a", FAR)
        assert queue.page(Position(FAR + 1, b"\x18")) == []
        assert payloads(queue.page(Position(FAR - 1, b"\x18"))) == [b"a"]


class TestLimits:
    @pytest.mark.parametrize("limit", [0, -1, 1001])
    def test_a_limit_out_of_range(self, one_queue: DelayedQueue, limit: int) -> None:
        with pytest.raises(ValueError, match="limit must be 1 to 1000"):
            one_queue.page(limit=limit)

    def test_large_entries_end_a_page(self, queue: DelayedQueue) -> None:
        for number in range(60):
            offer(queue, str(number), FAR + number, payload=bytes(200_000))
        page = queue.page(limit=1000)
        assert len(page) == 6  # the sixth exceeds 1 MiB
        assert len(read_all(queue, 1000)) == 60

    def test_no_call_reads_more_the_more_there_is(self, one_queue: DelayedQueue) -> None:
        """20,000 entries, half of them due at one time: a page of 100 is read in slices of 20, after a search."""
        client = one_queue.client
        for start in range(0, 20_000, 5_000):
            entries = {
                codec.pack(os.urandom(8), b"x"): FAR + (random.randrange(1000) if number % 2 else 0)
                for number in range(start, start + 5_000)
            }
            seed(one_queue, entries)
        seen = set()
        most = 0
        client.config_resetstat()
        for page in one_queue.pages():
            seen.update(entry.raw for entry in page)
            most = max(most, calls(client, "zrange"))
            client.config_resetstat()
        assert len(seen) == 20_000
        assert 5 <= most <= 5 + 15

    def test_a_key_of_another_type(self, queue: DelayedQueue) -> None:
        wrong_type(queue, queue.keys.timeout_set, queue.page)


def test_does_not_depend_on_what_the_client_decodes(client: redis.Redis) -> None:
    kwargs = client.get_connection_kwargs()
    with redis.Redis(host=kwargs["host"], port=kwargs["port"], decode_responses=True) as decoding:
        queue = DelayedQueue(decoding, "q")
        offer(queue, "a", payload=b"\xff")
        assert payloads(queue.page()) == payloads(queue.find("a")) == [b"\xff"]


def has_marks(raw: bytes, groups: list[list[bytes]]) -> bool:
    return all(not group or any(mark in raw for mark in group) for group in groups)


class TestSearch:
    @on_a_server(max_examples=60)
    @given(
        members=st.dictionaries(MEMBERS, st.sampled_from([FAR, FAR + 1]), max_size=40),
        marks=st.lists(st.lists(st.binary(max_size=2), max_size=3), max_size=3),
        limit=st.integers(1, 7),
    )
    def test_finds_what_holds_a_mark(
        self, one_queue: DelayedQueue, members: dict[bytes, float], marks: list[list[bytes]], limit: int
    ) -> None:
        one_queue.client.flushall()
        if members:
            seed(one_queue, members)
        everything = read_all(one_queue)
        read, found = 0, []
        for number, entries in one_queue.search(marks, limit=limit):
            assert len(entries) <= number <= limit
            read += number
            found += entries
        # By positions: entries that differ in nothing but the payload count as one.
        wanted = {entry.position for entry in everything if has_marks(entry.raw, marks)}
        assert wanted <= {entry.position for entry in found}
        assert found == [entry for entry in everything if entry in found]
        assert len(found) == len(set(found))
        assert read <= len(members)

    def test_says_how_far_it_is(self, queue: DelayedQueue) -> None:
        for number in range(25):
            offer(queue, str(number), FAR + number, payload=b"a mark" if number % 10 == 3 else b"nothing")
        with nothing_changes(queue.client):
            steps = [
                (read, [entry.score - FAR for entry in entries])
                for read, entries in queue.search([[b"other", b"mark"]], limit=10)
            ]
        assert steps == [(10, [3, 9]), (10, [13, 19]), (5, [23, 24])]

    def test_wants_one_of_each_group(self, queue: DelayedQueue) -> None:
        for number, payload in enumerate([b"alpha one", b"alpha", b"one", b"beta two", b"last"]):
            offer(queue, str(number), FAR + number, payload=payload)
        ((read, entries),) = queue.search([[b"alpha", b"beta"], [], [b"one", b"two"]])
        assert (read, payloads(entries)) == (5, [b"alpha one", b"beta two", b"last"])

    def test_goes_on_behind_what_is_corrupt(self, queue: DelayedQueue) -> None:
        seed(queue, {b"corrupt %d" % number: FAR for number in range(10)})
        offer(queue, "last", FAR + 1)
        assert [(read, payloads(entries)) for read, entries in queue.search([[b"nobody"]], limit=4)] == [
            (4, []),
            (4, []),
            (3, [b"last"]),
        ]

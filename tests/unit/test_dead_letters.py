"""Dead letters: whatever is among them can be listed and purged, and messages requeued, while others do it, too."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from celery_delayq import DeadChunk, DeadLetter, DeadLetters, DeadPage
from celery_delayq.basics.times import to_datetime
from celery_delayq.queue import cursors
from celery_delayq.queue.dead_letter import DELIVERY_LIMIT, INVALID_TASK, NOT_A_MESSAGE, NOT_AN_ENTRY, pack, unpack
from examples.private_redis import PrivateRedis
from tests.properties import on_a_server
from tests.state import DEAD, RECORDS, bury, calls, nothing_changes, oldest_first, state

#: Many letters.
MANY = 50_000


@pytest.fixture(params=[{}, {"decode_responses": True}], ids=["plain", "decoding"])
def letters(request: pytest.FixtureRequest, redis_server: PrivateRedis, client: redis.Redis) -> Iterator[DeadLetters]:
    """The dead letters of "q", through clients as users have them; there are none."""
    with redis_server.client(**request.param) as any_client:
        yield DeadLetters(any_client, "q")


def fill(client: redis.Redis, *numbers: int) -> list[str]:
    """Add letters "0", "1", ..., and return their ids."""
    return bury(client, "q", *(pack(b"%d" % number, reason=DELIVERY_LIMIT, deliveries=2) for number in numbers))


def numbers_of(letters: Iterable[DeadLetter]) -> list[int]:
    return [int(letter.message) for letter in letters]


def remove(client: redis.Redis, ids: list[str], *numbers: int) -> None:
    """Purge letters, as somebody else does."""
    letters = DeadLetters(client, "q")
    for number in numbers:
        letter = letters.find(ids[number])
        assert letter is not None
        assert letters.purge(letter)


def in_chunks(change: Callable[[int, str | None], DeadChunk], limit: int) -> Iterator[DeadChunk]:
    cursor = None
    while True:
        chunk = change(limit, cursor)
        yield chunk
        if (cursor := chunk.cursor) is None:
            return


def revive(message: bytes) -> bytes:
    return message + b" revived"


class TestRecord:
    @given(
        message=st.binary(),
        reason=st.sampled_from([DELIVERY_LIMIT, NOT_A_MESSAGE]),
        deliveries=st.none() | st.integers(0, 1000),
        error=st.none() | st.text(),
    )
    def test_what_goes_in_comes_out(
        self, message: bytes, reason: str, deliveries: int | None, error: str | None
    ) -> None:
        record = pack(message, reason=reason, deliveries=deliveries, error=error)
        assert unpack("q", 5, "id", record) == DeadLetter("q", to_datetime(5), "id", reason, message, deliveries, error)

    def test_is_this(self) -> None:
        """Golden: other programs may read it."""
        record = b'{"reason": "delivery-limit", "deliveries": 20}\nmessage\nof two lines'
        assert pack(b"message\nof two lines", reason=DELIVERY_LIMIT, deliveries=20) == record
        record = b'{"reason": "invalid-task", "error": "its id is wrong"}\nmessage'
        assert pack(b"message", reason=INVALID_TASK, error="its id is wrong") == record

    def test_may_have_further_fields(self) -> None:
        record = b'{"reason": "new", "what": {"is": 5}}\nmessage'
        assert unpack("q", 5, "id", record) == DeadLetter("q", to_datetime(5), "id", "new", b"message")

    @pytest.mark.parametrize(
        "record",
        [
            b"",
            b"\n",
            b"garbage",
            b"garbage\nmessage",
            b"5\nmessage",
            b"[]\nmessage",
            b'"text"\nmessage',
            b"null\nmessage",
            b"{}\nmessage",
            b'{"reason": {}}\nmessage',
            b'{"reason": "delivery-limit", "deliveries": []}\nmessage',
            b'{"reason": "invalid-task", "error": 5}\nmessage',
            b"\xff\xfe\nmessage",
            b"[" * 100_000 + b"\n",
        ],
        ids=lambda record: repr(record[:30]),
    )
    def test_what_was_not_packed_here_is_no_entry(self, record: bytes) -> None:
        assert unpack("q", 5, "id", record) == DeadLetter("q", to_datetime(5), "id", NOT_AN_ENTRY, record)

    @given(st.binary())
    def test_any_bytes_can_be_shown(self, record: bytes) -> None:
        assert record.endswith(unpack("q", 5, "id", record).message)


class TestRead:
    def test_there_are_none_at_first(self, letters: DeadLetters) -> None:
        assert len(letters) == 0
        assert list(letters) == []
        assert letters.find("0" * 16) is None
        assert letters.page() == DeadPage((), None)
        assert letters.purge() == 0
        assert letters.purge_some() == letters.requeue_some(revive=revive) == DeadChunk(0, 0, None)

    def test_a_letter_has_its_id_its_time_and_its_record(self, letters: DeadLetters, client: redis.Redis) -> None:
        first, second = bury(client, "q", pack(b"\xff", reason=INVALID_TASK, error="why"), b"\xff", at_ms=1234567)
        expected = [
            DeadLetter("q", to_datetime(1234567), first, INVALID_TASK, b"\xff", error="why"),
            DeadLetter("q", to_datetime(1234568), second, NOT_AN_ENTRY, b"\xff"),
        ]
        assert list(letters) == list(letters.page()) == expected
        assert [letters.find(first), letters.find(second)] == expected

    def test_finds_letters_by_their_ids(self, letters: DeadLetters, client: redis.Redis) -> None:
        ids = fill(client, *range(300))
        found = letters.find_many([*ids, "never", "0" * 16, "\ud800"])
        assert list(found) == ids
        assert numbers_of(found.values()) == list(range(300))
        assert letters.find_many([]) == {}

    @pytest.mark.parametrize("count", [1, 99, 100, 101, 250])
    def test_the_oldest_comes_first(self, letters: DeadLetters, client: redis.Redis, count: int) -> None:
        fill(client, *range(count))
        assert len(letters) == count
        assert numbers_of(letters) == list(range(count))

    @pytest.mark.parametrize("verb", ["purge", "requeue"])
    @pytest.mark.parametrize("share", [0.7, 1.0])
    def test_letters_that_leave_hide_no_others_and_none_comes_twice(
        self, letters: DeadLetters, client: redis.Redis, verb: str, share: float
    ) -> None:
        fill(client, *range(350))
        chance = random.Random(1)
        seen = []
        for letter in letters:
            seen.append(letter)
            if chance.random() < share:
                assert getattr(letters, verb)(letter)
        assert numbers_of(seen) == list(range(350))

    def test_it_ends_though_letters_come_back(self, letters: DeadLetters, client: redis.Redis) -> None:
        fill(client, *range(250))
        count = 0
        for letter in letters:
            letters.purge(letter)
            fill(client, 1)
            count += 1
        assert count == 250

    def test_a_letter_without_a_record_is_not_shown_and_can_be_purged(
        self, letters: DeadLetters, client: redis.Redis
    ) -> None:
        """Somebody removed the record."""
        fill(client, 1, 2)
        client.delete(RECORDS)
        assert list(letters) == list(letters.page()) == []
        assert letters.purge_some() == DeadChunk(2, 0, None)

    def test_each_list_has_its_own(self, letters: DeadLetters, client: redis.Redis) -> None:
        fill(client, 1)
        other = DeadLetters(client, "shop:celery")
        assert len(other) == other.purge() == 0
        assert len(letters) == 1


class TestPage:
    @pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 99, 100, 101, 250, 1001])
    @pytest.mark.parametrize("limit", [10, 100, 1000])
    @pytest.mark.parametrize("at_once", [True, False])
    def test_pages_are_all_letters(self, client: redis.Redis, count: int, limit: int, at_once: bool) -> None:
        """Whether they died one after the other or in the same ms."""
        letters = DeadLetters(client, "q")
        ids = fill(client, *range(count))
        if at_once and ids:
            client.zadd(DEAD, dict.fromkeys(ids, 5))
        found, cursor = [letters.page(limit=limit)], None
        while cursor := found[-1].cursor:
            found.append(letters.page(cursor, limit))
        assert numbers_of(letter for page in found for letter in page) == list(range(count))
        assert all(len(page) == limit for page in found[:-1])
        assert len(found[-1]) or not count, "the last page has no cursor, though it is full"

    def test_new_letters_come_last(self, letters: DeadLetters, client: redis.Redis) -> None:
        fill(client, *range(20))
        page = letters.page(limit=10)
        fill(client, 20, 21)
        assert numbers_of(letters.page(page.cursor)) == list(range(10, 22))

    @on_a_server(max_examples=60)
    @given(data=st.data())
    def test_whatever_others_remove_the_rest_is_shown_once(self, client: redis.Redis, data: st.DataObject) -> None:
        client.delete(DEAD, RECORDS)
        letters = DeadLetters(client, "q")
        ids = fill(client, *range(data.draw(st.integers(0, 60))))
        times = data.draw(st.lists(st.integers(1, 3), min_size=len(ids), max_size=len(ids)))
        if ids:
            client.zadd(DEAD, dict(zip(ids, sorted(times), strict=True)))
        there = set(range(len(ids)))
        cursor, seen = None, []
        while True:
            page = letters.page(cursor, data.draw(st.integers(1, 20)))
            seen += numbers_of(page)
            if (cursor := page.cursor) is None:
                break
            gone = data.draw(st.sets(st.sampled_from(sorted(there)))) if there else set()
            remove(client, ids, *gone)
            there -= gone
        assert seen == sorted(set(seen))
        assert there <= set(seen)

    @pytest.mark.parametrize("limit", [0, -1, 1001])
    def test_a_limit_is_in_range(self, letters: DeadLetters, limit: int) -> None:
        for call in (letters.page, lambda limit: letters.requeue_some(limit, revive=revive), letters.purge_some):
            with pytest.raises(ValueError, match="limit must be 1 to 1000"):
                call(limit=limit)

    @pytest.mark.parametrize(
        "cursor",
        [
            "",
            "x",
            "ü",
            "none",
            cursors.encode([]),
            cursors.encode([5]),
            cursors.encode([["q", -1, "0" * 16]]),
            cursors.encode([["q", True, "0" * 16]]),
            cursors.encode([["q", 2**70, "0" * 16]]),
            cursors.encode([["q", 5, 5]]),
            cursors.encode([["q", 5, "not an id"]]),
            cursors.encode([["q", 5, "0" * 16], "5"]),
            cursors.encode([[5, 5, "0" * 16]]),
            cursors.encode([["q", 5, "0" * 16], 5, 5]),
            cursors.encode([1700000000000, "celery", "00ff"]),  # of `DelayQ.scheduled`
            "5",
            "e30",
        ],
    )
    def test_a_wrong_cursor_is_an_error(self, letters: DeadLetters, cursor: str) -> None:
        with pytest.raises(ValueError, match="cursor must be the cursor of a page"):
            letters.page(cursor)
        with pytest.raises(ValueError, match="cursor must be the cursor of a page"):
            letters.purge_some(cursor=cursor)

    def test_wrong_types_are_errors(self, letters: DeadLetters) -> None:
        cursor: Any = 5
        with pytest.raises(TypeError, match="cursor"):
            letters.page(cursor)
        limit: Any = 1.0
        with pytest.raises(TypeError, match="limit"):
            letters.page(limit=limit)

    def test_costs_as_much_of_many_letters_as_of_few(self, client: redis.Redis) -> None:
        """At the beginning, in the middle and at the end, even if the letter that the cursor names is gone."""
        letters = DeadLetters(client, "q")
        ids = fill(client, *range(MANY))
        for start in (0, MANY // 2, MANY - 100):
            cursor = cursors.encode([["dead:q", start, ids[start - 1]]]) if start else None
            for _ in range(2):
                client.config_resetstat()
                assert numbers_of(letters.page(cursor)) == list(range(start, start + 100))
                asked = 2 if start == MANY - 100 else 1  # the failed tasks come after the last letter
                assert (calls(client, "evalsha"), calls(client, "hmget")) == (asked, 1)
                assert calls(client, "zrange") < 10
                if start:
                    client.zrem(DEAD, ids[start - 1])
        client.config_resetstat()
        assert letters.purge_some().changed == 1000
        assert (calls(client, "evalsha"), calls(client, "zrem")) == (20, 20)


class TestRequeue:
    def test_puts_the_message_to_the_back(self, letters: DeadLetters, client: redis.Redis) -> None:
        client.lpush("q", b"waiting")
        fill(client, 1, 2)
        first, second = letters
        assert letters.requeue(first)
        assert letters.requeue(second, b"2 revived")
        assert state(client).keys() == {"q"}
        assert oldest_first(client, "q") == [b"waiting", b"1", b"2 revived"]

    def test_only_once(self, letters: DeadLetters, client: redis.Redis) -> None:
        fill(client, 1)
        (letter,) = letters
        letters.requeue(letter)
        with nothing_changes(client):
            assert not letters.requeue(letter)
            assert letters.purge(letter) == 0

    def test_one_of_two_that_are_the_same(self, letters: DeadLetters, client: redis.Redis) -> None:
        fill(client, 1, 1)
        first, second = letters
        assert letters.requeue(second)
        assert oldest_first(client, "q") == [b"1"]
        assert list(letters) == [first]

    def test_not_of_what_is_no_message(self, letters: DeadLetters, client: redis.Redis) -> None:
        bury(client, "q", b"garbage")
        (letter,) = letters
        with nothing_changes(client), pytest.raises(ValueError, match=letter.id):
            letters.requeue(letter)


class TestPurge:
    def test_all(self, letters: DeadLetters, client: redis.Redis) -> None:
        client.lpush("q", b"waiting")
        fill(client, 1, 2)
        assert letters.purge() == 2
        assert state(client) == {"q": [b"waiting"]}

    def test_one(self, letters: DeadLetters, client: redis.Redis) -> None:
        fill(client, 1)
        bury(client, "q", b"\xffgarbage")
        first, second = letters
        assert letters.purge(second) == 1
        assert letters.purge(second) == 0
        assert list(letters) == [first]
        assert letters.purge(first) == 1
        assert state(client) == {}


class TestChunks:
    def test_all_are_requeued_in_order(self, letters: DeadLetters, client: redis.Redis) -> None:
        fill(client, *range(230))
        chunks = in_chunks(lambda limit, cursor: letters.requeue_some(limit, cursor, revive=revive), 100)
        assert [chunk.changed for chunk in chunks] == [100, 100, 30]
        assert state(client).keys() == {"q"}
        assert oldest_first(client, "q") == [b"%d revived" % number for number in range(230)]

    def test_what_is_no_message_is_refused_and_stays(self, letters: DeadLetters, client: redis.Redis) -> None:
        for number in range(150):
            fill(client, number)
            bury(client, "q", b"garbage %d" % number)
        chunks = in_chunks(lambda limit, cursor: letters.requeue_some(limit, cursor, revive=revive), 100)
        assert [(chunk.changed, chunk.refused) for chunk in chunks] == [(50, 50)] * 3
        assert [letter.message for letter in letters] == [b"garbage %d" % number for number in range(150)]
        assert letters.requeue_some(revive=revive) == DeadChunk(0, 150, None)
        assert letters.purge_some() == DeadChunk(150, 0, None)
        assert len(letters) == 0

    def test_they_end_though_letters_come_back(self, letters: DeadLetters, client: redis.Redis) -> None:
        """A task that no worker can take becomes a dead letter again as soon as it is requeued."""
        fill(client, *range(250))
        changed = 0
        for chunk in in_chunks(lambda limit, cursor: letters.requeue_some(limit, cursor, revive=revive), 100):
            changed += chunk.changed
            fill(client, *range(1000, 1100))
        assert changed == 250
        assert len(letters) == 300

    def test_a_chunk_begins_at_the_cursor_of_a_page(self, letters: DeadLetters, client: redis.Redis) -> None:
        ids = fill(client, *range(30))
        page = letters.page(limit=10)
        remove(client, ids, 9)
        chunk = letters.purge_some(10, page.cursor)
        assert chunk.changed == 10
        assert numbers_of(letters) == [*range(9), *range(20, 30)]
        assert letters.purge_some(10, chunk.cursor) == DeadChunk(10, 0, None)
        assert numbers_of(letters) == list(range(9))

    def test_others_take_some_of_it_meanwhile(self, letters: DeadLetters, client: redis.Redis) -> None:
        """While a chunk is on its way, somebody purges 200 letters, before and among those that were read."""
        ids = fill(client, *range(500))
        first = letters.page(limit=300)
        seen = 0

        def reviving(message: bytes) -> bytes:
            nonlocal seen
            if seen == 10:
                remove(client, ids, *range(0, 400, 2))
            seen += 1
            return message

        assert letters.requeue_some(1000, first.cursor, revive=reviving) == DeadChunk(150, 0, None)
        assert oldest_first(client, "q") == [b"%d" % n for n in range(300, 500) if n % 2 or n >= 400]
        assert numbers_of(letters) == list(range(1, 300, 2))

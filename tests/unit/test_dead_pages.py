"""Pages and chunks of dead letters: none is missed, though others requeue and purge meanwhile."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from celery_delayq import DeadChunk, DeadLetter, DeadLetters, DeadPage
from celery_delayq.queue import cursors
from celery_delayq.queue.dead_letter import id_of
from celery_delayq.queue.dead_letters import DELIVERY_LIMIT, pack, unpack
from examples.private_redis import PrivateRedis
from tests.properties import on_a_server
from tests.state import DEAD, nothing_changes, oldest_first, state

#: A large list.
MANY = 100_000


@pytest.fixture(params=[{}, {"decode_responses": True}], ids=["plain", "decoding"])
def letters(request: pytest.FixtureRequest, redis_server: PrivateRedis, client: redis.Redis) -> Iterator[DeadLetters]:
    """The dead list of "q", through clients as users have them; it is empty."""
    with redis_server.client(**request.param) as any_client:
        yield DeadLetters(any_client, "q")


@pytest.fixture
def plain(client: redis.Redis) -> DeadLetters:
    """The same, through one client."""
    return DeadLetters(client, "q")


def raw(number: int) -> bytes:
    return pack(b"%d" % number, reason=DELIVERY_LIMIT, at_ms=number)


def bury(client: redis.Redis, *numbers: int) -> None:
    """Put letters "0", "1", ... into the dead list."""
    for start in range(0, len(numbers), 10_000):
        client.rpush(DEAD, *map(raw, numbers[start : start + 10_000]))


def remove(client: redis.Redis, *numbers: int) -> None:
    """Purge letters, as somebody else does."""
    with client.pipeline() as pipe:
        for number in numbers:
            pipe.lrem(DEAD, 1, raw(number))
        assert all(pipe.execute())


def numbers_of(letters: Any) -> list[int]:
    return [int(letter.message) for letter in letters]


def pages(letters: DeadLetters, limit: int) -> Iterator[DeadPage]:
    cursor = None
    while True:
        page = letters.page(cursor, limit)
        yield page
        cursor = page.cursor
        if cursor is None:
            return


def commands(client: redis.Redis) -> dict[str, int]:
    """How often each command was called since the last time, without those that count."""
    stats = client.info("commandstats")
    client.config_resetstat()
    ours = {name.removeprefix("cmdstat_"): found["calls"] for name, found in stats.items()}
    counting = {"info", "config|resetstat", "client|setinfo", "config"}  # the last one: as Redis 6.2 counts the second
    return {name: calls for name, calls in ours.items() if name not in counting}


def sent(client: redis.Redis) -> int:
    """How many bytes the server has sent so far."""
    return int(client.info("stats")["total_net_output_bytes"])


class TestPage:
    @pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 99, 100, 101, 250, 1001])
    @pytest.mark.parametrize("limit", [1, 10, 100, 1000])
    def test_pages_are_the_list(self, letters: DeadLetters, client: redis.Redis, count: int, limit: int) -> None:
        if count / limit > 300:
            count = 300
        bury(client, *range(count))
        found = list(pages(letters, limit))
        assert numbers_of(letter for page in found for letter in page) == list(range(count))
        assert all(len(page) == limit for page in found[:-1])
        assert [letter.position for page in found for letter in page] == list(range(count))

    def test_the_last_page_has_no_cursor_though_it_is_full(self, letters: DeadLetters, client: redis.Redis) -> None:
        bury(client, *range(20))
        first = letters.page(limit=10)
        assert first.cursor is not None
        assert letters.page(first.cursor, 10).cursor is None

    def test_new_letters_come_last(self, letters: DeadLetters, client: redis.Redis) -> None:
        bury(client, *range(20))
        page = letters.page(limit=10)
        bury(client, 20, 21)
        assert numbers_of(letters.page(page.cursor)) == list(range(10, 22))

    @pytest.mark.parametrize(
        "gone",
        [[0], [9], [8, 9], range(10), [0, 1, 2, 9], range(15), [10, 11], [0, 10], range(5, 10)],
        ids=str,
    )
    @pytest.mark.parametrize("start", [0, 40])
    def test_nothing_is_missed_or_shown_twice_if_others_remove_letters(
        self, letters: DeadLetters, client: redis.Redis, gone: Any, start: int
    ) -> None:
        """They remove letters of the page, before it and behind it."""
        bury(client, *range(100))
        before = letters.page(limit=start) if start else None
        page = letters.page(before and before.cursor, 10)
        removed = {start + number for number in gone} | ({0, 1} if start else set())
        remove(client, *removed)
        shown = numbers_of(letters.page(page.cursor, 100))
        behind = [number for number in range(start + 10, 100) if number not in removed]
        assert shown[-len(behind) :] == behind
        # The cursor names only some letters of the page: without these, the rest may be shown again.
        assert set(shown) <= {*behind, *range(start, start + 10)}
        if not {start + 9, start + 8} <= removed:
            assert shown == behind

    def test_the_letter_before_the_page_is_enough(self, plain: DeadLetters, client: redis.Redis) -> None:
        bury(client, *range(3000))
        cursor = plain.page(plain.page(None, 1000).cursor, 1000).cursor
        remove(client, *range(1000, 2000))
        assert numbers_of(plain.page(cursor, 2)) == [2000, 2001]

    def test_a_cursor_whose_letters_are_all_gone_goes_back(self, plain: DeadLetters, client: redis.Redis) -> None:
        bury(client, *range(3000))
        cursor = plain.page(plain.page(None, 1000).cursor, 1000).cursor
        remove(client, 999, *range(1500, 2000))
        assert numbers_of(plain.page(cursor, 1000)) == [*range(1001, 1500), *range(2000, 2501)]

    def test_what_is_missed_if_more_than_the_window_is_removed(self, plain: DeadLetters, client: redis.Redis) -> None:
        bury(client, *range(4000))
        cursor = plain.page(plain.page(None, 1000).cursor, 1000).cursor
        remove(client, *range(1000))
        assert numbers_of(plain.page(cursor, 1)) == [2000]
        remove(client, 1000)
        assert numbers_of(plain.page(cursor, 1)) == [2001]

    def test_a_list_that_shrank_to_almost_nothing(self, plain: DeadLetters, client: redis.Redis) -> None:
        bury(client, *range(3000))
        cursor = None
        for _ in range(2):
            cursor = plain.page(cursor, 1000).cursor
        client.ltrim(DEAD, -5, -1)
        assert numbers_of(plain.page(cursor)) == list(range(2995, 3000))
        client.delete(DEAD)
        assert plain.page(cursor) == DeadPage((), None)

    @pytest.mark.parametrize("limit", [0, -1, 1001])
    def test_a_limit_is_in_range(self, letters: DeadLetters, limit: int) -> None:
        with pytest.raises(ValueError, match="limit must be 1 to 1000"):
            letters.page(limit=limit)

    @pytest.mark.parametrize(
        "cursor",
        [
            "",
            "x",
            "ü",
            "none",
            cursors.encode([]),
            cursors.encode([5]),
            cursors.encode([-1, None]),
            cursors.encode([True, None]),
            cursors.encode([2**70, None]),
            cursors.encode([5, "5"]),
            cursors.encode([5, None, 4]),
            cursors.encode([5, None, 4, "not an id"]),
            cursors.encode([5, None, 4, 4]),
            cursors.encode([1700000000000, "celery", "00ff"]),  # of `DelayQ.scheduled`
            "5",
            "e30",
        ],
    )
    def test_a_wrong_cursor_is_an_error(self, letters: DeadLetters, cursor: str) -> None:
        with pytest.raises(ValueError, match="cursor must be the cursor of a page"):
            letters.page(cursor)
        with pytest.raises(ValueError, match="cursor must be the cursor of a page"):
            letters.purge_some(1, cursor)

    def test_wrong_types_are_errors(self, letters: DeadLetters) -> None:
        cursor: Any = 5
        with pytest.raises(TypeError, match="cursor"):
            letters.page(cursor)
        limit: Any = 1.0
        with pytest.raises(TypeError, match="limit"):
            letters.page(limit=limit)

    @on_a_server(max_examples=60)
    @given(data=st.data())
    def test_whatever_others_remove(self, client: redis.Redis, data: st.DataObject) -> None:
        """Each letter that stays is shown, in order, apart from those that are shown again."""
        client.delete(DEAD)
        letters = DeadLetters(client, "q")
        count = data.draw(st.integers(0, 60))
        there = list(range(count))
        bury(client, *there)
        cursor, seen = None, []
        while True:
            page = letters.page(cursor, data.draw(st.integers(1, 20)))
            seen += numbers_of(page)
            cursor = page.cursor
            if cursor is None:
                break
            gone = data.draw(st.sets(st.sampled_from(there), max_size=len(there))) if there else set()
            if gone:
                remove(client, *gone)
                there = [number for number in there if number not in gone]
        assert set(there) <= set(seen)
        assert numbers_of(page) == sorted(numbers_of(page))


class TestMany:
    def test_a_page_costs_as_much_as_of_few(self, plain: DeadLetters, client: redis.Redis) -> None:
        """The number of commands and of bytes is the same at the beginning, in the middle and at the end."""
        bury(client, *range(MANY))
        cursor = None
        costs = []
        for start in (0, MANY // 2, MANY - 100):
            if start:
                cursor = cursors.encode([start, None, start - 1, id_of(raw(start - 1))])
            commands(client)
            before = sent(client)
            page = plain.page(cursor)
            costs.append((commands(client), (sent(client) - before) // 10_000))
            assert numbers_of(page) == list(range(start, start + 100))
        assert costs[0][0] == costs[1][0] == costs[2][0] == {"lrange": 1}
        assert len({size for _, size in costs}) == 1

    def test_a_page_after_removals_is_bounded(self, plain: DeadLetters, client: redis.Redis) -> None:
        bury(client, *range(MANY))
        cursor = cursors.encode([50_000, None, 49_999, id_of(raw(49_999))])
        client.ltrim(DEAD, 900, -1)
        commands(client)
        assert numbers_of(plain.page(cursor)) == list(range(50_000, 50_100))
        found = commands(client)
        assert found.keys() == {"lrange", "llen"}
        assert sum(found.values()) <= 13

    def test_a_letter_is_found_near_its_place(self, plain: DeadLetters, client: redis.Redis) -> None:
        bury(client, *range(MANY))
        letter = unpack(raw(70_000))
        commands(client)
        assert plain.find(letter.id, 70_000) == letter
        assert commands(client) == {"lrange": 1}
        client.ltrim(DEAD, 300, -1)
        commands(client)
        found = plain.find(letter.id, 70_000)
        assert found is not None
        assert found.position == 69_700
        assert commands(client)["lrange"] <= 7
        assert plain.find(letter.id, 3) == letter
        assert plain.find(letter.id) == letter

    def test_a_chunk_reads_and_moves_in_bounded_calls(self, plain: DeadLetters, client: redis.Redis) -> None:
        bury(client, *range(MANY))
        commands(client)
        assert plain.purge_some().changed == 1000
        found = commands(client)
        assert (found["evalsha"], found["lrem"]) == (20, 20)
        assert found["lrange"] == 40  # by the scripts, too


class TestIteration:
    @pytest.mark.parametrize("verb", ["purge", "requeue"])
    def test_letters_that_leave_hide_no_others(self, letters: DeadLetters, client: redis.Redis, verb: str) -> None:
        bury(client, *range(350))
        seen = []
        for letter in letters:
            seen.append(letter)
            assert getattr(letters, verb)(letter)
        assert numbers_of(seen) == list(range(350))
        assert len(letters) == 0

    def test_some_that_leave_hide_no_others_and_none_comes_twice(
        self, letters: DeadLetters, client: redis.Redis
    ) -> None:
        bury(client, *range(500))
        chance = random.Random(1)
        seen = []
        for letter in letters:
            seen.append(letter)
            if chance.random() < 0.7:
                letters.purge(letter)
        assert numbers_of(seen) == list(range(500))

    def test_it_ends_though_letters_come_back(self, letters: DeadLetters, client: redis.Redis) -> None:
        bury(client, *range(250))
        count = 0
        for letter in letters:
            letters.purge(letter)
            client.rpush(DEAD, letter.raw)
            count += 1
        assert count == 250


class TestPosition:
    def test_is_the_index_and_no_part_of_the_letter(self, letters: DeadLetters, client: redis.Redis) -> None:
        bury(client, *range(150))
        for number, letter in enumerate(letters):
            assert letter.position == number
            assert client.lindex(DEAD, number) == letter.raw
            assert letter == unpack(letter.raw)
            assert "position" not in repr(letter)
        assert unpack(raw(1)).position is None

    @pytest.mark.parametrize("verb", ["purge", "requeue"])
    @pytest.mark.parametrize("position", [None, 0, 1500, 1499, 2000, 10_000, 10**9])
    def test_a_wrong_one_does_no_harm(
        self, letters: DeadLetters, client: redis.Redis, verb: str, position: int | None
    ) -> None:
        bury(client, *range(3000))
        assert getattr(letters, verb)(unpack(raw(1499), position))
        assert len(letters) == 2999
        assert client.lpos(DEAD, raw(1499)) is None

    def test_requeued_twice_it_moves_once(self, letters: DeadLetters, client: redis.Redis) -> None:
        bury(client, *range(1500))
        letter = letters.page(limit=5).letters[4]
        assert letters.requeue(letter)
        with nothing_changes(client):
            assert not letters.requeue(letter)
            assert letters.purge(letter) == 0
        assert oldest_first(client, "q") == [b"4"]


def revive(message: bytes) -> bytes:
    return message + b" revived"


class TestChunks:
    def test_all_are_requeued_in_order(self, letters: DeadLetters, client: redis.Redis) -> None:
        bury(client, *range(230))
        cursor, changed = None, []
        while True:
            chunk = letters.requeue_some(100, cursor, revive=revive)
            changed.append(chunk.changed)
            cursor = chunk.cursor
            if cursor is None:
                break
        assert changed == [100, 100, 30]
        assert state(client).keys() == {"q"}
        assert oldest_first(client, "q") == [b"%d revived" % number for number in range(230)]

    def test_what_is_no_message_is_refused_and_stays(self, letters: DeadLetters, client: redis.Redis) -> None:
        for number in range(150):
            client.rpush(DEAD, raw(number), b"garbage %d" % number)
        chunks, cursor = [], None
        while not chunks or cursor:
            chunks.append(letters.requeue_some(100, cursor, revive=revive))
            cursor = chunks[-1].cursor
        assert [(chunk.changed, chunk.refused) for chunk in chunks] == [(50, 50)] * 3
        assert client.lrange(DEAD, 0, -1) == [b"garbage %d" % number for number in range(150)]
        assert letters.requeue_some(revive=revive) == DeadChunk(0, 150, None)
        assert letters.purge_some() == DeadChunk(150, 0, None)
        assert len(letters) == 0

    def test_there_may_be_none(self, letters: DeadLetters) -> None:
        assert letters.purge_some() == letters.requeue_some(revive=revive) == DeadChunk(0, 0, None)

    def test_it_ends_though_letters_come_back(self, letters: DeadLetters, client: redis.Redis) -> None:
        """A task that no worker can take becomes a dead letter again as soon as it is requeued."""
        bury(client, *range(250))
        chunks, cursor = [], None
        while not chunks or cursor:
            chunks.append(letters.requeue_some(100, cursor, revive=revive))
            cursor = chunks[-1].cursor
            bury(client, *range(1000, 1100))
        assert sum(chunk.changed for chunk in chunks) == 250
        assert len(letters) == 300

    def test_a_chunk_begins_at_the_cursor_of_a_page(self, letters: DeadLetters, client: redis.Redis) -> None:
        bury(client, *range(30))
        page = letters.page(limit=10)
        chunk = letters.purge_some(10, page.cursor)
        assert chunk.changed == 10
        assert numbers_of(letters) == [*range(10), *range(20, 30)]
        assert letters.purge_some(10, chunk.cursor) == DeadChunk(10, 0, None)
        assert numbers_of(letters) == list(range(10))

    def test_chunks_from_a_page_on_reach_the_end_though_letters_before_it_are_gone(
        self, letters: DeadLetters, client: redis.Redis
    ) -> None:
        bury(client, *range(100))
        page = letters.page(limit=50)
        remove(client, *range(40))
        assert letters.purge_some(1000, page.cursor) == DeadChunk(50, 0, None)
        assert numbers_of(letters) == list(range(40, 50))

    def test_no_letter_before_the_cursor_is_changed(self, letters: DeadLetters, client: redis.Redis) -> None:
        """Not even if all that the cursor names are gone: rather some behind it are left out."""
        bury(client, *range(100))
        page = letters.page(letters.page(limit=20).cursor, 10)
        remove(client, 19, 21, 28, 29)
        assert letters.purge_some(10, page.cursor).changed == 10
        assert [number for number in range(100) if number not in numbers_of(letters)] == [
            *(19, 21, 28, 29),
            *range(34, 44),
        ]

    def test_others_take_some_of_it_meanwhile(self, letters: DeadLetters, client: redis.Redis) -> None:
        """While a chunk is on its way, somebody purges 200 letters, before and among those that were read."""
        bury(client, *range(500))
        first = letters.page(limit=300)
        calls = 0

        def reviving(message: bytes) -> bytes:
            nonlocal calls
            if calls == 10:
                remove(client, *range(0, 400, 2))
            calls += 1
            return message

        chunk = letters.requeue_some(1000, first.cursor, revive=reviving)
        assert chunk == DeadChunk(150, 0, None)
        assert oldest_first(client, "q") == [b"%d" % n for n in range(300, 500) if n % 2 or n >= 400]
        assert numbers_of(letters) == list(range(1, 300, 2))

    @pytest.mark.parametrize("limit", [0, 1001])
    def test_a_limit_is_in_range(self, letters: DeadLetters, limit: int) -> None:
        with pytest.raises(ValueError, match="limit must be 1 to 1000"):
            letters.purge_some(limit)
        with pytest.raises(ValueError, match="limit must be 1 to 1000"):
            letters.requeue_some(limit, revive=revive)


def test_letters_are_hashable_by_what_they_are() -> None:
    assert len({unpack(raw(1), 1), unpack(raw(1), 2)}) == 1
    assert isinstance(unpack(raw(1)), DeadLetter)

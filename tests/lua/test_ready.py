"""ready.lua and take_back.lua: a broker list is read, no message that stays is missed, and some are taken back."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
import redis
from hypothesis import given, settings

from celery_delayq.queue import holds, ready
from celery_delayq.queue.delayed_queue import DelayedQueue
from celery_delayq.queue.holds import Claim, Holder
from celery_delayq.queue.ready import START, Place
from tests.state import delivered, now_ms, out_of_memory, publish, state, wrong_type

TAKEN = "delayq:taken:{q}"


def messages(count: int, start: int = 0) -> list[bytes]:
    return [b"m%d" % number for number in range(start, start + count)]


def take(queue: DelayedQueue, *found: tuple[int, bytes], holders: Any = (), instead: Any = ()) -> list[bool]:
    return queue.take_back(found, holders or [None] * len(found), instead)


class TestRead:
    def test_the_newest_first(self, queue: DelayedQueue) -> None:
        publish(queue, *messages(5))
        part = queue.ready(limit=3)
        assert part.found == [(0, b"m4"), (1, b"m3"), (2, b"m2")]
        assert (part.read, part.left, part.place) == (3, 2, Place(3, 0))
        part = queue.ready(part.place, limit=3)
        assert part.found == [(3, b"m1"), (4, b"m0")]
        assert (part.read, part.left) == (2, 0)
        assert queue.ready(part.place, limit=3).found == []

    def test_the_oldest_first(self, queue: DelayedQueue) -> None:
        publish(queue, *messages(5))
        part = queue.oldest_ready(limit=3)
        assert (part.found, part.left) == ([(0, b"m0"), (1, b"m1"), (2, b"m2")], 2)
        part = queue.oldest_ready(3, limit=3)
        assert (part.found, part.left) == ([(3, b"m3"), (4, b"m4")], 0)
        assert queue.oldest_ready(7, limit=3).found == []

    @pytest.mark.parametrize("count", [0, 1, 250, 1000])
    def test_all_at_once(self, queue: DelayedQueue, count: int) -> None:
        if count:
            publish(queue, *messages(count))
        newest, oldest = queue.ready(limit=1000), queue.oldest_ready(limit=1000)
        assert [message for _, message in oldest.found] == messages(count)
        assert [message for _, message in newest.found] == messages(count)[::-1]
        assert [number for number, _ in newest.found] == list(range(count))
        assert (newest.read, newest.left) == (count, 0)

    def test_only_what_has_a_mark_of_each_group_and_the_last_one(self, queue: DelayedQueue) -> None:
        publish(queue, b"a1", b"b2", b"c1", b"a3", b"d4", b"a1.")
        part = queue.ready(limit=5, marks=[(b"a", b"b"), (b"1", b"2")])
        assert part.found == [(0, b"a1."), (4, b"b2")]
        assert part.read == 5
        assert queue.ready(limit=5, marks=[(b"x",)]).found == [(4, b"b2")]

    def test_large_messages_take_several_calls(self, queue: DelayedQueue) -> None:
        publish(queue, *[bytes(300_000)] * 10)
        part = queue.ready(limit=1000)
        assert part.read == 4
        assert part.left == 6
        assert queue.oldest_ready(4, limit=1000).read == 4

    def test_it_changes_nothing_and_another_type_is_refused(self, queue: DelayedQueue) -> None:
        publish(queue, b"m")
        before = state(queue.client)
        queue.ready(limit=10)
        assert state(queue.client) == before
        wrong_type(queue, "q", lambda: queue.ready(limit=10))


class TestTakeBack:
    def test_it_is_the_very_message_and_the_others_stay_in_order(self, queue: DelayedQueue) -> None:
        publish(queue, *messages(9))
        assert take(queue, (1, b"m7"), (4, b"m4"), (8, b"m0")) == [True, True, True]
        assert delivered(queue) == [b"m1", b"m2", b"m3", b"m5", b"m6", b"m8"]
        assert take(queue, (1, b"m7")) == [False]

    def test_what_came_since_has_moved_it(self, queue: DelayedQueue) -> None:
        publish(queue, *messages(300))
        found = [(10, b"m289"), (250, b"m49")]
        publish(queue, *messages(40, 300))
        assert take(queue, *found) == [True, True]
        assert len(delivered(queue)) == 338

    def test_if_very_many_came_one_looks_again(self, queue: DelayedQueue) -> None:
        publish(queue, *messages(10))
        publish(queue, *messages(2000, 10))
        assert take(queue, (5, b"m4")) == [False]
        assert take(queue, (2005, b"m4")) == [True]

    def test_a_consumer_was_faster(self, queue: DelayedQueue) -> None:
        publish(queue, *messages(4))
        queue.client.rpop("q")
        assert take(queue, (0, b"m3"), (3, b"m0")) == [True, False]
        assert delivered(queue) == [b"m1", b"m2"]

    def test_hundreds(self, queue: DelayedQueue) -> None:
        publish(queue, *messages(400))
        found = [one for one in queue.ready(limit=400).found if one[0] % 3]
        assert take(queue, *found) == [True] * len(found)
        assert delivered(queue) == messages(400)[::-1][::3][::-1]

    def test_equal_messages_are_several(self, queue: DelayedQueue) -> None:
        publish(queue, b"same", b"other", b"same", b"same")
        assert take(queue, (0, b"same"), (3, b"same")) == [True, True]
        assert delivered(queue) == [b"other", b"same"]

    def test_the_last_one_leaves_no_list(self, queue: DelayedQueue) -> None:
        publish(queue, b"m")
        assert take(queue, (0, b"m")) == [True]
        assert state(queue.client) == {TAKEN: b"1"}
        assert 0 < queue.client.ttl(TAKEN) <= 3600

    @pytest.mark.parametrize("key", ["q", TAKEN, "delayq:unique:{q}"])
    def test_another_type_is_refused(self, queue: DelayedQueue, key: str) -> None:
        publish(queue, b"m")
        wrong_type(queue, key, lambda: take(queue, (0, b"m")))

    def test_a_full_server(self, queue: DelayedQueue) -> None:
        publish(queue, b"a", b"b")
        with out_of_memory(queue.client):
            assert take(queue, (1, b"a")) == [True]
        assert delivered(queue) == [b"b"]

    def test_a_task_gives_up_its_unique_key(self, queue: DelayedQueue) -> None:
        claim = Claim("key", "done", 60_000, "keep")
        publish(queue, b"first")
        assert queue.offer_unique(b"message", claim, eta=None, message_id="id").outcome == "stored"
        other = Holder.of("other key", "id")
        assert take(queue, (1, b"first"), holders=[other]) == [True]
        assert queue.client.hlen(queue.keys.holds) == 1
        assert take(queue, (0, b"message"), holders=[Holder.of("key", "id")]) == [True]
        assert holds.holds_of(queue.client, [queue.keys], "key") == []

    def test_the_key_stays_if_the_message_is_gone_or_the_key_is_that_of_its_retry(self, queue: DelayedQueue) -> None:
        claim = Claim("key", "done", 60_000, "keep")
        queue.offer_unique(b"message", claim, eta=None, message_id="id", turn=1)
        assert take(queue, (0, b"other"), holders=[Holder.of("key", "id", 1)]) == [False]
        assert take(queue, (0, b"message"), holders=[Holder.of("key", "id", 0)]) == [True]
        (hold,) = holds.holds_of(queue.client, [queue.keys], "key")
        assert hold.ends_ms > now_ms(queue.client)

    def test_at_most_twenty_at_once(self, queue: DelayedQueue, any_client: redis.Redis) -> None:
        publish(queue, *messages(50))
        any_client.config_resetstat()
        take(queue, *queue.ready(limit=50).found)
        assert delivered(queue) == []
        calls = any_client.info("commandstats")["cmdstat_hdel"]["calls"]
        assert calls == -(-50 // ready.MAX_TAKEN_BACK)

    def test_far_from_both_ends_something_takes_its_place(self, queue: DelayedQueue) -> None:
        publish(queue, *messages(30_000))
        places = [0, 9_999, 10_000, 15_000, 15_001, 19_999, 20_000, 29_999]
        chosen = [(place, b"m%d" % (29_999 - place)) for place in places]
        instead = [b"instead of %d" % place for place in places]
        instead[4] = b""
        assert take(queue, *chosen, instead=instead) == [True] * len(places)
        left = [b"m%d" % (29_999 - place) for place in range(30_000)]
        for place in (10_000, 15_000, 19_999):
            left[place] = b"instead of %d" % place
        for place in reversed((0, 9_999, 15_001, 20_000, 29_999)):
            del left[place]
        assert delivered(queue) == left[::-1]
        assert queue.client.get(TAKEN) == b"5"
        assert take(queue, *chosen, instead=instead) == [False] * len(places)

    def test_its_key_is_free_though_something_took_its_place(self, queue: DelayedQueue) -> None:
        publish(queue, *messages(10_000))
        assert queue.offer_unique(b"message", Claim("key", "done", 60_000, "keep"), eta=None, message_id="id")
        publish(queue, *messages(10_000))
        holders = [Holder.of("key", "id")]
        assert take(queue, (10_000, b"message"), holders=holders, instead=[b"instead"]) == [True]
        assert queue.client.lindex("q", 10_000) == b"instead"
        assert holds.holds_of(queue.client, [queue.keys], "key") == []


#: What others do between two slices: they send some messages, take some, put some back, or take some back.
OTHERS = st.lists(
    st.tuples(st.sampled_from(["send", "take", "put back", "take back"]), st.integers(1, 6)),
    max_size=3,
)


@settings(max_examples=150)
@given(size=st.integers(1, 40), limit=st.integers(1, 9), turns=st.lists(OTHERS, max_size=12), data=st.data())
def test_what_stays_is_never_missed(
    redis_server: Any, size: int, limit: int, turns: list[list[tuple[str, int]]], data: st.DataObject
) -> None:
    with redis_server.client() as client:
        client.flushall()
        queue = DelayedQueue(client, "q")
        publish(queue, *messages(size))
        stays, seen, sent = set(messages(size)), set[bytes](), size
        place, held = START, list[bytes]()
        turns = [*turns]
        while True:
            part = queue.ready(place, limit=limit)
            seen |= {message for _, message in part.found}
            if not part.left:
                break
            place = part.place
            for what, count in turns.pop() if turns else ():
                if what == "send":
                    publish(queue, *messages(count, sent))
                    sent += count
                elif what == "take":
                    taken = client.rpop("q", count) or []
                    held, stays = held + taken, stays - set(taken)
                elif what == "put back":
                    client.rpush("q", *held[:count], b"-")
                    held = held[count:]
                else:
                    there = list(enumerate(client.lrange("q", 0, -1)))
                    chosen = data.draw(st.sets(st.sampled_from(there), max_size=count)) if there else set()
                    gone = sorted(chosen)
                    assert take(queue, *gone) == [True] * len(gone)
                    stays -= {message for _, message in gone}
        assert stays <= seen

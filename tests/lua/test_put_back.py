"""put_back.lua: what is in flight goes to another list, once; what is not in flight any more goes nowhere."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_delayq.queue import scripts
from celery_delayq.queue.delayed_queue import DelayedQueue
from tests.properties import on_a_server
from tests.state import (
    DEAD,
    RECORDS,
    bury,
    delivered,
    give,
    held,
    nothing_changes,
    now_ms,
    out_of_memory,
    publish,
    records,
    state,
    wrong_type,
)

ME = "host:1:me"
IN_FLIGHT = "delayq:inflight:{q}:host:1:me"


def put_back(
    queue: DelayedQueue, *messages: bytes, to_front: bool = True, dead: bool = False, mark: bytes = b""
) -> int:
    """Run the script for messages in this order; each is stored with the mark appended."""
    pairs = [(message, message + mark) for message in messages]
    return scripts.put_back(queue.keys, consumer=ME, messages=pairs, to_front=to_front, dead=dead).run(queue.client)


class TestWhere:
    def test_to_the_front_in_the_old_order_if_the_newest_is_named_first(self, queue: DelayedQueue) -> None:
        publish(queue, b"waiting")
        give(queue, ME, b"1", b"2", b"3")
        assert put_back(queue, b"3", b"2", b"1", mark=b" again") == 3
        assert delivered(queue) == [b"1 again", b"2 again", b"3 again", b"waiting"]
        assert state(queue.client).keys() == {"q"}

    def test_to_the_back(self, queue: DelayedQueue) -> None:
        publish(queue, b"waiting")
        give(queue, ME, b"1", b"2")
        assert put_back(queue, b"1", b"2", to_front=False, mark=b" again") == 2
        assert delivered(queue) == [b"waiting", b"1 again", b"2 again"]

    def test_to_the_dead_letters_in_their_order(self, queue: DelayedQueue) -> None:
        bury(queue.client, "q", b"dead before")
        give(queue, ME, b"1", b"2", b"3")
        assert put_back(queue, b"1", b"3", dead=True, mark=b" letter") == 2
        assert records(queue.client, "q") == [b"dead before", b"1 letter", b"3 letter"]
        assert state(queue.client).keys() == {DEAD, RECORDS, IN_FLIGHT}
        assert held(queue, ME) == [b"2"]

    def test_a_dead_letter_has_the_time_of_the_server_and_an_id_that_none_had(self, queue: DelayedQueue) -> None:
        before = now_ms(queue.client)
        give(queue, ME, *(b"same" for _ in range(100)))
        for _ in range(2):
            assert put_back(queue, *(b"same" for _ in range(50)), dead=True) == 50
        times = [score for _, score in queue.client.zrange(DEAD, 0, -1, withscores=True)]
        assert len(times) == queue.client.hlen(RECORDS) == 100
        assert before <= min(times) <= max(times) <= now_ms(queue.client)

    def test_a_call_that_is_repeated_gives_one_dead_letter(self, queue: DelayedQueue) -> None:
        """Its reply was lost."""
        give(queue, ME, b"1")
        assert put_back(queue, b"1", dead=True) == 1
        with nothing_changes(queue.client):
            assert put_back(queue, b"1", dead=True) == 0

    def test_to_its_own_list_written_anew(self, queue: DelayedQueue) -> None:
        give(queue, ME, b"1", b"2", b"2")
        assert scripts.replace(queue.keys, consumer=ME, message=b"2", new=b"2 new").run(queue.client)
        assert held(queue, ME) == [b"2 new", b"1", b"2"]
        with nothing_changes(queue.client):
            assert not scripts.replace(queue.keys, consumer=ME, message=b"3", new=b"3 new").run(queue.client)


class TestWhatIsNotInFlight:
    @pytest.mark.parametrize("to_front", [True, False])
    def test_is_added_nowhere(self, queue: DelayedQueue, to_front: bool) -> None:
        publish(queue, b"waiting")
        give(queue, ME, b"1")
        with nothing_changes(queue.client):
            assert put_back(queue, b"acknowledged", b"waiting", to_front=to_front) == 0

    def test_does_not_keep_its_neighbours(self, queue: DelayedQueue) -> None:
        give(queue, ME, b"1", b"3")
        assert put_back(queue, b"3", b"2", b"1") == 2
        assert delivered(queue) == [b"1", b"3"]

    def test_if_another_consumer_holds_it(self, queue: DelayedQueue) -> None:
        give(queue, "another", b"1")
        with nothing_changes(queue.client):
            assert put_back(queue, b"1") == 0

    def test_nothing_at_all(self, queue: DelayedQueue) -> None:
        give(queue, ME, b"1")
        with nothing_changes(queue.client):
            assert put_back(queue) == 0


class TestTheSameBytesTwice:
    def test_one_is_moved_and_one_stays(self, queue: DelayedQueue) -> None:
        give(queue, ME, b"same", b"other", b"same")
        assert put_back(queue, b"same") == 1
        assert delivered(queue) == [b"same"]
        assert held(queue, ME) == [b"other", b"same"]

    def test_no_more_than_there_are(self, queue: DelayedQueue) -> None:
        give(queue, ME, b"same", b"same")
        assert put_back(queue, b"same", b"same", b"same") == 2
        assert delivered(queue) == [b"same", b"same"]

    @on_a_server(max_examples=40)
    @given(
        in_flight=st.lists(st.binary(max_size=2), max_size=20),
        asked=st.lists(st.binary(max_size=2), max_size=20),
        to_front=st.booleans(),
        dead=st.booleans(),
    )
    def test_any_messages(
        self, one_queue: DelayedQueue, in_flight: list[bytes], asked: list[bytes], to_front: bool, dead: bool
    ) -> None:
        one_queue.client.flushall()
        if in_flight:
            give(one_queue, ME, *in_flight)
        moved = Counter(in_flight) & Counter(asked)
        assert put_back(one_queue, *asked, to_front=to_front, dead=dead) == moved.total()
        there = records(one_queue.client, "q") if dead else delivered(one_queue)
        assert Counter(there) == moved
        assert Counter(held(one_queue, ME)) == Counter(in_flight) - moved


class TestTrouble:
    @pytest.mark.parametrize(
        ("key", "dead"), [("q", False), (DEAD, True), (RECORDS, True), (IN_FLIGHT, False), (IN_FLIGHT, True)]
    )
    def test_keys_of_another_type(self, queue: DelayedQueue, key: str, dead: bool) -> None:
        publish(queue, b"waiting")
        give(queue, ME, b"1", b"2")
        wrong_type(queue, key, lambda: put_back(queue, b"2", b"1", dead=dead))

    @pytest.mark.parametrize("dead", [False, True])
    def test_a_full_server_does_not_stop_it(self, queue: DelayedQueue, dead: bool) -> None:
        give(queue, ME, b"1", b"2")
        with out_of_memory(queue.client):
            assert put_back(queue, b"2", b"gone", b"1", dead=dead, mark=b" longer than before") == 2
        assert len(records(queue.client, "q") if dead else delivered(queue)) == 2

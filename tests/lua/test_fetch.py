"""fetch.lua: a message is in the broker list or in the in-flight list, and only who has a lease gets any."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_delayq.queue import scripts
from celery_delayq.queue.delayed_queue import DelayedQueue
from celery_delayq.queue.scripts import MAX_FETCH
from tests.properties import on_a_server
from tests.state import (
    delivered,
    give,
    held,
    lease,
    nothing_changes,
    out_of_memory,
    publish,
    state,
    wrong_type,
)

ME = "host:1:me"


def fetch(queue: DelayedQueue, limit: int = MAX_FETCH) -> list[bytes] | None:
    return scripts.fetch(queue.keys, consumer=ME, limit=limit).run(queue.client)


class TestMessages:
    def test_come_oldest_first_and_are_in_flight(self, queue: DelayedQueue) -> None:
        score = float(lease(queue, ME))
        publish(queue, b"1", b"2", b"3")
        assert fetch(queue, 2) == [b"1", b"2"]
        assert state(queue.client) == {
            "q": [b"3"],
            "delayq:inflight:{q}:host:1:me": [b"2", b"1"],
            "delayq:consumers:{q}": [(b"host:1:me", score)],
        }

    def test_are_added_to_what_is_in_flight(self, queue: DelayedQueue) -> None:
        lease(queue, ME)
        give(queue, ME, b"before")
        publish(queue, b"1", b"2")
        assert fetch(queue) == [b"1", b"2"]
        assert held(queue, ME) == [b"before", b"1", b"2"]

    def test_an_empty_list(self, queue: DelayedQueue) -> None:
        lease(queue, ME)
        with nothing_changes(queue.client):
            assert fetch(queue) == []

    @on_a_server(max_examples=40)
    @given(messages=st.lists(st.binary(max_size=20), max_size=30), limit=st.integers(1, 40))
    def test_of_any_bytes_and_number(self, one_queue: DelayedQueue, messages: list[bytes], limit: int) -> None:
        """Also the same bytes twice."""
        one_queue.client.flushall()
        lease(one_queue, ME)
        if messages:
            publish(one_queue, *messages)
        assert fetch(one_queue, limit) == messages[:limit] == held(one_queue, ME)
        assert delivered(one_queue) == messages[limit:]


class TestLimits:
    def test_as_many_as_the_limit_lets(self, queue: DelayedQueue) -> None:
        lease(queue, ME)
        publish(queue, *(b"%d" % number for number in range(MAX_FETCH + 1)))
        assert fetch(queue) == [b"%d" % number for number in range(MAX_FETCH)]
        assert delivered(queue) == [b"%d" % MAX_FETCH]

    def test_no_further_message_after_1_mib(self, queue: DelayedQueue) -> None:
        lease(queue, ME)
        publish(queue, *(bytes([number]) * 600_000 for number in range(4)))
        found = fetch(queue)
        assert found == [bytes([number]) * 600_000 for number in range(2)]
        assert len(delivered(queue)) == 2

    def test_one_message_of_any_size(self, queue: DelayedQueue) -> None:
        lease(queue, ME)
        publish(queue, bytes(3_000_000), b"small")
        assert fetch(queue) == [bytes(3_000_000)]


class TestLease:
    def test_whoever_has_none_gets_nothing(self, queue: DelayedQueue) -> None:
        lease(queue, "another")
        publish(queue, b"1")
        with nothing_changes(queue.client):
            assert fetch(queue) is None

    @pytest.mark.parametrize("score", [-1_700_000_000_000, -1, 0])
    def test_whoever_was_given_up_gets_nothing(self, queue: DelayedQueue, score: int) -> None:
        queue.client.zadd(queue.keys.consumers, {ME: score})
        publish(queue, b"1")
        with nothing_changes(queue.client):
            assert fetch(queue) is None

    def test_one_that_has_ended_counts_until_somebody_gives_the_consumer_up(self, queue: DelayedQueue) -> None:
        lease(queue, ME, ms_left=-1000)
        publish(queue, b"1")
        assert fetch(queue) == [b"1"]


class TestTrouble:
    @pytest.mark.parametrize("key", ["q", "delayq:inflight:{q}:host:1:me", "delayq:consumers:{q}"])
    def test_keys_of_another_type(self, queue: DelayedQueue, key: str) -> None:
        lease(queue, ME)
        give(queue, ME, b"before")
        publish(queue, b"1", b"2")
        wrong_type(queue, key, lambda: fetch(queue))

    def test_a_full_server_does_not_stop_it(self, queue: DelayedQueue) -> None:
        lease(queue, ME)
        publish(queue, b"1", b"2", b"3")
        with out_of_memory(queue.client):
            assert fetch(queue, 2) == [b"1", b"2"]
            assert fetch(queue) == [b"3"]
            assert fetch(queue) == []
        assert held(queue, ME) == [b"1", b"2", b"3"]

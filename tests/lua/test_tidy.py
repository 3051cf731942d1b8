"""tidy.lua, and `tidy`, which calls it: places of entries that somebody else took away go, all others stay."""

from __future__ import annotations

import random

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from celery_delayq.queue import scripts
from celery_delayq.queue.codec import message_key
from celery_delayq.queue.delayed_queue import DelayedQueue
from celery_delayq.queue.tidying import tidy
from tests.properties import on_a_server
from tests.state import (
    FAR,
    INDEX,
    REPEATED,
    TIMEOUT_SET,
    calls,
    fill,
    nothing_changes,
    offer,
    out_of_memory,
    state,
    wrong_type,
)


def offer_each(queue: DelayedQueue, *payloads: str) -> None:
    """Offer messages with these payloads; the id of each is the first letter."""
    for payload in payloads:
        offer(queue, payload[0], payload=payload.encode())


def take_away(queue: DelayedQueue, *names: str) -> None:
    """Remove entries as Java does, which knows no index."""
    payloads = {name.encode() for name in names}
    gone = [entry.raw for entry in queue.peek(10_000) if entry.payload in payloads]
    assert queue.client.zrem(TIMEOUT_SET, *gone) == len(gone)


def places(queue: DelayedQueue) -> list[bytes]:
    """Return all places as `tidy.lua` takes them."""
    return [key + place for key, place in queue.client.hgetall(INDEX).items()] + queue.client.zrange(REPEATED, 0, -1)


class TestTheScript:
    def test_forgets_what_waits_no_more_and_nothing_else(self, queue: DelayedQueue) -> None:
        offer_each(queue, "a", "b", "c", "a2", "a3", "b2", "b3")
        take_away(queue, "a", "a2", "a3")
        assert scripts.tidy(queue.keys, places=places(queue)).run(queue.client) == (3, 0)
        assert queue.client.hkeys(INDEX) == [message_key("b"), message_key("c")]
        assert queue.cancel("a") == 0
        assert (queue.cancel("b"), queue.cancel("c")) == (3, 1)

    def test_says_how_many_there_are_too_many(self, queue: DelayedQueue) -> None:
        offer_each(queue, "a", "b", "c", "a2", "a3", "b2", "b3")
        take_away(queue, "a", "a2", "a3")
        with nothing_changes(queue.client):
            assert scripts.tidy(queue.keys, places=[]).run(queue.client) == (0, 3)

    def test_looks_again_at_what_the_caller_read(self, queue: DelayedQueue) -> None:
        """Meanwhile an id was offered again."""
        offer(queue, "a")
        offer(queue, "b")
        seen = places(queue)
        take_away(queue, "a")
        queue.cancel("a")
        offer(queue, "a", FAR + 1)
        with nothing_changes(queue.client):
            assert scripts.tidy(queue.keys, places=seen).run(queue.client) == (0, 0)

    def test_leaves_nothing_of_an_empty_queue(self, queue: DelayedQueue) -> None:
        offer_each(queue, "a", "a2")
        take_away(queue, "a", "a2")
        assert scripts.tidy(queue.keys, places=[]).run(queue.client) == (0, 0)
        assert state(queue.client) == {}

    @pytest.mark.parametrize("key", [TIMEOUT_SET, INDEX, REPEATED])
    def test_keys_of_another_type(self, queue: DelayedQueue, key: str) -> None:
        offer_each(queue, "a", "a2")
        seen = places(queue)
        take_away(queue, "a", "a2")
        offer(queue, "b")
        wrong_type(queue, key, lambda: scripts.tidy(queue.keys, places=seen).run(queue.client))

    def test_needs_no_memory(self, queue: DelayedQueue) -> None:
        offer_each(queue, "a", "a2", "b")
        take_away(queue, "a", "a2")
        with out_of_memory(queue.client):
            assert scripts.tidy(queue.keys, places=places(queue)).run(queue.client) == (2, 0)


class TestAllSteps:
    @pytest.mark.parametrize("options", [{}, {"decode_responses": True}, {"protocol": 3}])
    def test_with_any_client(self, client: redis.Redis, options: dict[str, object]) -> None:
        with redis.Redis(port=client.get_connection_kwargs()["port"], **options) as any_client:  # type: ignore[call-overload]
            queue = DelayedQueue(client, "q")
            offer_each(queue, "a", "a2", "a3", "b")
            take_away(queue, "a", "a2", "a3")
            assert sum(tidy(DelayedQueue(any_client, "q"))) == 3
            assert places(queue) == [place for place in places(queue) if place.startswith(message_key("b"))]

    def test_are_bounded_and_leave_as_many_places_as_entries(self, one_queue: DelayedQueue) -> None:
        fill(one_queue, 2_000)
        for number in range(2_000, 2_300):
            offer(one_queue, "same", payload=b"%d" % number)
        numbers = random.sample(range(2_300), 1_500)
        take_away(one_queue, *map(str, numbers))
        steps = list(tidy(one_queue))
        assert max(steps) <= 50
        assert sum(steps) == 1_500
        assert one_queue.client.hlen(INDEX) + one_queue.client.zcard(REPEATED) == one_queue.size() == 800
        left = [number for number in range(2_000) if number not in set(numbers)]
        assert [one_queue.cancel(str(number)) for number in left] == [1] * len(left)
        one_queue.cancel("same")
        assert one_queue.size() == 0

    def test_are_none_where_nothing_is_to_be_done(self, one_queue: DelayedQueue) -> None:
        fill(one_queue, 1_000)
        one_queue.client.config_resetstat()
        assert list(tidy(one_queue)) == []
        assert calls(one_queue.client, "hscan") == 0

    def test_end_when_there_are_as_many_places_as_entries(self, one_queue: DelayedQueue) -> None:
        fill(one_queue, 5_000)
        one_queue.client.zrem(TIMEOUT_SET, *(entry.raw for entry in one_queue.peek(50)))
        steps = list(tidy(one_queue))
        assert sum(steps) == 50
        assert sum(steps[-3:]) > 0

    @on_a_server(max_examples=40)
    @given(steps=st.lists(st.tuples(st.sampled_from("ortc"), st.sampled_from("abc")), max_size=30))
    def test_forget_nothing_that_waits(self, one_queue: DelayedQueue, steps: list[tuple[str, str]]) -> None:
        one_queue.client.flushall()
        for number, (step, name) in enumerate(steps):
            if step == "o":
                offer(one_queue, name, FAR + number % 3, b"%s%d" % (name.encode(), number))
            elif step == "r" and one_queue.find(name):
                one_queue.client.zrem(TIMEOUT_SET, one_queue.find(name)[-1].raw)
            elif step == "c":
                one_queue.cancel(name)
            else:
                list(tidy(one_queue))
            waiting = [entry.payload[:1] for entry in one_queue.peek(100)]
            for each in "abc":
                assert len(one_queue.find(each)) == waiting.count(each.encode())
        list(tidy(one_queue))
        assert len(places(one_queue)) == one_queue.size()

"""renew.lua and leave.lua: a lease begins, goes on and ends; whoever was given up learns of it."""

from __future__ import annotations

import pytest

from celery_delayq import scripts
from celery_delayq.delayed_queue import DelayedQueue
from celery_delayq.scripts import Renewed
from tests.state import give, lease, nothing_changes, now_ms, out_of_memory, state, wrong_type

ME = "host:1:me"
CONSUMERS = "delayq:consumers:{q}"
IN_FLIGHT = "delayq:inflight:{q}:host:1:me"
LEASE_MS = 30_000
GIVEN_UP = -1_700_000_000_000


def renew(queue: DelayedQueue, join: bool = False) -> Renewed:
    return scripts.renew(queue.client, queue.keys, consumer=ME, lease_ms=LEASE_MS, join=join)


def leave(queue: DelayedQueue) -> bool:
    return scripts.leave(queue.client, queue.keys, consumer=ME)


class TestRenewing:
    @pytest.mark.parametrize("ms_left", [None, 1, -1_000_000], ids=["first", "lasting", "ended"])
    def test_makes_the_lease_last_from_now_on(self, queue: DelayedQueue, ms_left: int | None) -> None:
        """One that has ended, too, as long as nobody has given the consumer up."""
        if ms_left is not None:
            lease(queue, ME, ms_left)
        before = now_ms(queue.client)
        done = renew(queue, join=ms_left is None)
        assert done.renewed
        assert before <= done.now_ms <= now_ms(queue.client)
        assert state(queue.client) == {CONSUMERS: [(ME.encode(), done.now_ms + LEASE_MS)]}

    def test_begins_none_without_being_asked_to(self, queue: DelayedQueue) -> None:
        with nothing_changes(queue.client):
            assert not renew(queue).renewed

    @pytest.mark.parametrize("join", [False, True])
    @pytest.mark.parametrize("score", [GIVEN_UP, 0])
    def test_tells_whoever_was_given_up(self, queue: DelayedQueue, score: int, join: bool) -> None:
        queue.client.zadd(CONSUMERS, {ME: score})
        with nothing_changes(queue.client):
            done = renew(queue, join)
        assert not done.renewed
        assert done.ended == {}

    def test_leaves_the_leases_of_others_alone(self, queue: DelayedQueue) -> None:
        others = {b"lasting": now_ms(queue.client) + 5000, b"ended": 1000, b"given up": GIVEN_UP}
        queue.client.zadd(CONSUMERS, others)
        renew(queue, join=True)
        found = dict(state(queue.client)[CONSUMERS])
        assert {other: found[other] for other in others} == others


class TestSeeingOthers:
    def test_whose_leases_have_ended_and_who_were_given_up(self, queue: DelayedQueue) -> None:
        now = now_ms(queue.client)
        queue.client.zadd(CONSUMERS, {"ended": now, "given up": GIVEN_UP, "lasting": now + 600_000, ME: 1})
        done = renew(queue)
        assert done.ended == {"ended": b"%d" % now, "given up": b"%d" % GIVEN_UP}

    @pytest.mark.parametrize("end", [1, 999_999_999_999, 1_700_000_000_000])
    def test_with_scores_that_recover_takes(self, queue: DelayedQueue, end: int) -> None:
        """They are compared as text."""
        queue.client.zadd(CONSUMERS, {"another": end})
        (score,) = renew(queue, join=True).ended.values()
        done = scripts.recover(
            queue.client, queue.keys, consumer="another", score=score, gone=False, alive_channel="x", messages=[]
        )
        assert done.given_up

    @pytest.mark.parametrize("own_score", [1, GIVEN_UP, None])
    def test_ten_at_most_whether_or_not_it_is_among_them_itself(
        self, queue: DelayedQueue, own_score: int | None
    ) -> None:
        queue.client.zadd(CONSUMERS, {f"ended {number:02}": 1000 + number for number in range(15)})
        if own_score is not None:
            queue.client.zadd(CONSUMERS, {ME: own_score})
        assert list(renew(queue).ended) == [f"ended {number:02}" for number in range(10)]


class TestLeaving:
    def test_ends_the_lease(self, queue: DelayedQueue) -> None:
        lease(queue, ME)
        lease(queue, "another")
        assert leave(queue)
        assert queue.client.zrange(CONSUMERS, 0, -1) == [b"another"]

    def test_leaves_no_key(self, queue: DelayedQueue) -> None:
        lease(queue, ME)
        leave(queue)
        assert state(queue.client) == {}

    def test_not_while_it_holds_messages(self, queue: DelayedQueue) -> None:
        lease(queue, ME)
        give(queue, ME, b"1")
        with nothing_changes(queue.client):
            assert not leave(queue)

    def test_without_a_lease(self, queue: DelayedQueue) -> None:
        assert leave(queue)
        assert state(queue.client) == {}


class TestTrouble:
    def test_renew_with_a_key_of_another_type(self, queue: DelayedQueue) -> None:
        wrong_type(queue, CONSUMERS, lambda: renew(queue, join=True))

    @pytest.mark.parametrize("key", [CONSUMERS, IN_FLIGHT])
    def test_leave_with_keys_of_another_type(self, queue: DelayedQueue, key: str) -> None:
        lease(queue, ME)
        wrong_type(queue, key, lambda: leave(queue))

    def test_a_full_server_stops_nothing(self, queue: DelayedQueue) -> None:
        with out_of_memory(queue.client):
            assert renew(queue, join=True).renewed
            assert queue.client.zscore(CONSUMERS, ME) > now_ms(queue.client)
            assert renew(queue).renewed
            assert leave(queue)
        assert state(queue.client) == {}

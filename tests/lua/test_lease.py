"""renew.lua and leave.lua: a lease begins, goes on and ends; whoever was given up learns of it."""

from __future__ import annotations

import pytest
import redis

from celery_delayq.queue import scripts
from celery_delayq.queue.delayed_queue import DelayedQueue
from celery_delayq.queue.keys import QueueKeys
from celery_delayq.queue.scripts import Renewed
from tests.state import give, lease, nothing_changes, now_ms, out_of_memory, state, wrong_type
from tests.state import renew as renew_lease

ME = "host:1:me"
CONSUMERS = "delayq:consumers:{q}"
IN_FLIGHT = "delayq:inflight:{q}:host:1:me"
LEASE_MS = 30_000
GIVEN_UP = -1_700_000_000_000


def renew(queue: DelayedQueue, join: bool = False) -> Renewed:
    return renew_lease(queue, ME, lease_ms=LEASE_MS, join=join)


def leave(queue: DelayedQueue) -> bool:
    return scripts.leave(queue.keys, consumer=ME).run(queue.client)


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
            done = renew(queue)
        assert (done.renewed, done.is_known) == (False, False)

    @pytest.mark.parametrize("join", [False, True])
    @pytest.mark.parametrize("score", [GIVEN_UP, 0])
    def test_tells_whoever_was_given_up(self, queue: DelayedQueue, score: int, join: bool) -> None:
        queue.client.zadd(CONSUMERS, {ME: score})
        with nothing_changes(queue.client):
            done = renew(queue, join)
        assert not done.renewed
        assert done.silent == done.given_up == {}

    def test_leaves_the_leases_of_others_alone(self, queue: DelayedQueue) -> None:
        others = {b"lasting": now_ms(queue.client) + 5000, b"ended": 1000, b"given up": GIVEN_UP}
        queue.client.zadd(CONSUMERS, others)
        renew(queue, join=True)
        found = dict(state(queue.client)[CONSUMERS])
        assert {other: found[other] for other in others} == others


class TestSeveralLists:
    """Of one hash slot, so that they are on one node of a cluster."""

    LISTS = tuple(QueueKeys.of(name) for name in ("{q}", "{q}:3", "{q}:6"))

    def renew(self, queue: DelayedQueue, join: bool = False) -> list[Renewed | redis.ResponseError]:
        return scripts.renew(self.LISTS, consumer=ME, lease_ms=LEASE_MS, join=join).run(queue.client)

    def test_each_lease_goes_on_or_not(self, queue: DelayedQueue) -> None:
        lasting, given_up, left = (keys.consumers for keys in self.LISTS)
        queue.client.zadd(lasting, {ME: 1, "another": 1000})
        queue.client.zadd(given_up, {ME: GIVEN_UP})
        first, second, third = self.renew(queue)
        assert isinstance(first, Renewed)
        assert first == Renewed(True, first.now_ms, {"another": b"1000"}, {})
        assert second == Renewed(False, first.now_ms, {}, {})
        assert third == Renewed(False, first.now_ms, {}, {}, is_known=False)
        assert queue.client.zscore(lasting, ME) == first.now_ms + LEASE_MS
        assert queue.client.zscore(given_up, ME) == GIVEN_UP
        assert not queue.client.exists(left)

    def test_a_key_of_another_type_stops_only_its_own(self, queue: DelayedQueue) -> None:
        queue.client.set(self.LISTS[1].consumers, "text")
        first, second, third = self.renew(queue, join=True)
        assert isinstance(second, redis.ResponseError)
        assert "WRONGTYPE" in str(second)
        assert isinstance(first, Renewed)
        assert first.renewed
        assert third == first
        assert queue.client.get(self.LISTS[1].consumers) == b"text"


class TestSeeingOthers:
    def test_who_are_silent_whose_leases_have_ended_and_who_were_given_up(self, queue: DelayedQueue) -> None:
        """Whoever is alive renews when more than half of the lease is left."""
        now = now_ms(queue.client)
        silent = now + LEASE_MS // 2
        queue.client.zadd(
            CONSUMERS, {"ended": now, "given up": GIVEN_UP, "silent": silent, "lasting": silent + 5000, ME: 1}
        )
        done = renew(queue)
        assert done.silent == {"ended": b"%d" % now, "silent": b"%d" % silent}
        assert done.ended == {"ended": b"%d" % now}
        assert done.given_up == {"given up": b"%d" % GIVEN_UP}

    @pytest.mark.parametrize("end", [1, 999_999_999_999, 1_700_000_000_000])
    def test_with_scores_that_recover_takes(self, queue: DelayedQueue, end: int) -> None:
        """They are compared as text."""
        queue.client.zadd(CONSUMERS, {"another": end})
        (score,) = renew(queue, join=True).ended.values()
        done = scripts.recover(
            queue.keys, consumer="another", score=score, gone=False, alive_channel="", messages=[]
        ).run(queue.client)
        assert done.given_up

    @pytest.mark.parametrize("own_score", [1, GIVEN_UP, None])
    def test_a_hundred_of_each_at_most(self, queue: DelayedQueue, own_score: int | None) -> None:
        """Those first that have been silent for longest; however many were given up, others are seen."""
        silent = [f"silent {number:03}" for number in range(150)]
        given_up = [f"given up {number:03}" for number in range(150)]
        queue.client.zadd(CONSUMERS, {name: 1000 + number for number, name in enumerate(silent)})
        queue.client.zadd(CONSUMERS, {name: GIVEN_UP - number for number, name in enumerate(given_up)})
        if own_score is not None:
            queue.client.zadd(CONSUMERS, {ME: own_score})
        done = renew(queue)
        assert list(done.silent) == silent[:100]
        assert list(done.given_up) == given_up[: 99 if own_score == GIVEN_UP else 100]


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

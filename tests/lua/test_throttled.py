"""offer_throttled.lua: the turns of a key are an interval apart, whatever is asked for, in whatever order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celery_delayq.basics.times import to_datetime
from celery_delayq.queue import codec
from celery_delayq.queue.delayed_queue import DelayedQueue
from celery_delayq.queue.holds import Claim, Pace, unique_of
from tests.state import floor_ms, now_ms
from tests.support import wait_until

INTERVAL_MS = 1000
PACE = Pace("customer 7", INTERVAL_MS * 1000)
FAR = 2**44


def turn(queue: DelayedQueue, task_id: str, due_ms: int | None = FAR, pace: Pace = PACE) -> int:
    eta = None if due_ms is None else to_datetime(due_ms)
    due = queue.offer_throttled(task_id.encode(), pace, eta=eta, message_id=task_id)
    return 0 if due is None else floor_ms(due)


def dues(queue: DelayedQueue) -> list[int]:
    return [entry.score for entry in queue.peek(1000)]


def test_one_after_the_other(queue: DelayedQueue) -> None:
    assert [turn(queue, str(number)) for number in range(5)] == [FAR + number * INTERVAL_MS for number in range(5)]
    assert [entry.payload for entry in queue.peek(9)] == [b"0", b"1", b"2", b"3", b"4"]


def test_the_first_one_is_due_at_once(queue: DelayedQueue) -> None:
    now = now_ms(queue.client)
    first = turn(queue, "first", None)
    assert 0 <= first - now < 60_000
    assert turn(queue, "second", None) - first in (INTERVAL_MS, INTERVAL_MS + 1)
    wait_until(lambda: queue.transfer().moved == 1, "it is due, within a millisecond")


def test_keys_do_not_wait_for_each_other(queue: DelayedQueue) -> None:
    assert turn(queue, "one") == turn(queue, "two", pace=Pace("customer 8", INTERVAL_MS * 1000)) == FAR


def test_an_earlier_time_is_free_though_later_ones_are_taken(queue: DelayedQueue) -> None:
    for number in range(3):
        turn(queue, str(number), FAR + 60_000)
    assert turn(queue, "early") == FAR
    assert turn(queue, "next") == FAR + INTERVAL_MS


def test_a_gap_that_is_too_small_is_left(queue: DelayedQueue) -> None:
    turn(queue, "one", FAR)
    turn(queue, "two", FAR + 2 * INTERVAL_MS - 1)
    assert turn(queue, "three", FAR) == FAR + 3 * INTERVAL_MS - 1


def test_a_gap_that_is_large_enough_is_taken(queue: DelayedQueue) -> None:
    turn(queue, "one", FAR)
    turn(queue, "two", FAR + 2 * INTERVAL_MS)
    assert turn(queue, "three", FAR) == FAR + INTERVAL_MS
    assert turn(queue, "four", FAR) == FAR + 3 * INTERVAL_MS


def test_the_same_call_again(queue: DelayedQueue) -> None:
    """Its reply may have been lost."""
    turn(queue, "one")
    assert turn(queue, "two") == turn(queue, "two") == FAR + INTERVAL_MS
    assert queue.size() == 2


def test_a_cancelled_turn_is_not_given_again(queue: DelayedQueue) -> None:
    turn(queue, "one")
    turn(queue, "two")
    assert queue.cancel("two") == 1
    assert turn(queue, "three") == FAR + 2 * INTERVAL_MS


def test_another_queue_has_turns_of_its_own(queue: DelayedQueue) -> None:
    assert turn(queue, "one") == turn(DelayedQueue(queue.client, "other"), "two") == FAR


def test_the_record_expires_with_its_last_turn(queue: DelayedQueue) -> None:
    now = now_ms(queue.client)
    turn(queue, "one", now + 5000)
    turn(queue, "two", now + 5000)
    offered = now_ms(queue.client)
    (key,) = (key for key in queue.client.scan_iter("delayq:unique:*"))
    assert key == queue.keys.turns(unique_of(PACE.key)).encode()
    wait_until(lambda: now_ms(queue.client) > offered, "time has passed since the last turn")
    assert 0 < 7000 - queue.client.pttl(key) < 4000


def test_a_turn_that_is_over_is_forgotten(queue: DelayedQueue) -> None:
    pace = Pace("fast", 1000)
    for number in range(200):
        turn(queue, str(number), number, pace)
        assert queue.client.strlen(queue.keys.turns(unique_of("fast"))) <= 16


def test_a_time_that_is_past_is_now(queue: DelayedQueue) -> None:
    before = now_ms(queue.client)
    assert before <= turn(queue, "one", 5) <= now_ms(queue.client) + 1


def test_many_single_turns(queue: DelayedQueue) -> None:
    """Of more than 64 runs, the last ones become one. Turns are late then, and never too close."""
    wanted = [FAR + 10 * number * INTERVAL_MS for number in range(200)]
    assert [turn(queue, str(due), due) for due in wanted] == wanted
    assert queue.client.strlen(queue.keys.turns(unique_of(PACE.key))) == 64 * 16
    assert turn(queue, "in the first gap", FAR) == FAR + INTERVAL_MS
    assert turn(queue, "behind", wanted[150]) == wanted[-1] + INTERVAL_MS


def test_a_key_of_another_type(queue: DelayedQueue) -> None:
    queue.client.lpush(queue.keys.turns(unique_of(PACE.key)), b"a list")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        turn(queue, "one")
    assert not queue.size()


def test_a_record_that_somebody_else_wrote(queue: DelayedQueue) -> None:
    queue.client.set(queue.keys.turns(unique_of(PACE.key)), b"garbage")
    assert turn(queue, "one") == FAR


class TestUniqueToo:
    CLAIM = Claim("remind:42", "due", 60_000, "keep")

    def offered(self, queue: DelayedQueue, task_id: str, due_ms: int | None = FAR, claim: Claim = CLAIM) -> str:
        payload, eta = task_id.encode(), None if due_ms is None else to_datetime(due_ms)
        return queue.offer_unique(payload, claim, eta=eta, message_id=task_id, pace=PACE).outcome

    def test_only_what_is_stored_takes_a_turn(self, queue: DelayedQueue) -> None:
        assert self.offered(queue, "one") == "stored"
        assert self.offered(queue, "two") == "held"
        assert self.offered(queue, "three", claim=Claim("other", "due", 60_000, "keep")) == "stored"
        assert dues(queue) == [FAR, FAR + INTERVAL_MS]

    def test_now_it_waits_and_holds(self, queue: DelayedQueue) -> None:
        turn(queue, "first", None)
        assert self.offered(queue, "one", None) == "stored"
        assert self.offered(queue, "one", None) == "stored"
        assert self.offered(queue, "two", None) == "held"
        assert queue.size() == 2
        assert not queue.client.exists("q")


@pytest.fixture(scope="module")
def fast(redis_server: object) -> Iterator[redis.Redis]:
    with redis_server.client() as client:  # type: ignore[attr-defined]
        yield client


@settings(max_examples=200, suppress_health_check=list(HealthCheck))
@given(st.lists(st.integers(0, 40), min_size=1, max_size=60))
def test_any_order(fast: redis.Redis, wanted: list[int]) -> None:
    """No two turns are too close; nobody is early; each gets the first free one."""
    fast.flushall()
    queue, given_turns = DelayedQueue(fast, "q"), list[int]()
    for number, step in enumerate(wanted):
        due = FAR + step * 500
        got = turn(queue, str(number), due)
        free = due
        while any(abs(free - other) < INTERVAL_MS for other in given_turns):
            free = min(other + INTERVAL_MS for other in given_turns if other + INTERVAL_MS > free)
        assert got == free
        given_turns.append(got)
    assert dues(queue) == sorted(given_turns)
    assert codec.OfferId.from_bytes(queue.peek(1)[0].id) is not None

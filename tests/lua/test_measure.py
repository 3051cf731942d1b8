"""measure.lua and count.lua: numbers of a queue are read as they are, and grow by what was counted."""

from __future__ import annotations

import pytest

from celery_delayq.queue import measuring
from celery_delayq.queue.delayed_queue import DelayedQueue
from celery_delayq.queue.measuring import Measured
from celery_delayq.queue.set_aside import keep
from tests.state import bury, give, lease, nothing_changes, now_ms, offer, publish, state, wrong_type

SPANS = [60_000, 3_600_000]


def measure(queue: DelayedQueue) -> Measured:
    return measuring.measure(queue.keys, spans_ms=SPANS).run(queue.client)


def test_nothing_is_nothing(queue: DelayedQueue) -> None:
    before = now_ms(queue.client)
    found = measure(queue)
    assert found == Measured(found.now_ms)
    assert before <= found.now_ms <= now_ms(queue.client)


def test_now_may_be_what_the_caller_says(queue: DelayedQueue) -> None:
    for message_id, due_ms in (("a", 5_000), ("b", 5_001), ("c", 65_000)):
        offer(queue, message_id, due_ms)
    found = measuring.measure(queue.keys, now_ms=5_000, spans_ms=SPANS).run(queue.client)
    assert (found.now_ms, found.overdue, found.due) == (5_000, 1, (3, 3))
    assert measuring.measure(queue.keys, now_ms=4_999).run(queue.client).due == ()


def test_everything_is_read_and_nothing_changes(queue: DelayedQueue) -> None:
    now = now_ms(queue.client)
    for message_id, due_ms in (("a", 1), ("b", now + 30_000), ("c", now + 1_800_000)):
        offer(queue, message_id, due_ms)
    publish(queue, b"ready", b"too")
    leases = {name: float(lease(queue, name, ms_left=ms)) for name, ms in (("lasting", 3_600_000), ("ended", -1))}
    leases["given up"] = -now
    queue.client.zadd(queue.keys.consumers, {"given up": -now, "": 1})
    give(queue, "lasting", b"held")
    bury(queue.client, "q", b"dead")
    keep(queue.keys, record=b"failed", most=1, kept_ms=60_000).run(queue.client)
    queue.client.set(queue.keys.transferrer, "1:host:4711:1")
    measuring.count(queue.keys, now_s=100, numbers={"x": 2}).run(queue.client)
    with nothing_changes(queue.client):
        found = measure(queue)
    assert found == Measured(
        found.now_ms,
        ready=2,
        delayed=3,
        overdue=1,
        head_due_ms=1,
        dead=1,
        failed=1,
        punctual="host:4711:1",
        leases=leases,
        due=(2, 3),
        totals={"x": 2},
    )


def test_numbers_are_added_to_totals_and_to_their_minute_and_ten_minutes(queue: DelayedQueue) -> None:
    for now_s in (1_800_000_059, 1_800_000_060, 1_800_000_661):
        assert measuring.count(queue.keys, now_s=now_s, numbers={"x": 1, "y:z": 2}).run(queue.client) == 2
    assert state(queue.client) == {
        "delayq:metrics:{q}": {b"x": b"3", b"y:z": b"6"},
        "delayq:metrics:{q}:60:1800000000": {
            b"1800000000:x": b"1",
            b"1800000000:y:z": b"2",
            b"1800000060:x": b"1",
            b"1800000060:y:z": b"2",
        },
        "delayq:metrics:{q}:60:1800000600": {b"1800000660:x": b"1", b"1800000660:y:z": b"2"},
        "delayq:metrics:{q}:600:1800000000": {
            b"1800000000:x": b"2",
            b"1800000000:y:z": b"4",
            b"1800000600:x": b"1",
            b"1800000600:y:z": b"2",
        },
    }


@pytest.mark.parametrize("key", ["metrics", "60", "600"])
def test_nothing_is_added_if_a_key_is_of_another_program(queue: DelayedQueue, key: str) -> None:
    names = {"metrics": queue.keys.metrics, "60": queue.keys.history(60, 0), "600": queue.keys.history(600, 0)}
    wrong_type(queue, names[key], lambda: measuring.count(queue.keys, now_s=1, numbers={"x": 1}).run(queue.client))


def test_a_quiet_minute_of_a_busy_queue_is_stored_compactly(queue: DelayedQueue) -> None:
    """A block of history fits into a listpack: 128 fields."""
    for minute in range(10):
        numbers = {f"start_lateness:{bucket}": 1 for bucket in range(12)}
        measuring.count(queue.keys, now_s=minute * 60, numbers=numbers).run(queue.client)
    encoding = queue.client.object("encoding", queue.keys.history(60, 0))
    assert encoding in (b"listpack", b"ziplist")

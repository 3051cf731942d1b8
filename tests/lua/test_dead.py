"""requeue_dead.lua and lib/bury.lua: letters leave the dead letters once, and each has an id of its own."""

from __future__ import annotations

from celery_delayq.queue import set_aside
from celery_delayq.queue.call import Call, script_of
from celery_delayq.queue.delayed_queue import DelayedQueue
from tests.state import DEAD, RECORDS, bury, delivered, nothing_changes, out_of_memory, publish, records, wrong_type


def requeue(queue: DelayedQueue, *letter_ids: str) -> int:
    """Requeue letters, each as a message that has its id."""
    letters = [(letter_id, letter_id.encode()) for letter_id in letter_ids]
    return set_aside.requeue_dead(queue.keys, letters=letters).run(queue.client)


def test_requeued_letters_go_to_the_back_in_their_order(queue: DelayedQueue) -> None:
    publish(queue, b"waiting")
    first, _, third = bury(queue.client, "q", b"1", b"stays", b"3")
    assert requeue(queue, first, third) == 2
    assert delivered(queue) == [b"waiting", first.encode(), third.encode()]
    assert records(queue.client, "q") == [b"stays"]


def test_a_letter_is_requeued_once(queue: DelayedQueue) -> None:
    first, _ = bury(queue.client, "q", b"1", b"2")
    assert requeue(queue, first, first) == 1
    with nothing_changes(queue.client):
        assert requeue(queue, first) == 0


def test_without_memory_letters_still_leave(queue: DelayedQueue) -> None:
    """Whoever requeues may do it because of that; and what is requeued needs no more memory."""
    first, second = bury(queue.client, "q", b"1", b"2")
    with out_of_memory(queue.client):
        assert requeue(queue, first, "nobody", second) == 2
    assert delivered(queue) == [first.encode(), second.encode()]


def test_no_letter_leaves_for_a_key_of_another_type(queue: DelayedQueue) -> None:
    for key in ("q", DEAD, RECORDS):
        queue.client.delete(DEAD, RECORDS, "q")
        (letter,) = bury(queue.client, "q", b"1")
        wrong_type(queue, key, lambda: requeue(queue, letter))  # noqa: B023


def test_an_id_is_given_once_although_the_clock_was_set_back(queue: DelayedQueue) -> None:
    """Two calls at the same microsecond."""
    bury_two = script_of(
        "bury_two",
        "local dead, records, time = KEYS[1], KEYS[2], {'1700000000', '123456'}\n"
        "-- include: bury\n"
        "bury(dead, records, time, ARGV[1])\n"
        "bury(dead, records, time, ARGV[2])\n",
    )
    for two in ((b"1", b"2"), (b"3", b"4")):
        Call(bury_two, queue.keys.dead_letters, two, lambda reply: None).run(queue.client)
    assert records(queue.client, "q") == [b"1", b"2", b"3", b"4"]
    ids = [b"6553f1001e24000%d" % number for number in range(4)]
    assert queue.client.zrange(DEAD, 0, -1, withscores=True) == [(one, 1_700_000_000_123) for one in ids]

"""move.lua: an entry goes to another priority of its queue, if it still waits as it was read."""

from __future__ import annotations

import pytest

from celery_delayq.basics.times import to_datetime
from celery_delayq.queue.delayed_queue import DelayedQueue
from celery_delayq.queue.entry import Entry
from tests.state import FAR, nothing_changes, offer, out_of_memory, state, waiting, wrong_type


@pytest.fixture
def there(queue: DelayedQueue) -> DelayedQueue:
    """The delayed queue of another priority."""
    return DelayedQueue(queue.client, "q\x06\x163")


def entry_of(queue: DelayedQueue, message_id: str) -> Entry:
    (entry,) = queue.find(message_id)
    return entry


def test_it_keeps_its_id_and_its_due_time(queue: DelayedQueue, there: DelayedQueue) -> None:
    offer(queue, "a", FAR + 7)
    offer(queue, "b")
    assert queue.move(entry_of(queue, "a"), b"moved", there)
    assert (waiting(queue), waiting(there)) == ([b"b"], [b"moved"])
    assert entry_of(there, "a").score == FAR + 7
    assert (queue.cancel("a"), there.cancel("a"), queue.cancel("b")) == (0, 1, 1)
    queue.client.delete("delayq:queues")
    assert state(queue.client) == {}


def test_loops_hear_of_a_new_head(queue: DelayedQueue, there: DelayedQueue) -> None:
    offer(queue, "a")
    with queue.client.pubsub(ignore_subscribe_messages=True) as pubsub:
        pubsub.subscribe(there.keys.channel)
        pubsub.get_message(timeout=5)
        assert queue.move(entry_of(queue, "a"), b"a", there)
        message = pubsub.get_message(timeout=5)
    assert message is not None
    assert message["data"] == b"%d" % FAR
    assert queue.client.zscore("delayq:queues", there.name) is not None


@pytest.mark.parametrize("change", ["transfer", "cancel", "amend"])
def test_nothing_happens_to_one_that_has_changed(queue: DelayedQueue, there: DelayedQueue, change: str) -> None:
    there.register()
    offer(queue, "a", 1)
    entry = entry_of(queue, "a")
    if change == "transfer":
        assert queue.transfer().moved == 1
    elif change == "cancel":
        assert queue.cancel("a") == 1
    else:
        assert queue.amend(entry, b"later", eta=to_datetime(FAR))
    with nothing_changes(queue.client):
        assert not queue.move(entry, b"moved", there)


@pytest.mark.parametrize("mirrored", [False, True])
def test_others_of_its_id_stay(queue: DelayedQueue, there: DelayedQueue, mirrored: bool) -> None:
    queue.mirror_list = mirrored
    for payload in (b"0", b"1", b"2"):
        offer(queue, "a", payload=payload)
    for number, entry in enumerate(queue.find("a")):
        assert (len(queue.find("a")), len(there.find("a"))) == (3 - number, number)
        assert queue.move(entry, entry.payload, there)
    for one in (queue, there):
        assert queue.client.llen(one.keys.delay_list) == (one.size() if mirrored else 0)
    assert there.cancel("a") == 3
    queue.client.delete("delayq:queues")
    assert state(queue.client) == {}


@pytest.mark.parametrize("which", ["timeout_set", "index", "delay_list", "holds"])
def test_nothing_changes_where_a_key_is_of_another_type(queue: DelayedQueue, there: DelayedQueue, which: str) -> None:
    there.register()
    for one in (queue, there):
        one.mirror_list = True
        offer(one, one.name)
    entry = entry_of(queue, queue.name)
    for one in (queue, there):
        wrong_type(queue, getattr(one.keys, which), lambda: queue.move(entry, b"moved", there))


def test_a_full_server_moves_it(queue: DelayedQueue, there: DelayedQueue) -> None:
    there.register()
    offer(queue, "a")
    with out_of_memory(queue.client):
        assert queue.move(entry_of(queue, "a"), b"moved", there)
    assert waiting(there) == [b"moved"]

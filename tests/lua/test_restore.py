"""restore.lua: stores a message unless it waits already, also when several do so at once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from celery_delayq.queue import codec, scripts
from celery_delayq.queue.call import Call, run_each
from celery_delayq.queue.delayed_queue import DelayedQueue
from tests.state import FAR, nothing_changes, offer, seed, state, waiting, wrong_type


def restore(queue: DelayedQueue, message_id: str, due_ms: int = FAR, payload: bytes = b"payload") -> bool:
    return scripts.restore(
        queue.keys,
        due_ms=due_ms,
        message_key=codec.message_key(message_id),
        payload=payload,
        mirrored=queue.mirror_list,
    ).run(queue.client)


def test_what_does_not_wait_is_stored_as_by_an_offer(queue: DelayedQueue) -> None:
    queue.mirror_list = True
    assert restore(queue, "a")
    (entry,) = queue.find("a")
    assert (entry.score, entry.payload) == (FAR, b"payload")
    assert queue.client.lrange(queue.keys.delay_list, 0, -1) == [entry.raw]
    assert queue.cancel("a") == 1
    assert state(queue.client) == {}


def test_the_same_is_not_stored_again(queue: DelayedQueue) -> None:
    offer(queue, "a", FAR, b"payload")
    with nothing_changes(queue.client):
        assert not restore(queue, "a")


@pytest.mark.parametrize("other", [{"message_id": "b"}, {"due_ms": FAR + 1}, {"payload": b"payloaD"}, {"payload": b""}])
def test_what_differs_is_another_one(queue: DelayedQueue, other: dict[str, object]) -> None:
    message = {"message_id": "a", **other}
    assert restore(queue, "a")
    assert restore(queue, **message)  # type: ignore[arg-type]
    with nothing_changes(queue.client):
        assert not restore(queue, "a")
        assert not restore(queue, **message)  # type: ignore[arg-type]


def test_one_of_many_of_an_id(queue: DelayedQueue) -> None:
    for number in range(50):
        assert restore(queue, "a", FAR + number % 5, b"%d" % number)
    with nothing_changes(queue.client):
        assert not any(restore(queue, "a", FAR + number % 5, b"%d" % number) for number in range(50))


def test_what_the_index_has_and_somebody_removed_is_stored(queue: DelayedQueue) -> None:
    restore(queue, "a")
    queue.client.zrem(queue.keys.timeout_set, queue.peek()[0].raw)
    assert restore(queue, "a")
    assert waiting(queue) == [b"payload"]


def test_eight_at_once_store_each_once(one_queue: DelayedQueue) -> None:
    ids = [str(number) for number in range(300)]

    def restore_all(_: int) -> int:
        return sum(restore(one_queue, message_id) for message_id in ids)

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(restore_all, range(8))) == 300
    assert one_queue.size() == 300


@pytest.mark.parametrize("which", ["timeout_set", "index", "delay_list"])
def test_a_key_of_another_type(queue: DelayedQueue, which: str) -> None:
    queue.mirror_list = True
    restore(queue, "a")
    wrong_type(queue, getattr(queue.keys, which), lambda: restore(queue, "b"))


def test_others_are_no_obstacle(queue: DelayedQueue) -> None:
    seed(queue, {b"": FAR, b"garbage": FAR, codec.pack(bytes(8), b"payload"): FAR})
    assert restore(queue, "a")
    assert not restore(queue, "a")


def restore_entry(queue: DelayedQueue, entry: bytes, due_ms: int = FAR) -> bool:
    return scripts.restore(queue.keys, due_ms=due_ms, message_key=b"", payload=entry, mirrored=False).run(queue.client)


def test_an_entry_of_redisson_is_stored_as_it_was(queue: DelayedQueue) -> None:
    entry = codec.pack(bytes(8), b"java")
    assert restore_entry(queue, entry)
    assert state(queue.client) == {
        queue.keys.timeout_set: [(entry, FAR)],
        queue.keys.delay_list: [entry],
    }
    with nothing_changes(queue.client):
        assert not restore_entry(queue, entry)
        assert not restore_entry(queue, entry, FAR + 1)
    assert restore_entry(queue, codec.pack(bytes(7) + b"1", b"java"))
    assert queue.size() == 2


@pytest.mark.parametrize("redissons", [True, False])
def test_loops_hear_of_a_new_head(queue: DelayedQueue, redissons: bool) -> None:
    restore(queue, "later")
    with queue.client.pubsub(ignore_subscribe_messages=True) as pubsub:
        pubsub.subscribe(queue.keys.channel)
        pubsub.get_message(timeout=5)
        if redissons:
            restore_entry(queue, codec.pack(bytes(8), b"java"), FAR - 1)
        else:
            restore(queue, "sooner", FAR - 1)
        message = pubsub.get_message(timeout=5)
    assert message is not None
    assert message["data"] == b"%d" % (FAR - 1)


class TestAPipeline:
    def calls(self, queue: DelayedQueue, *numbers: int) -> list[Call[bool]]:
        return [
            scripts.restore(queue.keys, due_ms=FAR, message_key=codec.message_key(str(n)), payload=b"x", mirrored=False)
            for n in numbers
        ]

    def test_gives_each_answer(self, queue: DelayedQueue) -> None:
        queue.client.script_flush()
        assert run_each(queue.client, self.calls(queue, 1, 2, 1)) == [True, True, False]
        assert run_each(queue.client, self.calls(queue, 1, 3)) == [False, True]
        assert run_each(queue.client, []) == []

    def test_scripts_may_be_flushed_all_the_time(self, queue: DelayedQueue) -> None:
        calls = self.calls(queue, *range(300))
        client, stop = queue.client, threading.Event()

        def flush() -> None:
            while not stop.is_set():
                client.script_flush()

        flushing = threading.Thread(target=flush)
        flushing.start()
        try:
            assert run_each(client, calls) == [True] * 300
        finally:
            stop.set()
            flushing.join()

    def test_an_error_does_not_keep_the_others_from_being_stored(self, queue: DelayedQueue) -> None:
        other = DelayedQueue(queue.client, "other")
        queue.client.set(other.keys.timeout_set, "no ZSET")
        calls = [*self.calls(queue, 1), *self.calls(other, 1), *self.calls(queue, 2)]
        first, failed, last = run_each(queue.client, calls)
        assert isinstance(failed, redis.ResponseError)
        assert (first, last) == (True, True)
        assert queue.size() == 2

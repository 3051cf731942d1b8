"""Many entries of one message id: each has a place of its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_delayq.basics.times import to_datetime
from celery_delayq.queue import codec, scripts
from celery_delayq.queue.codec import message_key
from celery_delayq.queue.delayed_queue import DelayedQueue
from tests.state import FAR, INDEX, REPEATED, calls, delivered, now_ms, offer, out_of_memory, state, wrong_type


def offer_again(queue: DelayedQueue, count: int, first_due_ms: int = FAR) -> None:
    """Offer "0", "1", ..., each a ms later than the one before, all under the id "a"."""
    for start in range(0, count, scripts.MAX_OFFERS):
        numbers = range(start, min(count, start + scripts.MAX_OFFERS))
        messages = [(first_due_ms + number, message_key("a"), b"%d" % number) for number in numbers]
        scripts.offer_many(queue.keys, messages=messages, mirrored=queue.mirror_list).run(queue.client)


def payloads(queue: DelayedQueue) -> list[bytes]:
    return [entry.payload for entry in queue.find("a")]


def numbers(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, count)]


class TestEffort:
    def test_no_value_grows_with_the_number_of_entries(self, one_queue: DelayedQueue) -> None:
        """One that does has to be read and written again for each entry that leaves."""
        offer_again(one_queue, 5_000)
        client = one_queue.client
        assert max(client.hstrlen(INDEX, field) for field in client.hkeys(INDEX)) == codec.PLACE_SIZE
        assert client.zcard(REPEATED) == 4_999

    def test_of_a_call_does_not_grow_with_the_number_of_entries(self, one_queue: DelayedQueue) -> None:
        client = one_queue.client
        used: dict[int, dict[str, int]] = {}
        for count in (200, 5_000):
            client.flushall()
            offer_again(one_queue, count, 1)
            client.config_resetstat()
            assert one_queue.transfer(100).moved == 100
            commands = ("hget", "hset", "hdel", "zrem", "zscore", "zrangebylex")
            used[count] = {command: calls(client, command) for command in commands}
        assert used[200] == used[5_000]

    def test_of_a_restore_is_that_of_the_entries_of_its_due_time(self, one_queue: DelayedQueue) -> None:
        offer_again(one_queue, 5_000)
        one_queue.client.config_resetstat()
        call = scripts.restore(
            one_queue.keys, due_ms=FAR + 4_000, message_key=message_key("a"), payload=b"4000", mirrored=False
        )
        assert not call.run(one_queue.client)
        assert calls(one_queue.client, "zrange") <= 3


class TestFind:
    def test_all_of_them_in_the_order_of_their_offers(self, queue: DelayedQueue) -> None:
        for number in range(250):
            offer(queue, "a", FAR - number, b"%d" % number)
        assert payloads(queue) == numbers(250)

    def test_those_behind_many_that_somebody_else_removed(self, queue: DelayedQueue) -> None:
        offer_again(queue, 250)
        queue.client.zremrangebyrank(queue.keys.timeout_set, 0, 239)
        assert payloads(queue) == numbers(250, 240)

    def test_those_of_no_other_id(self, queue: DelayedQueue) -> None:
        for number in range(3):
            for name in "abcdefgh":
                offer(queue, name, payload=b"%d of %s" % (number, name.encode()))
        for name in "abcdefgh":
            expected = [b"%d of %s" % (number, name.encode()) for number in range(3)]
            assert [entry.payload for entry in queue.find(name)] == expected


def transfer(queue: DelayedQueue) -> None:
    assert queue.transfer(3, lead=FAR / 1000).moved == 3
    assert delivered(queue) == numbers(3)
    assert payloads(queue) == numbers(5, 3)


def cancel(queue: DelayedQueue) -> None:
    assert queue.cancel("a") == 5
    assert payloads(queue) == []


def remove(queue: DelayedQueue) -> None:
    assert queue.remove([queue.peek(5)[at] for at in (4, 2, 0)]) == [True] * 3
    assert payloads(queue) == [b"1", b"3"]


def amend(queue: DelayedQueue) -> None:
    (*_, last) = queue.peek(5)
    assert queue.amend(last, b"amended", eta=to_datetime(1))
    assert payloads(queue) == [*numbers(4), b"amended"]


def restore(queue: DelayedQueue) -> None:
    for number in range(7):
        call = scripts.restore(
            queue.keys, due_ms=FAR + number, message_key=message_key("a"), payload=b"%d" % number, mirrored=False
        )
        assert call.run(queue.client) == (number > 4)
    assert payloads(queue) == numbers(7)


def offer_one_more(queue: DelayedQueue) -> None:
    offer(queue, "a", FAR + 5, b"5")
    assert payloads(queue) == numbers(6)


class TestActs:
    @pytest.mark.parametrize("act", [transfer, cancel, remove, amend, restore, offer_one_more])
    def test_leave_nothing_behind(self, queue: DelayedQueue, act: Callable[[DelayedQueue], None]) -> None:
        offer_again(queue, 5)
        act(queue)
        queue.cancel("a")
        queue.client.delete("q")
        assert state(queue.client) == {}

    @pytest.mark.parametrize("act", [transfer, cancel, remove])
    def test_reach_a_full_server(self, queue: DelayedQueue, act: Callable[[DelayedQueue], None]) -> None:
        offer_again(queue, 5)
        with out_of_memory(queue.client):
            act(queue)

    def test_of_many_entries(self, one_queue: DelayedQueue) -> None:
        offer_again(one_queue, 2_500)
        assert payloads(one_queue) == numbers(2_500)
        assert one_queue.cancel("a") == 2_500
        assert state(one_queue.client) == {}


class TestAllOrNothing:
    def changes(self, queue: DelayedQueue) -> dict[str, Callable[[], object]]:
        key = message_key("a")
        (entry, *_) = queue.peek(5)
        message = {"due_ms": FAR, "message_key": key, "payload": b"", "mirrored": False}
        two = [(FAR, message_key("b"), b""), (FAR, key, b"")]
        return {
            "offer": lambda: scripts.offer(queue.keys, **message).run(queue.client),
            "offer_many": lambda: scripts.offer_many(queue.keys, messages=two, mirrored=False).run(queue.client),
            "restore": lambda: scripts.restore(queue.keys, **message).run(queue.client),
            "find": lambda: queue.find("a"),
            "cancel": lambda: queue.cancel("a"),
            "amend": lambda: queue.amend(entry, b"new", eta=to_datetime(FAR)),
            "remove": lambda: queue.remove([entry]),
            "release": lambda: queue.release([(entry, b"new")]),
            "transfer": lambda: queue.transfer(lead=(now_ms(queue.client) * 2) / 1000),
        }

    @pytest.mark.parametrize(
        "name", ["offer", "offer_many", "restore", "find", "cancel", "amend", "remove", "release", "transfer"]
    )
    @pytest.mark.parametrize("old_layout", [False, True])
    def test_where_the_key_is_of_another_type(self, queue: DelayedQueue, name: str, old_layout: bool) -> None:
        offer_again(queue, 3)
        if old_layout:
            wrong_type(queue, REPEATED, self.changes(queue)[name])

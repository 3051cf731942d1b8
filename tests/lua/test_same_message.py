"""A message that waits already is stored once, so that a caller who missed the reply may repeat the call."""

from __future__ import annotations

import pytest

from celery_delayq.queue import scripts
from celery_delayq.queue.codec import message_key
from celery_delayq.queue.delayed_queue import DelayedQueue
from tests.lua.conftest import Heard
from tests.state import (
    DELAY_LIST,
    FAR,
    INDEX,
    REPEATED,
    TIMEOUT_SET,
    delivered,
    nothing_changes,
    offer,
    offer_many,
    out_of_memory,
    state,
    waiting,
)


def offer_for_reply(queue: DelayedQueue, due_ms: int | None = FAR, delay_ms: int = 0) -> tuple[int, bool]:
    """Offer "a" and return what the script replies."""
    return scripts.offer(
        queue.keys,
        due_ms=due_ms,
        delay_ms=delay_ms,
        message_key=message_key("a"),
        payload=b"a",
        mirrored=queue.mirror_list,
    ).run(queue.client)


class TestTheSameMessage:
    """It is stored once, so that a caller who missed the reply may repeat the call."""

    @pytest.mark.parametrize("mirror_list", [False, True])
    def test_one_by_one(self, queue: DelayedQueue, mirror_list: bool) -> None:
        queue.mirror_list = mirror_list
        offer(queue, "other")
        offer(queue, "a")
        with nothing_changes(queue.client):
            for _ in range(3):
                offer(queue, "a")
        assert queue.cancel("a") == 1

    @pytest.mark.parametrize("mirror_list", [False, True])
    def test_in_one_call(self, queue: DelayedQueue, mirror_list: bool) -> None:
        queue.mirror_list = mirror_list
        offer_many(queue, [(FAR, "a", b"same"), (FAR + 1, "a", b"same")] * 50)
        assert [(entry.score, entry.payload) for entry in queue.peek(9)] == [(FAR, b"same"), (FAR + 1, b"same")]
        assert queue.client.llen(DELAY_LIST) == (2 if mirror_list else 0)
        assert queue.cancel("a") == 2
        assert state(queue.client) == {}

    @pytest.mark.parametrize("mirror_list", [False, True])
    @pytest.mark.parametrize("ids", [25, 100])
    def test_in_several_calls(self, queue: DelayedQueue, ids: int, mirror_list: bool) -> None:
        queue.mirror_list = mirror_list
        messages = [(FAR + number % 3, str(number % ids), b"%d" % number) for number in range(100)]
        offer_many(queue, messages)
        assert queue.size() == 100
        with nothing_changes(queue.client):
            offer_many(queue, messages)
            for due_ms, message_id, payload in messages:
                offer(queue, message_id, due_ms, payload)

    @pytest.mark.parametrize("mirror_list", [False, True])
    def test_of_a_call_of_which_some_wait(self, queue: DelayedQueue, mirror_list: bool) -> None:
        """The others are stored, in their order."""
        queue.mirror_list = mirror_list
        offer_many(queue, [(FAR, "a", b"0"), (FAR, "b", b"1")])
        offer_many(queue, [(FAR, "a", b"2"), (FAR, "b", b"1"), (FAR, "a", b"0"), (FAR, "b", b"3"), (FAR, "a", b"4")])
        assert waiting(queue) == [b"0", b"1", b"2", b"3", b"4"]
        assert (queue.cancel("a"), queue.cancel("b")) == (3, 2)
        assert state(queue.client) == {}

    @pytest.mark.parametrize("before", [False, True])
    @pytest.mark.parametrize("after", [False, True])
    def test_whether_it_was_mirrored_or_not(self, queue: DelayedQueue, before: bool, after: bool) -> None:
        queue.mirror_list = before
        offer(queue, "a", payload=b"first")
        offer(queue, "a", payload=b"second")
        queue.mirror_list = after
        with nothing_changes(queue.client):
            offer(queue, "a", payload=b"first")
            offer(queue, "a", payload=b"second")
            offer_many(queue, [(FAR, "a", b"second"), (FAR, "a", b"first")])

    def test_where_the_first_of_its_id_was_transferred(self, queue: DelayedQueue) -> None:
        offer(queue, "a", 1)
        offer(queue, "a")
        queue.transfer()
        assert not queue.client.exists(INDEX)
        assert queue.client.zcard(REPEATED) == 1
        with nothing_changes(queue.client):
            offer(queue, "a")
            offer_many(queue, [(FAR, "a", b"a")] * 2)
        assert queue.cancel("a") == 1

    def test_that_was_transferred_or_cancelled_is_stored_again(self, queue: DelayedQueue) -> None:
        offer(queue, "stays")
        for _ in range(2):
            offer(queue, "a", 1)
            assert queue.transfer().moved == 1
        assert delivered(queue) == [b"a", b"a"]
        for _ in range(2):
            offer(queue, "a")
            assert queue.cancel("a") == 1

    def test_that_somebody_else_removed_is_stored_again(self, queue: DelayedQueue) -> None:
        """The index still knows its place then."""
        offer(queue, "stays")
        offer(queue, "a")
        queue.client.zrem(TIMEOUT_SET, queue.find("a")[0].raw)
        offer(queue, "a")
        assert waiting(queue) == [b"stays", b"a"]
        assert queue.cancel("a") == 1

    @pytest.mark.parametrize(
        "other",
        [
            (FAR, "a", b"other"),
            (FAR, "a", b""),
            (FAR, "a", b"same\x00"),
            (FAR + 1, "a", b"same"),
            (FAR - 1, "a", b"same"),
            (FAR, "b", b"same"),
        ],
    )
    @pytest.mark.parametrize("many", [False, True])
    def test_is_another_one_with_another_payload_due_time_or_id(
        self, queue: DelayedQueue, other: tuple[int, str, bytes], many: bool
    ) -> None:
        for due_ms, message_id, payload in [(FAR, "a", b"same"), other] * 2:
            if many:
                offer_many(queue, [(due_ms, message_id, payload)])
            else:
                offer(queue, message_id, due_ms, payload)
        stored = sorted((entry.score, entry.payload) for entry in queue.peek(9))
        assert stored == sorted([(FAR, b"same"), (other[0], other[2])])
        assert queue.cancel("a") + queue.cancel("b") == 2

    @pytest.mark.parametrize("payload", [b"", b"\x00\xff", b"\xff" * 100_000])
    def test_of_any_payload(self, queue: DelayedQueue, payload: bytes) -> None:
        offer(queue, "a", payload=payload + b"!")
        offer(queue, "a", payload=payload)
        with nothing_changes(queue.client):
            offer(queue, "a", payload=payload)

    @pytest.mark.parametrize("due_ms", [0, 1, 253_402_300_800_000, 2**52 - 1])
    def test_of_any_due_time(self, queue: DelayedQueue, due_ms: int) -> None:
        offer(queue, "a", due_ms, b"first")
        offer(queue, "a", due_ms)
        with nothing_changes(queue.client):
            offer(queue, "a", due_ms)

    def test_among_many_of_its_id_and_due_time(self, queue: DelayedQueue) -> None:
        """One that the index knows, and a hundred further ones."""
        offer(queue, "a", FAR - 1)
        offer(queue, "b")
        messages = [(FAR, "a", b"%d" % number) for number in range(100)]
        offer_many(queue, messages)
        with nothing_changes(queue.client):
            for number in (0, 1, 50, 98, 99):
                offer(queue, "a", payload=b"%d" % number)

    def test_among_many_of_its_id_with_other_due_times(self, queue: DelayedQueue) -> None:
        for start in (0, 200, 100):
            offer_many(queue, [(FAR + number, "a", b"same") for number in range(start, start + 100)])
        with nothing_changes(queue.client):
            for number in (0, 1, 99, 100, 199, 200, 299):
                offer(queue, "a", FAR + number, b"same")

    def test_has_the_same_reply(self, queue: DelayedQueue) -> None:
        assert offer_for_reply(queue) == (FAR, True)
        assert offer_for_reply(queue) == (FAR, True)
        offer(queue, "b", FAR + 1)
        assert offer_for_reply(queue) == (FAR, False)
        queue.cancel("b")
        assert offer_for_reply(queue) == (FAR, True)
        assert queue.size() == 1

    def test_has_the_same_reply_among_many(self, queue: DelayedQueue) -> None:
        messages = [(FAR, "a", b"0"), (FAR, "a", b"1"), (FAR, "b", b"2")]
        assert [offer_many(queue, messages) for _ in range(2)] == [True, True]
        offer(queue, "c")
        assert not offer_many(queue, messages)

    def test_is_not_announced_again(self, queue: DelayedQueue) -> None:
        heard = Heard(queue.client, "redisson_delay_queue_channel:{q}")
        for _ in range(2):
            offer(queue, "a")
            offer_many(queue, [(FAR, "a", b"a")] * 2)
        assert heard.all() == [b"%d" % FAR]

    @pytest.mark.parametrize("mirror_list", [False, True])
    def test_needs_no_memory(self, queue: DelayedQueue, mirror_list: bool) -> None:
        queue.mirror_list = mirror_list
        messages = [(FAR, "a", b"0"), (FAR, "a", b"1"), (FAR + 1, "b", b"2")]
        offer_many(queue, messages)
        with nothing_changes(queue.client), out_of_memory(queue.client):
            assert offer_many(queue, messages)
        with nothing_changes(queue.client), out_of_memory(queue.client):
            offer(queue, "a", payload=b"1")

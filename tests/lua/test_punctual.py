"""transfer.lua and resign.lua: one transferrer is punctual, another takes over when it is not."""

from __future__ import annotations

import pytest

from celery_delayq.basics.times import to_datetime
from celery_delayq.queue.delayed_queue import DelayedQueue
from tests.lua.conftest import Heard
from tests.state import FAR, TRANSFERRER, delivered, floor_ms, nothing_changes, now_ms, offer, state, wrong_type

SIGNS = "delayq:transfer_channel:0:{q}"

#: So long that no test is slow enough to be outside of it.
GRACE_MS = 600_000
HOUR_MS = 3_600_000


def punctual_since(queue: DelayedQueue, ms_ago: int, who: str = "punctual") -> int:
    """Record a transferrer whose last sign of life was that long ago; return when."""
    last = now_ms(queue.client) - ms_ago
    queue.client.set(TRANSFERRER, f"{last}:{who}")
    return last


def recorded(queue: DelayedQueue) -> str:
    """Return who is recorded as the punctual one."""
    found: bytes = queue.client.get(TRANSFERRER)
    return found.decode().partition(":")[2]


class TestBecoming:
    def test_the_first_who_moves_something(self, queue: DelayedQueue) -> None:
        offer(queue, "a", 1)
        done = queue.transfer(transferrer="host:1:x", grace=GRACE_MS / 1000)
        assert (done.moved, done.punctual) == (1, "host:1:x")
        assert queue.client.get(TRANSFERRER) == b"%d:host:1:x" % (floor_ms(done.now))
        assert floor_ms(done.last_sign) == floor_ms(done.now)
        assert 0 < queue.client.pttl(TRANSFERRER) <= 86_400_000

    def test_by_setting_garbage_aside_too(self, queue: DelayedQueue) -> None:
        queue.client.zadd(queue.keys.timeout_set, {b"garbage": 1})
        assert queue.transfer(transferrer="me", grace=GRACE_MS / 1000).punctual == "me"

    def test_not_by_looking(self, queue: DelayedQueue) -> None:
        offer(queue, "later")
        with nothing_changes(queue.client):
            assert queue.transfer(transferrer="me", grace=GRACE_MS / 1000).punctual == ""

    def test_who_has_no_id_takes_no_part(self, queue: DelayedQueue) -> None:
        punctual_since(queue, 0)
        before = queue.client.get(TRANSFERRER)
        offer(queue, "a", 1)
        done = queue.transfer()
        assert (done.moved, done.punctual) == (1, "punctual")
        assert queue.client.get(TRANSFERRER) == before

    @pytest.mark.parametrize("garbage", ["", "garbage", ":", "x:y", "-1:y"])
    def test_after_garbage_in_its_key(self, queue: DelayedQueue, garbage: str) -> None:
        queue.client.set(TRANSFERRER, garbage)
        offer(queue, "a", 1)
        assert queue.transfer(transferrer="me", grace=GRACE_MS / 1000).punctual == "me"


class TestTheOthers:
    def test_leave_what_has_just_become_due(self, queue: DelayedQueue) -> None:
        last = punctual_since(queue, HOUR_MS)
        due_ms = now_ms(queue.client) - 1
        offer(queue, "a", due_ms)
        with nothing_changes(queue.client):
            done = queue.transfer(transferrer="other", grace=GRACE_MS / 1000)
        assert (done.moved, done.head_due) == (0, to_datetime(due_ms))
        assert (done.punctual, floor_ms(done.last_sign)) == ("punctual", last)

    def test_leave_a_backlog_to_one_who_works_on_it(self, queue: DelayedQueue) -> None:
        punctual_since(queue, 0)
        offer(queue, "a", 1)
        with nothing_changes(queue.client):
            assert queue.transfer(transferrer="other", grace=GRACE_MS / 1000).moved == 0

    def test_take_over_what_is_due_for_longer_than_the_grace_period(self, queue: DelayedQueue) -> None:
        punctual_since(queue, HOUR_MS)
        offer(queue, "a", 1)
        done = queue.transfer(transferrer="other", grace=GRACE_MS / 1000)
        assert (done.moved, done.punctual) == (1, "other")
        assert recorded(queue) == "other"

    def test_do_not_take_over_where_nothing_is_due(self, queue: DelayedQueue) -> None:
        punctual_since(queue, HOUR_MS)
        offer(queue, "a", FAR)
        with nothing_changes(queue.client):
            done = queue.transfer(transferrer="other", grace=0)
        assert done.punctual == "punctual"

    def test_do_not_wait_for_one_whose_sign_is_from_the_future(self, queue: DelayedQueue) -> None:
        """The server's clock was set back, or a replica whose clock is behind took over."""
        punctual_since(queue, -HOUR_MS)
        offer(queue, "a", 1)
        done = queue.transfer(transferrer="other", grace=GRACE_MS / 1000)
        assert (done.moved, done.punctual) == (1, "other")
        assert floor_ms(done.last_sign) <= now_ms(queue.client)

    def test_the_one_who_was_replaced_is_one_of_them(self, queue: DelayedQueue) -> None:
        punctual_since(queue, HOUR_MS)
        offer(queue, "a", 1)
        queue.transfer(transferrer="other", grace=GRACE_MS / 1000)
        offer(queue, "b", 1)
        assert queue.transfer(transferrer="punctual", grace=GRACE_MS / 1000).moved == 0
        assert queue.transfer(transferrer="other", grace=GRACE_MS / 1000).moved == 1
        assert delivered(queue) == [b"a", b"b"]


class TestSignsOfLife:
    @pytest.fixture
    def heard(self, queue: DelayedQueue) -> Heard:
        """A subscription to the signs of life."""
        return Heard(queue.client, SIGNS)

    def test_say_when_what_is_next_and_who(self, queue: DelayedQueue, heard: Heard) -> None:
        offer(queue, "a", 1)
        offer(queue, "b", FAR)
        now = floor_ms(queue.transfer(transferrer="host:1", grace=GRACE_MS / 1000).now)
        assert heard.all() == [b"%d:%d:host:1" % (now, FAR)]

    def test_say_that_nothing_is_next(self, queue: DelayedQueue, heard: Heard) -> None:
        offer(queue, "a", 1)
        now = floor_ms(queue.transfer(transferrer="host:1", grace=GRACE_MS / 1000).now)
        assert heard.all() == [b"%d::host:1" % now]

    def test_come_once_in_half_a_grace_period(self, queue: DelayedQueue, heard: Heard) -> None:
        for number in range(10):
            offer(queue, str(number), 1)
        for _ in range(5):
            queue.transfer(1, transferrer="me", grace=GRACE_MS / 1000)
        punctual_since(queue, GRACE_MS // 2 + 1, "me")
        queue.transfer(1, transferrer="me", grace=GRACE_MS / 1000)
        assert len(heard.all()) == 2

    @pytest.mark.parametrize("next_due_ms", [FAR, None])
    def test_come_at_once_where_the_next_would_come_late(
        self, queue: DelayedQueue, heard: Heard, next_due_ms: int | None
    ) -> None:
        """Otherwise the others, who know of nothing later than the second message, would look for nothing."""
        offer(queue, "a", 1)
        offer(queue, "b", 2)
        if next_due_ms is not None:
            offer(queue, "c", next_due_ms)
        for _ in range(2):
            queue.transfer(1, transferrer="me", grace=GRACE_MS / 1000)
        heads = [sign.split(b":")[1] for sign in heard.all()]
        assert heads == [b"2", b"" if next_due_ms is None else b"%d" % next_due_ms]

    def test_come_only_with_something_moved(self, queue: DelayedQueue, heard: Heard) -> None:
        punctual_since(queue, HOUR_MS, "me")
        offer(queue, "a", FAR)
        queue.transfer(transferrer="me", grace=0.25)
        queue.transfer()
        assert heard.all() == []

    def test_a_new_one_says_so_at_once(self, queue: DelayedQueue, heard: Heard) -> None:
        punctual_since(queue, HOUR_MS)
        offer(queue, "a", 1)
        queue.transfer(transferrer="other", grace=GRACE_MS / 1000)
        (sign,) = heard.all()
        assert sign.endswith(b":other")

    def test_of_resigning_name_nobody(self, queue: DelayedQueue, heard: Heard) -> None:
        punctual_since(queue, 0, "me")
        offer(queue, "a", FAR)
        queue.resign("me")
        assert heard.all() == [b"0:%d:" % FAR]


class TestResign:
    def test_frees_the_place(self, queue: DelayedQueue) -> None:
        offer(queue, "a", 1)
        offer(queue, "b", 1)
        queue.transfer(1, transferrer="me", grace=GRACE_MS / 1000)
        assert queue.resign("me") is True
        assert TRANSFERRER not in state(queue.client)
        assert queue.transfer(transferrer="other", grace=GRACE_MS / 1000).moved == 1

    @pytest.mark.parametrize("who", ["other", "", "m", "1:me"])
    def test_of_another_changes_nothing(self, queue: DelayedQueue, who: str) -> None:
        punctual_since(queue, 0, "me")
        with nothing_changes(queue.client):
            assert queue.resign(who) is False

    def test_of_nobody_changes_nothing(self, queue: DelayedQueue) -> None:
        assert queue.resign("me") is False
        assert state(queue.client) == {}

    @pytest.mark.parametrize("key", [TRANSFERRER, "redisson_delay_queue_timeout:{q}"])
    def test_keys_of_another_type(self, queue: DelayedQueue, key: str) -> None:
        punctual_since(queue, 0, "me")
        offer(queue, "a")
        wrong_type(queue, key, lambda: queue.resign("me"))

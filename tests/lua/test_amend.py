"""amend.lua, remove.lua and release.lua: they change an entry only if it still waits as it was read."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_delayq.basics.times import to_datetime
from celery_delayq.queue import codec
from celery_delayq.queue.delayed_queue import DelayedQueue
from celery_delayq.queue.entry import Entry
from tests.properties import on_a_server
from tests.state import (
    FAR,
    calls,
    delivered,
    nothing_changes,
    offer,
    out_of_memory,
    seed,
    state,
    waiting,
    wrong_type,
)


def amend(queue: DelayedQueue, entry: Entry) -> bool:
    return queue.amend(entry, b"new", eta=to_datetime(FAR + 5))


def amend_many(queue: DelayedQueue, entry: Entry) -> bool:
    return queue.amend_many([(entry, b"new")], eta=to_datetime(FAR + 5)) == [True]


def remove(queue: DelayedQueue, entry: Entry) -> bool:
    return queue.remove([entry]) == [True]


def release(queue: DelayedQueue, entry: Entry) -> bool:
    return queue.release([(entry, b"new")]) == [True]


Change = Callable[[DelayedQueue, Entry], bool]


@pytest.fixture(params=[amend, amend_many, remove, release], ids=lambda change: change.__name__)
def change(request: pytest.FixtureRequest) -> Change:
    """One of the scripts, which says whether it changed the entry."""
    changing: Change = request.param
    return changing


class TestEach:
    def test_does_nothing_with_an_entry_that_was_transferred(self, queue: DelayedQueue, change: Change) -> None:
        offer(queue, "a", 1)
        offer(queue, "b")
        (entry,) = queue.peek()
        queue.transfer()
        with nothing_changes(queue.client):
            assert not change(queue, entry)

    def test_does_nothing_with_an_entry_that_was_changed(self, queue: DelayedQueue, change: Change) -> None:
        offer(queue, "a")
        (entry,) = queue.find("a")
        assert amend(queue, entry)
        with nothing_changes(queue.client):
            assert not change(queue, entry)

    @pytest.mark.parametrize("number", [0, 1, 2])
    @pytest.mark.parametrize("mirrored", [False, True])
    def test_leaves_the_others_of_its_id(
        self, queue: DelayedQueue, change: Change, number: int, mirrored: bool
    ) -> None:
        queue.mirror_list = mirrored
        for payload in (b"0", b"1", b"2"):
            offer(queue, "a", payload=payload)
        entries = queue.find("a")
        assert change(queue, entries.pop(number))
        assert [entry for entry in queue.find("a") if entry.payload != b"new"] == entries
        assert queue.client.llen(queue.keys.delay_list) == (queue.size() if mirrored else 0)
        queue.cancel("a")
        assert queue.client.exists(queue.keys.index, queue.keys.delay_list, queue.keys.timeout_set) == 0

    @pytest.mark.parametrize("which", ["timeout_set", "index", "delay_list"])
    def test_changes_nothing_where_a_key_is_of_another_type(
        self, queue: DelayedQueue, change: Change, which: str
    ) -> None:
        queue.mirror_list = True
        offer(queue, "a")
        offer(queue, "a", payload=b"again")
        (entry, _) = queue.find("a")
        wrong_type(queue, getattr(queue.keys, which), lambda: change(queue, entry))

    def test_goes_on_where_memory_is_used_up(self, queue: DelayedQueue, change: Change) -> None:
        for payload in (b"0", b"1"):
            offer(queue, "a", payload=payload)
        entries = queue.find("a")
        assert len(entries) == 2
        for entry in entries:
            with out_of_memory(queue.client):
                assert change(queue, entry)

    def test_follows_redissons_delay_list(self, queue: DelayedQueue, change: Change) -> None:
        queue.mirror_list = True
        for name in "abc":
            offer(queue, name)
        (entry,) = queue.find("b")
        assert change(queue, entry)
        listed = queue.client.lrange(queue.keys.delay_list, 0, -1)
        assert sorted(listed) == sorted(queue.client.zrange(queue.keys.timeout_set, 0, -1))


class TestAmend:
    def test_keeps_the_id(self, queue: DelayedQueue) -> None:
        offer(queue, "a")
        offer(queue, "b", FAR + 1)
        (entry,) = queue.find("a")
        assert queue.amend(entry, b"later", eta=to_datetime(FAR + 2))
        assert waiting(queue) == [b"b", b"later"]
        (amended,) = queue.find("a")
        assert (amended.score, amended.payload) == (FAR + 2, b"later")
        assert queue.cancel("a") == 1

    @pytest.mark.parametrize("due_ms", [1, FAR, 2**50])
    def test_keeps_the_due_time_if_no_other_is_given(self, queue: DelayedQueue, due_ms: int) -> None:
        """Exactly, even if no datetime is so late."""
        offer(queue, "a", due_ms)
        assert queue.amend(queue.peek()[0], b"changed")
        (amended,) = queue.find("a")
        assert (amended.score, amended.payload) == (due_ms, b"changed")

    def test_tells_the_loops_of_a_new_head(self, queue: DelayedQueue) -> None:
        offer(queue, "a", FAR + 5)
        offer(queue, "b", FAR + 6)
        with queue.client.pubsub(ignore_subscribe_messages=True) as pubsub:
            pubsub.subscribe(queue.keys.channel)
            pubsub.get_message(timeout=5)
            (entry,) = queue.find("b")
            queue.amend(entry, b"b", eta=to_datetime(FAR))
            message = pubsub.get_message(timeout=5)
        assert message is not None
        assert message["data"] == b"%d" % FAR

    def test_refuses_what_redisson_offered(self, one_queue: DelayedQueue) -> None:
        seed(one_queue, {codec.pack(bytes(8), b"java"): FAR})
        with (
            nothing_changes(one_queue.client),
            pytest.raises(ValueError, match="cannot amend an entry that another program offered"),
        ):
            one_queue.amend(one_queue.peek()[0], b"new", eta=to_datetime(1))


class TestAmendMany:
    def test_says_of_each_whether_it_was_changed(self, queue: DelayedQueue) -> None:
        for number in range(120):
            offer(queue, str(number), FAR + number)
        pairs = [(entry, entry.payload + b"!") for entry in queue.page(limit=1000)]
        for number in (0, 7, 119):
            queue.cancel(str(number))
        changed = [number not in (0, 7, 119) for number in range(120)]
        assert queue.amend_many(pairs, eta=to_datetime(FAR + 500)) == changed
        assert {entry.payload for entry in queue.peek(200)} == {
            b"%d!" % number for number in range(120) if changed[number]
        }
        assert (
            queue.count(due_after=to_datetime(FAR + 500), due_before=to_datetime(FAR + 500 + 1)) == queue.size() == 117
        )
        assert queue.amend_many([], eta=to_datetime(1)) == []

    def test_refuses_all_if_redisson_offered_one(self, one_queue: DelayedQueue) -> None:
        offer(one_queue, "a")
        seed(one_queue, {codec.pack(bytes(8), b"java"): FAR})
        with (
            nothing_changes(one_queue.client),
            pytest.raises(ValueError, match="cannot amend an entry that another program offered"),
        ):
            one_queue.amend_many([(entry, b"new") for entry in one_queue.peek(2)], eta=to_datetime(1))


class TestRemove:
    def test_of_any_shape(self, queue: DelayedQueue) -> None:
        old = bytes(8) + (3).to_bytes(8, "little") + b"old"
        seed(queue, {codec.pack(bytes(8), b"java"): FAR, old: FAR + 1})
        queue.client.rpush(queue.keys.delay_list, old, codec.pack(bytes(8), b"java"))
        offer(queue, "a")
        assert queue.remove(queue.page()) == [True] * 3
        assert state(queue.client) == {}

    def test_says_of_each_whether_it_was_there(self, queue: DelayedQueue) -> None:
        for number in range(250):
            offer(queue, str(number), FAR + number)
        entries = queue.page(limit=1000)
        for number in (0, 7, 249):
            queue.cancel(str(number))
        assert queue.remove(entries) == [number not in (0, 7, 249) for number in range(250)]
        assert state(queue.client) == {}
        assert queue.remove([]) == []


class TestRelease:
    def test_what_was_given_first_is_consumed_first(self, queue: DelayedQueue) -> None:
        queue.client.lpush("q", b"ready")
        for number in range(250):
            offer(queue, str(number), FAR + number)
        pairs = [(entry, entry.payload + b"!") for entry in queue.page(limit=1000)]
        assert queue.release(pairs) == [True] * 250
        assert delivered(queue) == [b"ready", *(b"%d!" % number for number in range(250))]
        assert queue.size() == 0
        assert queue.release(pairs[:3]) == [False] * 3

    def test_a_broker_list_of_another_type(self, queue: DelayedQueue) -> None:
        offer(queue, "a")
        (entry,) = queue.find("a")
        wrong_type(queue, "q", lambda: release(queue, entry))


class TestBatches:
    @pytest.mark.parametrize(
        "change_all",
        [
            lambda queue, entries: queue.remove(entries),
            lambda queue, entries: queue.release([(entry, b"new") for entry in entries]),
            lambda queue, entries: queue.amend_many([(entry, b"new") for entry in entries], eta=to_datetime(1)),
        ],
        ids=["remove", "release", "amend_many"],
    )
    def test_no_call_walks_far_in_redissons_delay_list(
        self, one_queue: DelayedQueue, change_all: Callable[[DelayedQueue, list[Entry]], list[bool]]
    ) -> None:
        one_queue.mirror_list = True
        for number in range(2_000):
            offer(one_queue, str(number), FAR + number)
        entries = one_queue.page(limit=100)
        one_queue.client.config_resetstat()
        assert change_all(one_queue, entries) == [True] * 100
        scripts_run = calls(one_queue.client, "evalsha")
        assert 10 <= scripts_run <= 12, "20,000 steps a call, 2,000 an entry"
        assert one_queue.client.llen(one_queue.keys.delay_list) == one_queue.size()
        assert one_queue.size() == one_queue.count(due_after=to_datetime(1), due_before=to_datetime(1 + 1)) + 1_900

    def test_large_messages_are_not_sent_together(self, one_queue: DelayedQueue) -> None:
        for number in range(6):
            offer(one_queue, str(number), payload=bytes(600_000))
        entries = one_queue.page(limit=1000)
        while more := one_queue.page(entries[-1], limit=1000):
            entries += more
        one_queue.client.config_resetstat()
        assert one_queue.remove(entries) == [True] * 6
        assert calls(one_queue.client, "evalsha") == 6


class TestAnything:
    @on_a_server(max_examples=50)
    @given(
        steps=st.lists(
            st.tuples(
                st.sampled_from(["offer", "amend", "remove", "release", "cancel", "transfer"]),
                st.sampled_from("abc"),
                st.integers(0, 3),
            ),
            max_size=25,
        ),
        mirrored=st.booleans(),
    )
    def test_the_index_knows_what_waits(
        self, one_queue: DelayedQueue, steps: list[tuple[str, str, int]], mirrored: bool
    ) -> None:
        """After any steps, each entry is found by its id, and nothing is left when all are cancelled."""
        queue = one_queue
        queue.client.flushall()
        queue.mirror_list = mirrored
        expected: dict[str, list[tuple[int, bytes]]] = {name: [] for name in "abc"}
        for number, (step, name, extra) in enumerate(steps):
            payload = b"%d" % number
            found = queue.find(name)
            if step == "offer":
                offer(queue, name, FAR + extra, payload)
                expected[name].append((FAR + extra, payload))
            elif step == "cancel":
                assert queue.cancel(name) == len(expected[name])
                expected[name] = []
            elif step == "transfer":
                assert queue.transfer().moved == 0
            elif found:
                entry = found[extra % len(found)]
                expected[name].remove((entry.score, entry.payload))
                if step == "amend":
                    assert queue.amend(entry, payload, eta=to_datetime(FAR + extra))
                    expected[name].append((FAR + extra, payload))
                elif step == "remove":
                    assert queue.remove([entry]) == [True]
                else:
                    assert queue.release([(entry, payload)]) == [True]
            for each, entries in expected.items():
                assert sorted((e.score, e.payload) for e in queue.find(each)) == sorted(entries)
        for each in "abc":
            queue.cancel(each)
        queue.client.delete("q")
        assert state(queue.client) == {}

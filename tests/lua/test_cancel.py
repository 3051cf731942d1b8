"""cancel.lua: finds a message by its id, however many wait, and removes nothing else."""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_delayq.queue import codec, scripts
from celery_delayq.queue.codec import OfferId, message_key
from celery_delayq.queue.delayed_queue import DelayedQueue
from examples.private_redis import PrivateRedis
from tests.properties import on_a_server
from tests.state import (
    DELAY_LIST,
    FAR,
    INDEX,
    TIMEOUT_SET,
    calls,
    fill,
    nothing_changes,
    offer,
    out_of_memory,
    seed,
    state,
    waiting,
    wrong_type,
)


class TestOneMessage:
    def test_is_removed_without_a_trace(self, queue: DelayedQueue) -> None:
        queue.mirror_list = True
        offer(queue, "other")
        before = state(queue.client)
        offer(queue, "a")
        assert queue.cancel("a") == 1
        assert state(queue.client) == before

    def test_the_last_one_leaves_no_keys(self, queue: DelayedQueue) -> None:
        queue.mirror_list = True
        offer(queue, "a")
        assert queue.cancel("a") == 1
        assert state(queue.client) == {}

    def test_that_is_unknown_changes_nothing(self, queue: DelayedQueue) -> None:
        offer(queue, "a")
        with nothing_changes(queue.client):
            assert queue.cancel("b") == 0

    def test_that_was_transferred_changes_nothing(self, queue: DelayedQueue) -> None:
        offer(queue, "a", 1)
        offer(queue, "b")
        queue.transfer()
        with nothing_changes(queue.client):
            assert queue.cancel("a") == 0

    def test_is_found_among_10000_of_one_due_time(self, queue: DelayedQueue) -> None:
        fill(queue, 10_000, FAR)
        numbers = {0, 1, 4999, 5000, 9998, 9999, *random.sample(range(10_000), 20)}
        for number in numbers:
            assert queue.cancel(str(number)) == 1
            assert queue.cancel(str(number)) == 0
        left = [b"%d" % number for number in range(10_000) if number not in numbers]
        assert waiting(queue) == left
        assert queue.client.hlen(INDEX) == len(left)

    def test_is_found_among_messages_that_were_offered_at_the_same_moment(self, queue: DelayedQueue) -> None:
        """As an older version of the package may have stored them in a transaction."""
        for number in range(30):
            key = message_key(str(number))
            entry = codec.pack(OfferId(77, key).to_bytes(), b"%d" % number)
            seed(queue, {entry: FAR})
            queue.client.hset(INDEX, key, struct.pack(">QQ", FAR, 77))
        assert [queue.cancel(str(number)) for number in range(30)] == [1] * 30


class TestAmongOthers:
    @on_a_server(max_examples=40)
    @given(
        others=st.lists(
            st.one_of(
                st.binary(max_size=40),
                st.builds(bytes.__add__, st.just(b"\x18"), st.binary(max_size=12)),
                st.builds(codec.pack, st.binary(max_size=30), st.binary(max_size=5)),
            ),
            max_size=40,
        )
    )
    def test_of_any_shape_and_of_the_same_due_time(self, one_queue: DelayedQueue, others: list[bytes]) -> None:
        one_queue.client.flushall()
        for number in range(5):
            offer(one_queue, str(number))
        ours = [entry.raw for entry in one_queue.peek(5)]
        # Such that differ from ours late, too.
        near = [raw[:cut] + other for raw in ours[:3] for cut in (3, 8, 9) for other in others[:3]]
        foreign = {raw for raw in (*others, *near) if raw not in ours}
        if foreign:
            seed(one_queue, dict.fromkeys(foreign, FAR))
        assert [one_queue.cancel(str(number)) for number in (2, 0, 4, 1, 3)] == [1] * 5
        assert set(one_queue.client.zrange(TIMEOUT_SET, 0, -1)) == foreign
        assert not one_queue.client.exists(INDEX)

    def test_of_redisson_with_random_ids(self, queue: DelayedQueue) -> None:
        current = {codec.pack(os.urandom(8), b"java"): FAR for _ in range(500)}
        old = {os.urandom(8) + struct.pack("<Q", 3) + b"old": FAR for _ in range(500)}
        for number in range(100):
            offer(queue, str(number))
        seed(queue, {**current, **old})
        assert sum(queue.cancel(str(number)) for number in range(100)) == 100
        assert queue.size() == 1000


class TestRepeatedIds:
    def test_all_are_removed(self, queue: DelayedQueue) -> None:
        queue.mirror_list = True
        for number, due_ms in enumerate((FAR, FAR + 1, FAR, FAR - 1)):
            offer(queue, "a", due_ms, b"%d" % number)
        offer(queue, "b")
        assert queue.cancel("a") == 4
        assert queue.cancel("b") == 1
        assert state(queue.client) == {}

    def test_in_bounded_calls(self, queue: DelayedQueue) -> None:
        for number in range(8):
            offer(queue, "a", FAR + number)

        def cancel() -> tuple[int, int]:
            key = message_key("a")
            return scripts.cancel(queue.keys, message_key=key, limit=3).run(queue.client)

        assert [cancel() for _ in range(4)] == [(4, 4), (3, 1), (1, 0), (0, 0)]
        assert state(queue.client) == {}

    def test_of_which_there_are_more_than_one_call_removes(self, queue: DelayedQueue) -> None:
        for number in range(250):
            offer(queue, "a", FAR + number)
        assert queue.cancel("a") == 250
        assert state(queue.client) == {}


class TestStaleIndex:
    def test_an_entry_that_someone_else_removed(self, queue: DelayedQueue) -> None:
        """RDelayedQueue.remove in Java, for example."""
        offer(queue, "a")
        offer(queue, "a", FAR + 1)
        offer(queue, "b")
        (entry,) = queue.peek()
        queue.client.zrem(TIMEOUT_SET, entry.raw)
        assert queue.cancel("a") == 1
        assert waiting(queue) == [b"b"]
        assert list(queue.client.hgetall(INDEX)) == [message_key("b")]

    def test_an_entry_that_got_another_due_time(self, queue: DelayedQueue) -> None:
        """Then it is not found, and nothing else is removed in its place."""
        offer(queue, "a")
        (entry,) = queue.peek()
        offer(queue, "b")
        seed(queue, {entry.raw: FAR + 5})
        assert queue.cancel("a") == 0
        assert waiting(queue) == [b"b", b"a"]

    def test_a_queue_that_is_gone(self, queue: DelayedQueue) -> None:
        offer(queue, "a")
        queue.client.delete(TIMEOUT_SET)
        assert queue.cancel("a") == 0
        assert state(queue.client) == {}


class TestAllOrNothing:
    @pytest.mark.parametrize("key", [TIMEOUT_SET, INDEX, DELAY_LIST])
    def test_keys_of_another_type(self, queue: DelayedQueue, key: str) -> None:
        queue.mirror_list = True
        offer(queue, "a")
        offer(queue, "a", payload=b"again")
        wrong_type(queue, key, lambda: queue.cancel("a"))

    def test_needs_no_memory(self, queue: DelayedQueue) -> None:
        """Cancelling is a way out of a full server."""
        for payload in (b"0", b"1", b"2"):
            offer(queue, "a", payload=payload)
        with out_of_memory(queue.client):
            assert queue.cancel("a") == 3


def is_first_of_its_due_time(queue: DelayedQueue, message_id: str) -> bool:
    """Return whether it is found without a search."""
    (entry,) = queue.find(message_id)
    (first,) = queue.client.zrangebyscore(queue.keys.timeout_set, entry.score, entry.score, start=0, num=1)
    return bool(first == entry.raw)


class TestEffort:
    @pytest.mark.parametrize("one_due_time", [True, False])
    def test_grows_with_the_logarithm_of_what_waits(self, one_queue: DelayedQueue, one_due_time: bool) -> None:
        """At most one look more for every doubling: 7 from 1,000 to 100,000."""
        client = one_queue.client
        looks: dict[int, int] = {}
        for count in (1_000, 100_000):
            client.flushall()
            fill(one_queue, count, FAR if one_due_time else None)
            numbers = random.sample(range(count), 30)
            searched = sum(not is_first_of_its_due_time(one_queue, str(number)) for number in numbers)
            client.config_resetstat()
            assert [one_queue.cancel(str(number)) for number in numbers] == [1] * 30
            looks[count] = calls(client, "zrange")
            assert calls(client, "zrangebyscore") == 30
            assert calls(client, "zcount") == 2 * searched
            assert searched >= 29 if one_due_time else searched < 30
            assert calls(client, "zrem") == 30
            ran = {name.removeprefix("cmdstat_") for name in client.info("commandstats")}
            known = {
                "evalsha",
                "eval",
                "hget",
                "hlen",
                "hdel",
                "zcount",
                "zrange",
                "zrangebyscore",
                "zrem",
                "llen",
                "zcard",
                "zrangebylex",
            }
            assert ran <= {*known, "info", "config|resetstat", "config"}
        assert looks[1_000] <= 30 * 12
        assert looks[100_000] <= looks[1_000] + 30 * 8


@pytest.fixture
def collating_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PrivateRedis:
    """A server in a locale in which strings are not ordered by their bytes."""
    if shutil.which("localedef") is None or not Path("/usr/share/i18n/locales/en_US").exists():
        pytest.skip("localedef or its sources are missing")
    folder = str(tmp_path / "en_US.UTF-8")
    compile_locale = ["localedef", "--no-archive", "-i", "en_US", "-f", "UTF-8", folder]
    subprocess.run(compile_locale, check=True, capture_output=True)
    monkeypatch.setenv("LOCPATH", str(tmp_path))
    monkeypatch.setenv("LC_ALL", "en_US.UTF-8")
    return PrivateRedis()


def test_does_not_depend_on_the_servers_locale(collating_server: PrivateRedis) -> None:
    with collating_server, collating_server.client() as client:
        if not client.eval("return 'B' > 'a'", 0):
            pytest.skip("this server compares strings by their bytes in every locale")
        queue = DelayedQueue(client, "q")
        fill(queue, 3_000, FAR)
        seed(queue, {codec.pack(os.urandom(8), b"java"): FAR for _ in range(300)})
        numbers = random.sample(range(3_000), 200)
        assert [queue.cancel(str(number)) for number in numbers] == [1] * 200

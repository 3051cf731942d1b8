"""The flusher: what was counted reaches Redis once, whatever happens on the way."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from celery_delayq.metrics import flusher as of_flusher
from celery_delayq.metrics.flusher import Flusher
from celery_delayq.metrics.recorder import Recorder
from celery_delayq.queue.call import run_each
from celery_delayq.queue.connections import Refusals, servers_of
from celery_delayq.queue.keys import QueueKeys, counted
from tests.state import out_of_memory
from tests.support import in_a_child, wait_until

pytestmark = pytest.mark.on_cluster

KEYS = QueueKeys.of("q")


@pytest.fixture
def recorder() -> Recorder:
    recorder = Recorder()
    recorder.add("q", "x", 3)
    return recorder


@pytest.fixture
def flusher(recorder: Recorder) -> Flusher:
    return Flusher(recorder)


def total(client: redis.Redis, name: str = "q") -> int:
    return int(client.hget(QueueKeys.of(name).metrics, "x") or 0)


def test_totals_grow_and_histories_have_the_same_sums(
    client: redis.Redis, recorder: Recorder, flusher: Flusher
) -> None:
    flusher.flush(client)
    recorder.add("q", "x", 4)
    flusher.flush(client)
    flusher.flush(client)
    assert total(client) == 7
    for step_s, kept_s in ((60, 8 * 3600), (600, 72 * 3600)):
        blocks = list(client.scan_iter(f"{KEYS.metrics}:{step_s}:*"))
        sums = {field: int(n) for block in blocks for field, n in client.hgetall(block).items()}
        assert sum(sums.values()) == 7
        assert all(int(field.partition(b":")[0]) % step_s == 0 for field in sums)
        assert all(client.ttl(block) > kept_s for block in blocks)


def test_what_is_counted_for_any_priority_is_with_the_first_list(client: redis.Redis, recorder: Recorder) -> None:
    """So it expires as a whole: a total that lost a part would look like a restart."""
    recorder.add("q+6", "x", 2)
    Flusher(recorder, first_list=lambda name: name.partition("+")[0]).flush(client)
    assert total(client) == 5
    assert client.zrange(counted(""), 0, -1) == [b"q"]
    assert recorder.pending() == {}


def test_many_numbers_are_added_in_parts(client: redis.Redis, recorder: Recorder, flusher: Flusher) -> None:
    for number in range(1_200):
        recorder.add("q", f"missed_runs:{number}")
    flusher.flush(client)
    assert client.hlen(KEYS.metrics) == 1_201
    assert recorder.pending() == {}


def test_a_field_that_is_no_number_is_left_alone(client: redis.Redis, recorder: Recorder, flusher: Flusher) -> None:
    recorder.add("q", "y")
    client.hset(KEYS.metrics, "x", "no number")
    flusher.flush(client)
    assert client.hgetall(KEYS.metrics) == {b"x": b"no number", b"y": b"1"}
    assert recorder.pending() == {}


def test_nothing_stays_for_ever(client: redis.Redis, flusher: Flusher) -> None:
    flusher.flush(client)
    keys = list(client.scan_iter())
    assert len(keys) == 4
    assert all(client.ttl(key) > 0 for key in keys)


def test_a_queue_is_found_by_its_numbers(client: redis.Redis, recorder: Recorder, flusher: Flusher) -> None:
    recorder.add("other", "x")
    flusher.flush(client)
    assert client.zrange("delayq:metrics", 0, -1) == [b"other", b"q"]


def test_only_lists_of_the_server_are_added(client: redis.Redis, recorder: Recorder, flusher: Flusher) -> None:
    recorder.add("elsewhere", "x")
    flusher.flush(client, lambda name: name == "q")
    assert (total(client), total(client, "elsewhere")) == (3, 0)
    flusher.flush(client)
    assert (total(client), total(client, "elsewhere")) == (3, 1)


@contextmanager
def wrong_type(client: redis.Redis) -> Iterator[None]:
    client.set(KEYS.metrics, "of somebody else")
    yield
    client.delete(KEYS.metrics)


def _everybody(client: redis.Redis, **rights: Any) -> None:
    """Set the rights of the default user, who is everybody here."""
    for server in servers_of(client):
        server.acl_setuser("default", enabled=True, nopass=True, **rights)


@contextmanager
def no_key(client: redis.Redis) -> Iterator[None]:
    """Let nobody use the keys of the queue."""
    _everybody(client, reset_keys=True, keys=["*other*", "delayq:metrics"])
    yield
    _everybody(client, keys=["*"])


@contextmanager
def no_time(client: redis.Redis) -> Iterator[None]:
    """Let nobody ask for the time."""
    _everybody(client, commands=["-time"])
    yield
    _everybody(client, commands=["+time"])


@pytest.mark.parametrize("refusing", [wrong_type, no_key, no_time])
def test_what_the_server_refuses_is_added_later_and_logged_once(
    refusing: object, client: redis.Redis, recorder: Recorder, flusher: Flusher, caplog: pytest.LogCaptureFixture
) -> None:
    assert callable(refusing)
    recorder.add("other", "x")
    with refusing(client), caplog.at_level(logging.WARNING):
        for _ in range(3):
            flusher.flush(client)
    assert len([record for record in caplog.records if "Cannot add to the metrics" in record.message]) == 1
    flusher.flush(client)
    assert (total(client), total(client, "other")) == (3, 1)


def test_a_full_server_is_said_once_and_its_metrics_are_added_later(
    client: redis.Redis,
    recorder: Recorder,
    flusher: Flusher,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not each time, as the time in the command that records the list changes."""
    monkeypatch.setattr(of_flusher, "refusals", Refusals())
    with out_of_memory(client), caplog.at_level(logging.WARNING):
        for _ in range(3):
            flusher.flush(client)
            recorder.add("another", "x")
    assert [record.message.partition(":")[0] for record in caplog.records] == ["Redis refuses some commands for now"]
    flusher.flush(client)
    assert (total(client), total(client, "another")) == (3, 3)


def test_a_record_that_is_refused_is_said_once(
    client: redis.Redis, recorder: Recorder, flusher: Flusher, caplog: pytest.LogCaptureFixture
) -> None:
    client.set("delayq:metrics", "of another type")
    with caplog.at_level(logging.WARNING):
        flusher.flush(client)
        second = client.time()[0]
        wait_until(lambda: client.time()[0] > second, "the command has another time in it")
        recorder.add("q", "x")
        flusher.flush(client)
    assert len(caplog.records) == 1
    client.delete("delayq:metrics")


def test_numbers_without_an_answer_are_not_added_twice(
    client: redis.Redis, recorder: Recorder, flusher: Flusher, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:

        def lost(*args: Any) -> object:
            run_each(*args)
            raise redis.ConnectionError("after it was executed")

        patch.setattr(of_flusher, "run_each", lost)
        with pytest.raises(redis.ConnectionError):
            flusher.flush(client)
    recorder.add("q", "x")
    flusher.flush(client)
    assert total(client) == 4


@pytest.mark.one_server("about a connection")
def test_numbers_stay_if_the_connection_was_lost_before(client: redis.Redis, flusher: Flusher) -> None:
    with redis.Redis(port=1) as nobody, pytest.raises(redis.ConnectionError):
        flusher.flush(nobody)
    flusher.flush(client)
    assert total(client) == 3


def test_no_two_add_the_same(client: redis.Redis, flusher: Flusher, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot moves from one loop's node to another's while the first one adds."""

    def meanwhile(*args: Any) -> object:
        monkeypatch.setattr(of_flusher, "run_each", run_each)
        flusher.flush(client)
        assert total(client) == 0
        return run_each(*args)

    monkeypatch.setattr(of_flusher, "run_each", meanwhile)
    flusher.flush(client)
    flusher.flush(client)
    assert total(client) == 3


def test_nothing_is_sent_if_nothing_was_counted(any_broker: object, client: redis.Redis) -> None:
    flusher = Flusher(Recorder())
    client.config_resetstat()
    flusher.flush(client)
    assert not flusher.has_pending
    assert "cmdstat_time" not in client.info("commandstats")


@pytest.mark.one_server("about a process")
def test_a_forked_child_adds_nothing(client: redis.Redis, flusher: Flusher) -> None:

    def flushes() -> bool:
        flusher.flush(client)
        return not flusher.has_pending

    assert in_a_child(flushes)
    assert total(client) == 0
    assert flusher.has_pending

"""offer_fetched.lua: what a consumer has fetched waits in the delayed queue, as if it had been offered."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from celery_delayq.basics.times import to_datetime
from celery_delayq.queue import codec, holds, scripts
from celery_delayq.queue.delayed_queue import DelayedQueue
from celery_delayq.queue.holds import Claim, Hold, Holder, holds_of
from tests.lua.conftest import Heard
from tests.state import (
    DELAY_LIST,
    FAR,
    INDEX,
    TIMEOUT_SET,
    give,
    held,
    nothing_changes,
    now_ms,
    offer,
    out_of_memory,
    state,
    waiting,
    wrong_type,
)

ME = "host:1:me"
IN_FLIGHT = "delayq:inflight:{q}:host:1:me"


HOLDER = Holder.of("key", "1")


def offer_fetched(
    queue: DelayedQueue,
    message: bytes,
    payload: bytes | None = None,
    due_ms: int = FAR,
    *,
    is_from_now: bool = False,
    holder: Holder | None = None,
) -> tuple[bool, bool]:
    """Run the script; the message is its own id, and stored as it is by default."""
    return scripts.offer_fetched(
        queue.keys,
        consumer=ME,
        message=message,
        due_ms=due_ms,
        is_from_now=is_from_now,
        holder=holder,
        message_key=codec.message_key(message.decode()),
        payload=message if payload is None else payload,
        mirrored=queue.mirror_list,
    ).run(queue.client)


@pytest.mark.parametrize("mirrored", [False, True])
def test_it_waits_as_if_it_had_been_offered(queue: DelayedQueue, mirrored: bool) -> None:
    queue.mirror_list = mirrored
    give(queue, ME, b"1", b"2", b"3")
    heard = Heard(queue.client, queue.keys.channel)
    assert offer_fetched(queue, b"2", b"payload") == (True, True)
    assert offer_fetched(queue, b"1", due_ms=FAR + 1) == (True, False)
    assert held(queue, ME) == [b"3"]
    assert heard.all() == [b"%d" % FAR]
    (entry, _) = queue.client.zrange(TIMEOUT_SET, 0, -1)
    assert queue.client.lrange(DELAY_LIST, 0, 0) == ([entry] if mirrored else [])
    assert [found.payload for found in queue.find("2")] == [b"payload"]
    assert queue.cancel("2") == queue.cancel("1") == 1
    assert state(queue.client) == {IN_FLIGHT: [b"3"]}


def test_an_id_that_waits_already_gets_one_more_entry(queue: DelayedQueue) -> None:
    offer(queue, "1")
    give(queue, ME, b"1")
    assert offer_fetched(queue, b"1") == (True, False)
    assert waiting(queue) == [b"1", b"1"]
    assert queue.cancel("1") == 2


def test_of_the_same_bytes_twice_one_stays_in_flight(queue: DelayedQueue) -> None:
    give(queue, ME, b"same", b"other", b"same")
    assert offer_fetched(queue, b"same") == (True, True)
    assert sorted(held(queue, ME)) == [b"other", b"same"]
    assert waiting(queue) == [b"same"]


def test_what_is_not_in_flight_any_more_is_not_stored(queue: DelayedQueue) -> None:
    """Others have recovered it; or the reply to the first call was lost, and the client has sent it again."""
    give(queue, ME, b"1")
    give(queue, "another", b"2")
    with nothing_changes(queue.client):
        assert offer_fetched(queue, b"2") == (False, False)
    offer_fetched(queue, b"1")
    with nothing_changes(queue.client):
        assert offer_fetched(queue, b"1") == (False, False)


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("key", [IN_FLIGHT, TIMEOUT_SET, INDEX, DELAY_LIST])
def test_keys_of_another_type_change_nothing(queue: DelayedQueue, key: str, mirrored: bool) -> None:
    queue.mirror_list = mirrored
    give(queue, ME, b"1")
    wrong_type(queue, key, lambda: offer_fetched(queue, b"1"))


def test_a_full_server_refuses_it_and_the_message_stays_in_flight(queue: DelayedQueue) -> None:
    give(queue, ME, b"1")
    refused = pytest.raises(redis.ResponseError, match="maxmemory")  # each version has its own words around that
    with out_of_memory(queue.client), nothing_changes(queue.client), refused:
        offer_fetched(queue, b"1")


def test_it_looks_from_the_newest_on(queue: DelayedQueue) -> None:
    """A worker that holds much has fetched the message just now."""
    give(queue, ME, b"new", *[b"%d" % number for number in range(3000)], b"new")
    offer_fetched(queue, b"new")
    assert held(queue, ME)[0] == b"new"


def test_it_may_be_due_some_time_from_now(queue: DelayedQueue) -> None:
    give(queue, ME, b"1")
    before = now_ms(queue.client)
    offer_fetched(queue, b"1", due_ms=5000, is_from_now=True)
    (entry,) = queue.peek(10)
    assert before + 5000 <= entry.score <= now_ms(queue.client) + 5000


def runs(queue: DelayedQueue, until: Any) -> None:
    """Let the task "1" hold the key, and a worker have it."""
    claim = Claim("key", until, 60_000, "keep")
    assert queue.offer_unique(b"1", claim, eta=None, message_id="1").outcome == "stored"
    queue.client.delete(queue.keys.queue)
    give(queue, ME, b"1")


def hold_of(queue: DelayedQueue) -> Hold | None:
    (found,) = holds_of(queue.client, [queue.keys], "key") or [None]
    return found


def test_a_task_that_holds_a_unique_key_holds_it_while_it_waits(queue: DelayedQueue) -> None:
    runs(queue, "done")
    offer_fetched(queue, b"1", holder=HOLDER)
    found = hold_of(queue)
    assert found is not None
    assert (found.waits, found.ends_ms, found.task_id) == (True, 0, "1")
    claim = Claim("key", "done", 60_000, "keep")
    assert queue.offer_unique(b"2", claim, eta=to_datetime(FAR), message_id="2").outcome == "held"
    assert queue.cancel("1") == 1
    assert hold_of(queue) is None


def test_whoever_holds_its_key_now_keeps_it(queue: DelayedQueue) -> None:
    """It had given it up when it started."""
    runs(queue, "done")
    holds.hold(queue.keys, holders=[HOLDER], what="done").run(queue.client)
    claim = Claim("key", "done", 60_000, "keep")
    assert queue.offer_unique(b"2", claim, eta=to_datetime(FAR), message_id="2").outcome == "stored"
    offer_fetched(queue, b"1", holder=HOLDER)
    assert queue.cancel("1") == 1
    found = hold_of(queue)
    assert found is not None
    assert found.task_id == "2"


def test_a_full_server_leaves_its_key_alone(queue: DelayedQueue) -> None:
    runs(queue, "done")
    refused = pytest.raises(redis.ResponseError, match="maxmemory")
    with out_of_memory(queue.client), nothing_changes(queue.client), refused:
        offer_fetched(queue, b"1", holder=HOLDER)


def test_a_key_that_is_held_until_the_task_starts_is_free_then(queue: DelayedQueue) -> None:
    """Whether the worker's word that it has started came before or not."""
    runs(queue, "start")
    offer_fetched(queue, b"1", holder=HOLDER)
    assert hold_of(queue) is None
    assert queue.cancel("1") == 1

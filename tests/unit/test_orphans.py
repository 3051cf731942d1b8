"""Orphans: found by name, adopted in one step, handed over entry by entry without loss."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from typing import Any

import pytest
import redis

from celery_delayq import DelayedQueue
from celery_delayq.queue import codec, orphans, scripts
from celery_delayq.queue.call import Attempt
from celery_delayq.queue.connections import at_server_of
from celery_delayq.queue.entry import Entry
from celery_delayq.queue.orphans import Orphan
from tests.state import FAR, seed, state

pytestmark = pytest.mark.on_cluster

OLD_PACKING = bytes(8) + (3).to_bytes(8, "little") + b"old"


@pytest.fixture
def left_behind(client: redis.Redis) -> DelayedQueue:
    """What a Java application left: entries in both packings, in the delay list too, and one that is none."""
    queue = DelayedQueue(client, "jobs")
    entries = [codec.pack(b"%08d" % at, b"new %d" % at) for at in range(250)]
    seed(queue, {entry: FAR + at for at, entry in enumerate([*entries, OLD_PACKING, b"garbage"])})
    client.rpush(queue.keys.delay_list, *entries, OLD_PACKING)
    return queue


def push(entry: Entry) -> tuple[Any, ...]:
    """Put the payload of an entry into a list."""
    return "RPUSH", "taken", entry.payload


def taken(client: redis.Redis) -> list[bytes]:
    found: list[bytes] = client.lrange("taken", 0, -1)
    return found


EXPECTED = [b"new %d" % at for at in range(250)] + [b"old"]


def test_find_names_what_is_registered_nowhere(client: redis.Redis) -> None:
    DelayedQueue(client, "ours").offer(b"x", countdown=60)
    for name in ("jobs", "{slot}jobs", "a\x06\x163"):
        seed(DelayedQueue(client, name), {codec.pack(b"12345678", b"x"): FAR})
    client.zadd(b"redisson_delay_queue_timeout:{\xff}", {"x": 1})
    client.set("redisson_delay_queue_timeout:{text}", "no ZSET")
    assert [orphan.name for orphan in orphans.find(client)] == ["a\x06\x163", "jobs", "{slot}jobs"]


def test_find_reads_the_registry_of_its_keyprefix(client: redis.Redis) -> None:
    DelayedQueue(client, "shop-q", keyprefix="shop-").offer(b"x", countdown=60)
    assert orphans.find(client, "shop-") == []
    assert [orphan.name for orphan in orphans.find(client)] == ["shop-q"]


def test_an_orphan_knows_what_waits_and_who_listens(client: redis.Redis, left_behind: DelayedQueue) -> None:
    assert Orphan.look(client, "jobs") == Orphan("jobs", 252, FAR, FAR + 251, 0)
    with at_server_of(client, "jobs").pubsub() as pubsub:
        pubsub.subscribe(left_behind.keys.channel)
        pubsub.get_message(timeout=5)
        assert Orphan.look(client, "jobs").listeners == 1
    assert Orphan.look(client, "nothing") == Orphan("nothing", 0, None, None, 0)


@pytest.mark.one_server("it connects to one")
def test_a_client_that_decodes_finds_the_same(client: redis.Redis, left_behind: DelayedQueue) -> None:
    options = client.get_connection_kwargs()
    for protocol in (2, 3):
        with redis.Redis(port=options["port"], decode_responses=True, protocol=protocol) as decoding:
            assert orphans.find(decoding) == orphans.find(client)
            before = len(taken(client))
            batch = next(Orphan.look(decoding, "jobs").hand_over(decoding, push))
            assert taken(client)[before:] == EXPECTED[before : before + batch.moved]


def test_adopting_registers_the_list_and_touches_no_entry(client: redis.Redis, left_behind: DelayedQueue) -> None:
    before = state(client)
    (orphan,) = orphans.find(client)
    orphan.adopt(client)
    assert state(client) == {**before, "delayq:queues": {b"jobs"}}
    assert orphans.find(client) == []


def test_handing_over_replaces_every_entry_once_in_due_order(client: redis.Redis, left_behind: DelayedQueue) -> None:
    done = list(Orphan.look(client, "jobs").hand_over(client, push))
    assert taken(client) == EXPECTED
    assert (sum(batch.moved for batch in done), sum(batch.left for batch in done)) == (251, 1)
    assert client.zrange(left_behind.keys.timeout_set, 0, -1) == [b"garbage"]
    assert client.llen(left_behind.keys.delay_list) == 0


def test_handing_over_leaves_what_is_not_wanted(client: redis.Redis, left_behind: DelayedQueue) -> None:
    def every_second(entry: Entry) -> tuple[Any, ...] | None:
        return push(entry) if entry.score % 2 else None

    list(Orphan.look(client, "jobs").hand_over(client, every_second))
    assert taken(client) == EXPECTED[1::2]
    assert [entry.payload for entry in left_behind.peek(1000)] == EXPECTED[::2]
    assert client.llen(left_behind.keys.delay_list) == len(EXPECTED[::2])


def test_handing_over_can_be_interrupted_between_any_two_entries(
    client: redis.Redis, left_behind: DelayedQueue
) -> None:
    """What was begun and not carried out has changed nothing; another call goes on."""

    def interrupted(entry: Entry) -> tuple[Any, ...]:
        if entry.payload == b"new 150":
            raise KeyboardInterrupt
        return push(entry)

    with pytest.raises(KeyboardInterrupt):
        list(Orphan.look(client, "jobs").hand_over(client, interrupted))
    assert taken(client) == EXPECTED[:144], "whole batches"
    list(Orphan.look(client, "jobs").hand_over(client, push))
    assert taken(client) == EXPECTED


def test_what_is_published_as_an_attempt_is_replaced_once_although_an_entry_was_not_removed(
    client: redis.Redis, left_behind: DelayedQueue
) -> None:
    """As if the process had been killed in between."""
    goal = DelayedQueue(client, "goal")

    def offer(entry: Entry) -> tuple[Any, ...]:
        token = hashlib.blake2b(entry.raw, digest_size=16).digest()
        return scripts.offer(
            goal.keys,
            due_ms=entry.score,
            message_key=secrets.token_bytes(16),
            payload=entry.payload,
            mirrored=False,
            attempt=Attempt("orphans", token),
        ).by_text()

    before = client.zrange(left_behind.keys.timeout_set, 0, 31, withscores=True)
    handing_over = Orphan.look(client, "jobs").hand_over(client, offer)
    next(handing_over)
    next(handing_over)
    assert left_behind.size() == 252 - 32
    client.zadd(left_behind.keys.timeout_set, dict(before[16:]))
    list(Orphan.look(client, "jobs").hand_over(client, offer))
    assert [entry.payload for entry in goal.peek(1000)] == EXPECTED


@pytest.mark.parametrize("change", ["transfer", "offer"])
def test_somebody_else_may_change_the_queue_meanwhile(
    client: redis.Redis, left_behind: DelayedQueue, change: str
) -> None:
    first = codec.pack(b"first id", b"first")
    changes: dict[str, Callable[[], object]] = {
        "transfer": lambda: client.zrem(left_behind.keys.timeout_set, codec.pack(b"%08d" % 99, b"new 99")),
        "offer": lambda: seed(left_behind, {first: 1}),
    }
    changed = False

    def meddling(entry: Entry) -> tuple[Any, ...]:
        nonlocal changed
        if not changed:
            changes[change]()
        changed = True
        return push(entry)

    list(Orphan.look(client, "jobs").hand_over(client, meddling))
    expected = [b"first", *EXPECTED] if change == "offer" else [one for one in EXPECTED if one != b"new 99"]
    assert sorted(taken(client)) == sorted(expected)


def test_an_entry_whose_command_is_refused_stays(client: redis.Redis, left_behind: DelayedQueue) -> None:
    client.set("text", "no list")

    def refused(entry: Entry) -> tuple[Any, ...]:
        return ("RPUSH", "text", "x") if entry.payload in (b"new 7", b"new 9") else push(entry)

    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        list(Orphan.look(client, "jobs").hand_over(client, refused))
    assert [entry.payload for entry in left_behind.peek(2)] == [b"new 7", b"new 9"]
    assert [entry.score for entry in left_behind.peek(2)] == [FAR + 7, FAR + 9]
    assert client.llen(left_behind.keys.delay_list) == left_behind.size() - 1, "all of them but the garbage"
    list(Orphan.look(client, "jobs").hand_over(client, push))
    assert sorted(taken(client)) == sorted(EXPECTED)


def test_a_server_without_memory_takes_nothing(client: redis.Redis, left_behind: DelayedQueue) -> None:
    before = state(client)
    client.config_set("maxmemory", 1)
    try:
        with pytest.raises(redis.RedisError, match="maxmemory"):
            list(Orphan.look(client, "jobs").hand_over(client, push))
    finally:
        client.config_set("maxmemory", 0)
    assert state(client) == before


def test_nothing_to_hand_over(client: redis.Redis) -> None:
    assert list(Orphan.look(client, "jobs").hand_over(client, push)) == []

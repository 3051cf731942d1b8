"""Seed a database, read all of it, make it fail: what tests of every script share."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any
from zlib import crc32

import pytest
import redis

from celery_delayq.basics.times import EPOCH
from celery_delayq.queue import codec, scripts
from celery_delayq.queue.delayed_queue import DelayedQueue
from celery_delayq.queue.keys import QueueKeys
from celery_delayq.queue.scripts import Renewed

#: Due times in the far future, unix time in ms.
FAR = 4_000_000_000_000

#: The keys of the delayed queue "q", as Redisson and docs/dev/layout.md name them.
TIMEOUT_SET = "redisson_delay_queue_timeout:{q}"
DELAY_LIST = "redisson_delay_queue:{q}"
INDEX = "delayq:index:{q}"
REPEATED = "delayq:repeated:{q}"
DEAD, RECORDS = "delayq:dead:{q}", "delayq:dead_records:{q}"
TRANSFERRER = "delayq:transfer:{q}"

_READ: dict[bytes, Callable[[redis.Redis, bytes], Any]] = {
    b"string": lambda client, key: client.get(key),
    b"list": lambda client, key: client.lrange(key, 0, -1),
    b"set": lambda client, key: client.smembers(key),
    b"hash": lambda client, key: client.hgetall(key),
    b"zset": lambda client, key: client.zrange(key, 0, -1, withscores=True),
}


def state(client: redis.Redis) -> dict[str, Any]:
    """Return everything in the database, by key; ZSETs as lists of (member, score), and of the registry only names."""
    found = {key.decode(): _READ[client.type(key)](client, key) for key in client.scan_iter()}
    return {
        key: {name for name, _ in value} if key.endswith("delayq:queues") and isinstance(value, list) else value
        for key, value in found.items()
    }


def now_us(client: redis.Redis) -> int:
    """Return the server's time in microseconds."""
    seconds, microseconds = client.time()
    return int(seconds) * 1_000_000 + int(microseconds)


def now_ms(client: redis.Redis) -> int:
    """Return the server's time in ms."""
    return now_us(client) // 1000


def floor_ms(when: datetime) -> int:
    """Return a time as unix time in ms, rounded down."""
    return (when - EPOCH) // timedelta(milliseconds=1)


def offer(queue: DelayedQueue, message_id: str, due_ms: int | None = FAR, payload: bytes | None = None) -> None:
    """Run the script alone, without the registry; the payload is the message id by default."""
    scripts.offer(
        queue.keys,
        due_ms=due_ms,
        message_key=codec.message_key(message_id),
        payload=message_id.encode() if payload is None else payload,
        mirrored=queue.mirror_list,
    ).run(queue.client)


def offer_many(queue: DelayedQueue, messages: list[tuple[int, str, bytes]]) -> bool:
    """Run the script for many messages; each is its due time, its id and its payload."""
    return scripts.offer_many(
        queue.keys,
        messages=[(due_ms, codec.message_key(message_id), payload) for due_ms, message_id, payload in messages],
        mirrored=queue.mirror_list,
    ).run(queue.client)


def seed(queue: DelayedQueue, entries: dict[bytes, float]) -> None:
    """Put entries as they are into the timeout set."""
    queue.client.zadd(queue.keys.timeout_set, entries)


def fill(queue: DelayedQueue, count: int, due_ms: int | None = None) -> None:
    """Store messages "0", "1", ... as offers would, quickly: of one due time, or of random ones."""
    for start in range(0, count, 5000):
        entries: dict[bytes, float] = {}
        places: dict[bytes, bytes] = {}
        for number in range(start, min(start + 5000, count)):
            key, offered_us = codec.message_key(str(number)), 1_000_000 + number
            entry = codec.pack(codec.OfferId(offered_us, key).to_bytes(), b"%d" % number)
            due = due_ms if due_ms is not None else FAR + random.randrange(1_000_000)
            entries[entry] = due
            places[key] = struct.pack(">QQ", due, offered_us)
        seed(queue, entries)
        queue.client.hset(queue.keys.index, mapping=places)


def waiting(queue: DelayedQueue) -> list[bytes]:
    """Return the payloads of all entries in due order; all of them must be entries."""
    raw: list[bytes] = queue.client.zrange(queue.keys.timeout_set, 0, -1)
    return [codec.unpack(entry)[1] for entry in raw]


def oldest_first(client: redis.Redis, key: str) -> list[bytes]:
    """Return the messages in a broker list or an in-flight list, the oldest first."""
    messages: list[bytes] = client.lrange(key, 0, -1)
    return messages[::-1]


def delivered(queue: DelayedQueue) -> list[bytes]:
    """Return the payloads in the broker list, the first to be consumed first."""
    return oldest_first(queue.client, queue.name)


def bury(client: redis.Redis, name: str, *records: bytes, at_ms: int | None = None) -> list[str]:
    """Write records of dead letters as the scripts do, each dead a ms after the one before; return their ids.

    Args:
        client: any.
        name: the broker list.
        records: what to write.
        at_ms: when the first one died; after all others if it is None.
    """
    keys = QueueKeys.of(name)
    count: Any = client.zcard(keys.dead)
    last: Any = client.zrange(keys.dead, -1, -1, withscores=True)
    if at_ms is None:
        at_ms = int(last[0][1]) + 1 if last else 1
    number = f"{(count + crc32(name.encode())) % 4096:03x}"
    times = {f"{ms // 1000:08x}{ms % 1000 * 1000:05x}{number}": ms for ms in range(at_ms, at_ms + len(records))}
    letters = list(zip(times.items(), records, strict=True))
    for start in range(0, len(letters), 10_000):
        some = letters[start : start + 10_000]
        client.zadd(keys.dead, dict(time for time, _ in some))
        client.hset(keys.records, mapping={letter_id: record for (letter_id, _), record in some})
    return list(times)


def records(client: redis.Redis, name: str) -> list[bytes]:
    """Return the records of the dead letters of a broker list, the oldest first."""
    keys = QueueKeys.of(name)
    ids: Any = client.zrange(keys.dead, 0, -1)
    found: Any = client.hmget(keys.records, ids) if ids else []
    assert client.hlen(keys.records) == len(ids)
    return list(found)


@contextmanager
def nothing_changes(client: redis.Redis) -> Iterator[None]:
    """Fail if the database is another one after the block."""
    before = state(client)
    yield
    assert state(client) == before


@contextmanager
def out_of_memory(client: redis.Redis) -> Iterator[None]:
    """Let the server refuse whatever needs memory; it knows no script then."""
    client.script_flush()
    client.config_set("maxmemory", 1)
    try:
        yield
    finally:
        client.config_set("maxmemory", 0)


def calls(client: redis.Redis, command: str) -> int:
    """Return how often the server ran a command since `config_resetstat`, within scripts as well."""
    stats = client.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})
    count: int = stats["calls"]
    return count


def looks_for_consumers(client: redis.Redis) -> int:
    """Return how often watchdogs have looked for missing consumers since `config_resetstat`."""
    return calls(client, "pubsub|channels") or calls(client, "pubsub")  # Redis 7, Redis 6


def wrong_type(queue: DelayedQueue, key: str, call: Callable[[], object]) -> None:
    """Give a key another type; the call must fail then, and change nothing."""
    client = queue.client
    client.delete(key)
    lists = (queue.keys.queue, queue.keys.delay_list)
    if key in lists or key.startswith(queue.keys.in_flight("")):
        client.set(key, "no list")
    else:
        client.rpush(key, "no ZSET, HASH or STRING")
    with nothing_changes(client), pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        call()


def lease(queue: DelayedQueue, consumer: str, ms_left: int = 3_600_000) -> bytes:
    """Give a consumer a lease, by default of an hour; return its score as the scripts see it."""
    end = now_ms(queue.client) + ms_left
    queue.client.zadd(queue.keys.consumers, {consumer: end})
    return b"%d" % end


def renew(queue: DelayedQueue, consumer: str, *, lease_ms: int = 30_000, join: bool = False) -> Renewed:
    """Renew a consumer's lease; with `join`, begin one if there is none."""
    (done,) = scripts.renew([queue.keys], consumer=consumer, lease_ms=lease_ms, join=join).run(queue.client)
    if isinstance(done, Exception):
        raise done
    return done


def publish(queue: DelayedQueue, *messages: bytes) -> None:
    """Put messages to the back of the broker list, the first comes first."""
    queue.client.lpush(queue.name, *messages)


def give(queue: DelayedQueue, consumer: str, *messages: bytes) -> None:
    """Let a consumer hold messages as if it had fetched them, the first came first."""
    queue.client.lpush(queue.keys.in_flight(consumer), *messages)


def held(queue: DelayedQueue, consumer: str) -> list[bytes]:
    """Return what a consumer holds, the oldest first."""
    return oldest_first(queue.client, queue.keys.in_flight(consumer))

"""Orphans: delayed queues that Java applications left behind, and how their entries change hands; knows Redis only.

An orphan is a timeout set that belongs to no registered broker list. Two things can be done with it:

- `Orphan.adopt` registers its list: from then on transfer loops move each entry there when it is due. One command.
- `Orphan.hand_over` puts something else in the place of each entry, a Celery task for example, in transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import redis
from redis.client import NEVER_DECODE
from redis.exceptions import WatchError

from celery_delayq import keys
from celery_delayq.delayed_queue import DelayedQueue
from celery_delayq.entry import Entry, entry_of, pairs
from celery_delayq.registry import registered
from celery_delayq.scripts import score_to_ms

#: Entries that are read, and handed over in one transaction, at a time.
_BATCH = 100

#: Keys that one SCAN looks at.
_SCAN = 1000

#: Returns the Redis command that puts something in the place of an entry, or None to leave the entry where it is.
Replace = Callable[[Entry], tuple[Any, ...] | None]


@dataclass(frozen=True)
class HandedOver:
    """What one batch of `hand_over` did.

    Attributes:
        moved: entries that were replaced.
        left: entries that stay: `replace` did not want them, or they are no entries.
    """

    moved: int
    left: int


@dataclass(frozen=True)
class Orphan:
    """A delayed queue that no process of this package transfers.

    Attributes:
        name: the broker list that its entries are for.
        waiting: how many entries wait, due ones included.
        first_due_ms: when the earliest is due, unix time in ms; None if it never is.
        last_due_ms: when the latest is due.
        listeners: subscribers of its channel; a Java application that still runs is one, and transfers it.
    """

    name: str
    waiting: int
    first_due_ms: int | None
    last_due_ms: int | None
    listeners: int

    @classmethod
    def look(cls, client: redis.Redis, name: str) -> Orphan:
        """Return what waits for a list now. Not atomic."""
        names = keys.QueueKeys.of(name)
        with client.pipeline(transaction=False) as pipe:
            pipe.zcard(names.timeout_set)
            pipe.execute_command("ZRANGE", names.timeout_set, 0, 0, "WITHSCORES", **{NEVER_DECODE: True})
            pipe.execute_command("ZRANGE", names.timeout_set, -1, -1, "WITHSCORES", **{NEVER_DECODE: True})
            pipe.pubsub_numsub(names.channel)
            waiting, first, last, listeners = pipe.execute()
        return cls(name, waiting, _due_ms(first), _due_ms(last), int(listeners[0][1]))

    def adopt(self, client: redis.Redis, keyprefix: str = "") -> None:
        """Let transfer loops move the entries to their list when they are due. Atomic, and no entry is touched."""
        DelayedQueue(client, self.name, keyprefix=keyprefix).register(again=True)

    def entries(self, client: redis.Redis) -> Iterator[Entry | None]:
        """Yield all entries in due order without touching them; None for what is no entry."""
        start = 0
        while page := _page(client, keys.QueueKeys.of(self.name), start):
            yield from page
            start += len(page)

    def hand_over(self, client: redis.Redis, replace: Replace) -> Iterator[HandedOver]:
        """Put something in the place of each entry, in due order, a batch of 100 in one transaction.

        An entry is removed and replaced in one MULTI, which is not carried out if anybody else changed the queue since
        the entries were read. So it may be interrupted, and called again, at any time: an entry is either still there
        or was replaced once. The keys are in different hash slots, which Redis Cluster would refuse.

        Args:
            client: any `redis.Redis`.
            replace: returns the command for an entry; must have no effect of its own. It is called again for entries
                of a transaction that was not carried out.

        Yields:
            What became of a batch.

        Raises:
            redis.ResponseError: a command of `replace` was refused; its entry was put back.
        """
        names = keys.QueueKeys.of(self.name)
        left = 0
        with client.pipeline(transaction=True) as pipe:
            while True:
                pipe.watch(names.timeout_set, names.delay_list)
                page = _page(pipe, names, left)
                if not page:
                    return
                commands = [(entry, replace(entry)) for entry in page if entry is not None]
                chosen = [(entry, command) for entry, command in commands if command is not None]
                pipe.multi()
                for entry, command in chosen:
                    pipe.execute_command(*command)
                    pipe.zrem(names.timeout_set, entry.raw)
                    pipe.lrem(names.delay_list, 1, entry.raw)  # type: ignore[arg-type]
                try:
                    replies = pipe.execute(raise_on_error=False)
                except WatchError:
                    continue
                _put_back(client, names, [entry for entry, _ in chosen], replies)
                left += len(page) - len(chosen)
                yield HandedOver(len(chosen), len(page) - len(chosen))


def find(client: redis.Redis, keyprefix: str = "") -> list[Orphan]:
    """Return all orphans of a database, by name. Scans all keys, in steps that block nobody.

    Args:
        client: any `redis.Redis`.
        keyprefix: kombu's `global_keyprefix`, of the registry.
    """
    known = registered(client, keyprefix)
    found = client.scan_iter(match=f"{keys.TIMEOUT_SET}:*", count=_SCAN, _type="ZSET")
    names = {keys.list_of(keys.TIMEOUT_SET, key) for key in map(_text, found) if key is not None}
    return [Orphan.look(client, name) for name in sorted(filter(None, names - known))]


def _page(client: Any, names: keys.QueueKeys, start: int) -> list[Entry | None]:
    found = client.execute_command(
        "ZRANGE", names.timeout_set, start, start + _BATCH - 1, "WITHSCORES", **{NEVER_DECODE: True}
    )
    return [entry_of(raw, score) for raw, score in pairs(found)]


def _put_back(client: redis.Redis, names: keys.QueueKeys, entries: Sequence[Entry], replies: Sequence[Any]) -> None:
    """Undo what a transaction removed without replacing it: Redis goes on after a command that failed."""
    refused = None
    with client.pipeline(transaction=True) as pipe:
        for entry, published, _, listed in zip(entries, replies[::3], replies[1::3], replies[2::3], strict=True):
            if isinstance(published, redis.RedisError):
                refused = published
                pipe.zadd(names.timeout_set, {entry.raw: entry.due_ms})
                if listed == 1:
                    pipe.rpush(names.delay_list, entry.raw)
        if refused is not None:
            pipe.execute()
            raise refused


def _due_ms(found: list[Any]) -> int | None:
    last = found[-1] if found else b""
    return score_to_ms(last[1] if isinstance(last, list | tuple) else last)


def _text(key: bytes | str) -> str | None:
    try:
        return key.decode() if isinstance(key, bytes) else key
    except UnicodeDecodeError:
        return None

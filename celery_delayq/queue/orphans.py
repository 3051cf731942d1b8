"""Orphans: delayed queues that Java applications left behind, and ways to take them over. Knows only Redis.

An orphan is a timeout set whose broker list is not registered. There are two ways to take it over:

- `Orphan.adopt` registers its list. From then on, transfer loops move each entry there when it is due. One command.
- `Orphan.hand_over` replaces each entry, for example by a Celery task, and then removes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import redis
from redis.client import NEVER_DECODE

from celery_delayq.queue import keys
from celery_delayq.queue.connections import CONNECTION_ERRORS, is_cluster, servers_of
from celery_delayq.queue.delayed_queue import DelayedQueue
from celery_delayq.queue.entry import Entry, entry_of, pairs
from celery_delayq.queue.registry import name_of, registered
from celery_delayq.queue.scripts import score_to_ms

#: Number of entries that are read at a time.
_BATCH = 100

#: Number of entries that are handed over at a time: the server remembers so many publications of one publisher, see
#: `lua/lib/once.lua`.
_HANDED_OVER = 16

#: Number of keys that one SCAN examines.
_SCAN = 1000

#: Returns the Redis command that writes the replacement of an entry, or None to leave the entry where it is.
Replace = Callable[[Entry], tuple[Any, ...] | None]


@dataclass(frozen=True)
class HandedOver:
    """Result of one batch of `hand_over`.

    Attributes:
        moved: number of entries that were replaced.
        left: number of entries that stay, because `replace` returned None or because they are corrupt.
    """

    moved: int
    left: int


@dataclass(frozen=True)
class Orphan:
    """A delayed queue that no process of this package transfers.

    Attributes:
        name: the destination broker list of its entries.
        waiting: number of waiting entries, including due ones.
        first_due_ms: when the earliest entry is due, unix time in ms; None if never.
        last_due_ms: when the latest entry is due, unix time in ms; None if never.
        listeners: number of subscribers of its channel. A running Java application is one, and transfers the queue.
    """

    name: str
    waiting: int
    first_due_ms: int | None
    last_due_ms: int | None
    listeners: int

    @classmethod
    def look(cls, client: redis.Redis, name: str) -> Orphan:
        """Return the present state of a list's delayed queue. Not atomic."""
        names = keys.QueueKeys.of(name)
        with client.pipeline(transaction=False) as pipe:
            pipe.zcard(names.timeout_set)
            pipe.execute_command("ZRANGE", names.timeout_set, 0, 0, "WITHSCORES", **{NEVER_DECODE: True})
            pipe.execute_command("ZRANGE", names.timeout_set, -1, -1, "WITHSCORES", **{NEVER_DECODE: True})
            waiting, first, last = pipe.execute()
        return cls(name, waiting, _due_ms(first), _due_ms(last), _listeners(client, names.channel))

    def adopt(self, client: redis.Redis, keyprefix: str = "") -> None:
        """Let transfer loops move the entries to their list when they are due. Atomic. No entry is changed."""
        DelayedQueue(client, self.name, keyprefix=keyprefix).register(again=True)

    def entries(self, client: redis.Redis) -> Iterator[Entry | None]:
        """Yield all entries in due order, without changing them; None for a corrupt entry."""
        start = 0
        while page := _page(client, keys.QueueKeys.of(self.name), start, _BATCH):
            yield from page
            start += len(page)

    def hand_over(self, client: redis.Redis, replace: Replace) -> Iterator[HandedOver]:
        """Replace each entry, in due order, 16 at a time: first write the replacements, then remove the entries.

        No entry is lost. If the process or the connection ends in between, up to 16 entries are replaced again next
        time, unless the commands have an `Attempt`. An entry that somebody else takes just then is replaced, too.

        Args:
            client: any `redis.Redis`.
            replace: returns the command for an entry.

        Yields:
            The result of each batch.

        Raises:
            redis.ResponseError: the server refused a command of `replace`. Its entry is still there.
        """
        queue = DelayedQueue(client, self.name)
        left = 0
        while page := _page(client, queue.keys, left, _HANDED_OVER):
            commands = [(entry, replace(entry)) for entry in page if entry is not None]
            chosen = [(entry, command) for entry, command in commands if command is not None]
            with client.pipeline(transaction=False) as pipe:
                for _, command in chosen:
                    pipe.execute_command(*command)
                replies = pipe.execute(raise_on_error=False)
            errors = [reply for reply in replies if isinstance(reply, Exception)]
            done = zip(chosen, replies, strict=True)
            queue.remove([entry for (entry, _), reply in done if not isinstance(reply, Exception)])
            if errors:
                raise errors[0]
            left += len(page) - len(chosen)
            yield HandedOver(len(chosen), len(page) - len(chosen))


def find(client: redis.Redis, keyprefix: str = "") -> list[Orphan]:
    """Return all orphans of a database, sorted by name. Scans all keys, in steps that do not block the server.

    Args:
        client: any `redis.Redis`.
        keyprefix: kombu's `global_keyprefix`, the prefix of the registry.
    """
    known = registered(client, keyprefix)
    found = client.scan_iter(match=f"{keys.TIMEOUT_SET}:*", count=_SCAN, _type="ZSET")
    names = {keys.list_of(keys.TIMEOUT_SET, name_of(key)) for key in found}
    return [Orphan.look(client, name) for name in sorted(filter(None, names - known))]


def _listeners(client: redis.Redis, channel: str) -> int:
    """Count the subscribers of a channel, at each node of a cluster; one that is away counts as having none.

    Redisson subscribes at the node of the channel's slot, and follows some seconds after the slot has moved.
    """
    count = 0
    for server in servers_of(client):
        try:
            ((_, here),) = server.pubsub_numsub(channel)
        except CONNECTION_ERRORS:
            if not is_cluster(client):
                raise
        else:
            count += int(here)
    return count


def _page(client: redis.Redis, names: keys.QueueKeys, start: int, count: int) -> list[Entry | None]:
    found: Any = client.execute_command(
        "ZRANGE", names.timeout_set, start, start + count - 1, "WITHSCORES", **{NEVER_DECODE: True}
    )
    return [entry_of(raw, score) for raw, score in pairs(found)]


def _due_ms(found: list[Any]) -> int | None:
    last = found[-1] if found else b""
    return score_to_ms(last[1] if isinstance(last, list | tuple) else last)

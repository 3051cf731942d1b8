"""Others: what a watchdog reads of the other consumers of its consumer's lists."""

from __future__ import annotations

import math
from logging import getLogger
from typing import Any

import redis
from redis import exceptions
from redis.client import NEVER_DECODE

from celery_delayq.fetching.lease import Leases
from celery_delayq.fetching.process import is_consumer
from celery_delayq.queue import keys
from celery_delayq.queue.connections import (
    CONNECTION_ERRORS,
    hurried,
    is_cluster,
    is_elsewhere,
    passing_refusal,
    servers_of,
)

logger = getLogger(__name__)

#: The most consumers of one list that are read.
_MOST_STRANGERS = 1000

#: How often to look for in-flight lists, in seconds, and at how many keys.
_SCAN_S, _SCAN_KEYS = 30.0, 1000


class Others:
    """They belong to the thread of the watchdog.

    Args:
        leases: those of the consumer.

    Every method raises `redis.ConnectionError` if the server is away.
    """

    def __init__(self, leases: Leases) -> None:
        self._own = leases
        #: Lists whose leases were read since it connected.
        self._read: set[str] = set()
        #: When to look for in-flight lists next, and from where on.
        self._scan_at, self._cursor = -math.inf, 0

    def forget(self) -> None:
        """Read all again: there was an outage."""
        self._read.clear()

    @property
    def are_unread(self) -> bool:
        """Whether the consumer has joined a list since the last look."""
        return bool(self._own.lists.keys() - self._read)

    def strangers(self, client: redis.Redis) -> set[str]:
        """Return the consumers with leases on lists that the own one has joined since the last look."""
        joined = self._own.lists.copy()
        unread = [joined[name].consumers for name in joined.keys() - self._read]
        replies = self.ask(
            client, [("ZRANGEBYSCORE", key, "(0", "+inf", "LIMIT", 0, _MOST_STRANGERS) for key in unread]
        )
        self._read = set(joined)
        if unread:  # consumers that nobody knows there may have messages, see `left_behind`
            self._scan_at = -math.inf
        return {other.decode("utf-8", "replace") for known in replies for other in known or ()}

    def left_behind(self, client: redis.Redis, now: float) -> set[str]:
        """Return the consumers of some in-flight lists, whether or not they are known there."""
        if now < self._scan_at:
            return set()
        self._scan_at = now + _SCAN_S
        scan = ("SCAN", self._cursor, "MATCH", f"{keys.IN_FLIGHT}:*", "COUNT", _SCAN_KEYS)
        try:
            self._cursor, found = client.execute_command(*scan, **{NEVER_DECODE: True})
        except exceptions.ResponseError as exc:
            logger.debug("Cannot look for in-flight lists: %s", exc)
            return set()
        names = [key.decode("utf-8", "replace") for key in found]
        firsts = [queue_keys.in_flight("") for queue_keys in self._own.lists.copy().values()]
        others = {name.removeprefix(first) for name in names for first in firsts if name.startswith(first)}
        return {other for other in others if is_consumer(other)}

    def leases(self, client: redis.Redis, others: set[str]) -> dict[str, dict[str, bytes]]:
        """Return the leases of other consumers on the lists of the own one: consumer -> list -> score.

        The score is empty if a consumer has messages in flight, and is not known.
        """
        found: dict[str, dict[str, bytes]] = {}
        joined = list(self._own.lists.items())
        if not others or not joined:
            return found
        names = sorted(others)
        replies = self.ask(client, [("ZMSCORE", queue_keys.consumers, *names) for _, queue_keys in joined])
        unknown = []
        for (name, queue_keys), scores in zip(joined, replies, strict=True):
            for other, score in zip(names, scores or (), strict=scores is not None):
                if score is None:
                    unknown.append((name, queue_keys, other))
                elif float(score) > 0:
                    found.setdefault(other, {})[name] = _stored(score)
        lengths = self.ask(client, [("LLEN", queue_keys.in_flight(other)) for _, queue_keys, other in unknown])
        for (name, _, other), length in zip(unknown, lengths, strict=True):
            if length:
                found.setdefault(other, {})[name] = b""
        return found

    def is_subscribed(self, client: redis.Redis, channel: str) -> bool:
        """Return whether a consumer has its channel. One that is done has none, although its process goes on.

        A failover may bring back what it had acknowledged. In a cluster it has its channel at another node than its
        list whose slot has moved. It may have it at a node that is away.
        """
        try:
            return any(int(server.pubsub_numsub(channel)[0][1]) for server in servers_of(hurried(client)))
        except exceptions.ResponseError as exc:
            if passing_refusal(exc):
                raise
            return False
        except CONNECTION_ERRORS:
            if not is_cluster(client):
                raise
            return True

    def ask(self, client: redis.Redis, commands: list[tuple[Any, ...]]) -> list[Any]:
        """Send commands with one key each in one round trip. The reply is None if the server refuses a command.

        The same if the key is elsewhere, and that node is away.

        Raises:
            redis.ConnectionError: the own server is away.
        """
        if not commands:
            return []
        elsewhere = [is_elsewhere(client, command[1]) for command in commands]
        with client.pipeline(transaction=False) as pipe:
            for command in commands:
                pipe.execute_command(*command, **{NEVER_DECODE: True})
            replies = pipe.execute(raise_on_error=False)
        for reply, is_there in zip(replies, elsewhere, strict=True):
            if isinstance(reply, CONNECTION_ERRORS) and not is_there:
                raise reply
        return [None if isinstance(reply, Exception) else reply for reply in replies]


def _stored(score: Any) -> bytes:
    """Return a score as Lua sees it; redis-py may have converted it to a float."""
    return score if isinstance(score, bytes) else b"%d" % score

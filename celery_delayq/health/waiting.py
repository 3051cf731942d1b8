"""What waits at a server, who transfers and who consumes it: read once, in two round trips, for several checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from redis.crc import key_slot
from redis.exceptions import AskError, MovedError, TryAgainError

from celery_delayq.basics.times import AFTER_9999_MS
from celery_delayq.health.servers import Server
from celery_delayq.inspector.broker_lists import BrokerList
from celery_delayq.queue.keys import QueueKeys, registry
from celery_delayq.queue.redirection import understood
from celery_delayq.queue.scripts import score_to_ms


@dataclass
class Waiting:
    """What waits at a server.

    Attributes:
        loops: how many transfer loops hear of new queues at this server; None if that cannot be told.
        untransferred: queues in which messages wait, and to whose lists nobody is subscribed.
        has_messages: whether any message waits.
        ready: queue -> number of messages that are ready, if there are any.
        consumed: queues with ready messages that somebody consumes, or may consume.
        dead: queue -> number of dead letters, if there are any.
        never: timeout set -> number of entries that are due after the year 9999, or never.
        overdue: queue -> number of overdue messages, and age of the oldest, in seconds.
        refused: queue -> why it could not be read.
        uncounted: queue -> why its ready messages or its dead letters could not be counted.
    """

    loops: int | None = None
    untransferred: set[str] = field(default_factory=set)
    has_messages: bool = False
    ready: Counter[str] = field(default_factory=Counter)
    consumed: set[str] = field(default_factory=set)
    dead: Counter[str] = field(default_factory=Counter)
    never: Counter[str] = field(default_factory=Counter)
    overdue: dict[str, tuple[int, float]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    uncounted: dict[str, str] = field(default_factory=dict)


def read_waiting(server: Server, lists: Sequence[BrokerList], keyprefix: str, db: int) -> Waiting:
    """Return what waits at a server.

    Args:
        server: the server.
        lists: all broker lists; those of other servers are left out.
        keyprefix: kombu's `global_keyprefix`.
        db: number of the database.

    Raises:
        redis.ConnectionError, redis.TimeoutError: the server is away.
    """
    here = [(found, QueueKeys.of(found.name, db)) for found in lists if server.serves(found.name)]
    waiting = Waiting()
    seconds, microseconds = server.client.time()
    now_ms = int(seconds) * 1000 + int(microseconds) // 1000
    loops, *replies = _ask(server, here, keyprefix, now_ms)
    waiting.loops = None if isinstance(loops, Exception) else int(loops[0][1])
    for number, (found, keys) in enumerate(here):
        head, overdue, never, subscribed, ready, dead, consumers = replies[number * 7 : number * 7 + 7]
        for counter, count in ((waiting.ready, ready), (waiting.dead, dead)):
            if isinstance(count, Exception):
                waiting.uncounted[found.queue] = _why(count, keys)
            elif count:
                counter[found.queue] += count
        if ready and consumers:
            waiting.consumed.add(found.queue)
        if refusal := next((reply for reply in (head, overdue) if isinstance(reply, Exception)), None):
            waiting.refused[found.queue] = _why(refusal, keys)
            continue
        if not head:
            continue
        waiting.has_messages = True
        if never and not isinstance(never, Exception):
            waiting.never[keys.timeout_set] = never
        if not isinstance(subscribed, Exception) and not int(subscribed[0][1]):
            waiting.untransferred.add(found.queue)
        due_ms = score_to_ms(head[0][1])
        if overdue and due_ms is not None:
            count, age_s = waiting.overdue.get(found.queue, (0, 0.0))
            waiting.overdue[found.queue] = count + overdue, max(age_s, (now_ms - due_ms) / 1000)
    return waiting


def _ask(server: Server, here: Sequence[tuple[BrokerList, QueueKeys]], keyprefix: str, now_ms: int) -> list[Any]:
    """Return the subscribers of the registry, and seven replies for each list."""
    with server.client.pipeline(transaction=False) as pipe:
        pipe.pubsub_numsub(registry(keyprefix))
        for _, keys in here:
            pipe.zrange(keys.timeout_set, 0, 0, withscores=True)
            pipe.zcount(keys.timeout_set, "-inf", now_ms)
            pipe.zcount(keys.timeout_set, AFTER_9999_MS, "+inf")
            pipe.pubsub_numsub(keys.transferrer_channel)
            pipe.llen(keys.queue)
            pipe.zcard(keys.dead)
            pipe.zcount(keys.consumers, f"({now_ms}", "+inf")
        return list(pipe.execute(raise_on_error=False))


def _why(refusal: Exception, keys: QueueKeys) -> str:
    """Return why a queue could not be read. On a cluster, part of its slot may be at another node."""
    error = understood(refusal)
    if isinstance(error, (AskError, TryAgainError)) and not isinstance(error, MovedError):
        slot = key_slot(keys.timeout_set.encode())
        return f"its slot {slot} moves to another node. If it stays half moved, run redis-cli --cluster fix HOST:PORT"
    return str(refusal)

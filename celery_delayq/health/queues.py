"""Whether due messages are moved in time, and ready ones consumed; and whether messages were set aside.

What the checks need of a server is read once, in two round trips.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from redis.crc import key_slot
from redis.exceptions import AskError, MovedError, TryAgainError

from celery_delayq.basics.finding import Finding, error, not_checked, ok, warning
from celery_delayq.basics.text import plural
from celery_delayq.basics.times import AFTER_9999_MS
from celery_delayq.health.servers import Server
from celery_delayq.inspector.broker_lists import BrokerList
from celery_delayq.queue.keys import QueueKeys, paused_key, registry
from celery_delayq.queue.paused import paused
from celery_delayq.queue.redirection import understood
from celery_delayq.queue.scripts import score_to_ms

_START = "Start a worker: `celery -A ... worker`; or only the transfer: `celery -A ... delayq transfer`."

#: They are what runs before the first worker of this package starts.
_STOCK = "Stock workers (redis://) do not move delayed messages."

#: In seconds. Above `LATE_S` a message is late: a loop that lost a notification is late by `delayq_transfer_interval`,
#: which is 5 s, at most. Above `BROKEN_S` no transfer loop works.
LATE_S, BROKEN_S = 10.0, 60.0


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


def check_transfer(waiting: Waiting) -> Iterator[Finding]:
    """Yield whether a transfer loop is there, and serves all queues in which messages wait.

    Subscriptions tell: a loop has them even if it has nothing to do.
    """
    if waiting.loops is None:
        yield not_checked("the user may not call PUBSUB NUMSUB")
    elif not waiting.loops:
        message = "No process moves due messages to their queues: no transfer loop is subscribed."
        yield (error if waiting.has_messages else warning)(message, f"{_START} {_STOCK}")
    elif waiting.untransferred:
        names = ", ".join(map(repr, sorted(waiting.untransferred)))
        yield error(
            f"No process moves the due messages of {names}: all transfer loops that are subscribed belong to other "
            "databases.",
            _START,
        )
    else:
        yield ok(f"{plural(waiting.loops, 'transfer loop is', 'transfer loops are')} subscribed.")


def check_overdue(waiting: Waiting, *, most_s: float | None = None) -> Iterator[Finding]:
    """Yield how old overdue messages are.

    Args:
        waiting: what waits.
        most_s: the age in seconds from which on it is an error; by default `BROKEN_S`. If it is given, nothing is a
            warning.
    """
    late_s, broken_s = (LATE_S, BROKEN_S) if most_s is None else (most_s, most_s)
    late = {queue: found for queue, found in sorted(waiting.overdue.items()) if found[1] > late_s}
    for queue, (count, age_s) in late.items():
        yield (error if age_s > broken_s else warning)(
            f"{plural(count, 'message is', 'messages are')} overdue in queue {queue!r}, the oldest for {age_s:,.0f} s.",
            "Check that a worker or `celery -A ... delayq transfer` runs, and read its log.",
        )
    for queue, why in sorted(waiting.refused.items()):
        if most_s is None:
            yield not_checked(f"queue {queue!r}: {why}")
        else:
            yield error(f"Cannot check queue {queue!r}: {why.rstrip('.')}.")
    if not (late or waiting.refused):
        yield ok(f"No message is overdue by more than {late_s:g} s.")


def check_paused(server: Server, *, keyprefix: str) -> Iterator[Finding]:
    """Yield the paused queues."""
    if server.serves(paused_key(keyprefix)):
        for queue in sorted(paused(server.client, keyprefix)):
            yield warning(
                f"Queue {queue!r} is paused: workers fetch nothing from it.",
                f"To resume it: `celery -A ... delayq resume {queue}`.",
            )


def check_queues(waiting: Waiting) -> Iterator[Finding]:
    """Yield the queues with ready messages that nobody consumes, dead letters, and entries that are never due."""
    unconsumed = {queue: count for queue, count in waiting.ready.items() if queue not in waiting.consumed}
    for queue, count in sorted(unconsumed.items()):
        yield warning(
            f"{plural(count, 'message is', 'messages are')} ready in queue {queue!r}, but no worker consumes it.",
            f"Start a worker for it: `celery -A ... worker -Q {queue}`. Stock workers (redis://) are not seen.",
        )
    for queue, count in sorted(waiting.dead.items()):
        yield warning(
            f"There {'is' if count == 1 else 'are'} {plural(count, 'dead letter')} in queue {queue!r}.",
            "`celery -A ... delayq dead list` shows why; `dead requeue` and `dead purge` remove them.",
        )
    for key, count in sorted(waiting.never.items()):
        entries = plural(count, "entry is", "entries are")
        yield warning(
            f"{entries} due after the year 9999, or never: another program wrote them to {key!r}.",
            f"To remove them: `ZREMRANGEBYSCORE {key} {AFTER_9999_MS} +inf`.",
        )
    for queue, why in sorted(waiting.uncounted.items()):
        yield not_checked(f"queue {queue!r}: {why}")
    if not (unconsumed or waiting.dead or waiting.never or waiting.uncounted):
        yield ok("Each queue with ready messages has a consumer, and there are no dead letters.")


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

"""History: how many messages were transferred in the last hours or days, and how late.

Workers keep sums for this; see `count.lua`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from celery_delayq.inspector.away import execute
from celery_delayq.inspector.broker_lists import BrokerLists
from celery_delayq.metrics.histograms import quantile, read_buckets
from celery_delayq.metrics.recorder import TRANSFER_LATENESS, TRANSFERRED
from celery_delayq.queue.keys import QueueKeys
from celery_delayq.queue.measuring import HISTORY

#: Hours that a history has -> the seconds over which its sums are, and the seconds of a point.
_SPANS = {8: (60, 300), 72: (600, 3600)}

#: How long after a point somebody may still add to it, in ms: clocks of a cluster's nodes differ a little.
_SETTLED_MS = 60_000


@dataclass(frozen=True)
class Point:
    """What happened from `start_ms` (included) to `end_ms` (excluded), both unix time in ms.

    Attributes:
        start_ms: a full five minutes, or a full hour.
        end_ms: the next one; in the future for the last point.
        transferred: number of messages that were moved to their queues.
        p50_s: half of them were at most so many seconds late; None if there were none.
        p95_s: the same for 95 % of them.
    """

    start_ms: int
    end_ms: int
    transferred: int
    p50_s: float | None
    p95_s: float | None


@dataclass(frozen=True)
class History:
    """What happened in the last hours.

    Attributes:
        at_ms: when it was read, unix time in ms by the server's clock.
        points: the oldest first; the last one is not over yet.
    """

    at_ms: int
    points: tuple[Point, ...]


def read(lists: BrokerLists, hours: int, *, queue: str | None = None, known: History | None = None) -> History:
    """Return the history of all queues together, or of one.

    One pipeline, with a command for each ten minutes (or two hours) and queue. On a cluster, queues are left out whose
    nodes are away. Workers add what they have counted every ten seconds, so the last point grows late.

    Args:
        lists: the broker lists.
        hours: 8, in 96 points of five minutes; or 72, in 72 points of an hour.
        queue: name of the queue; by default, all.
        known: what was read before with the same arguments: only what may have changed since is read again.

    Raises:
        redis.RedisError: the server is away, or refuses a command.
        ValueError: `hours` is neither 8 nor 72.
    """
    if type(hours) is not int or hours not in _SPANS:
        raise ValueError(f"hours must be {' or '.join(map(str, _SPANS))}, not {hours!r}")
    step_s, point_s = _SPANS[hours]
    now_ms = lists.now_ms()
    now_s = now_ms // 1000
    last_s = now_s - now_s % point_s
    starts = range(last_s - hours * 3600 + point_s, last_s + 1, point_s)
    # Workers add to the minute in which they do so: nobody adds any more to a point that is over.
    settled = () if known is None else (one for one in known.points if one.end_ms <= known.at_ms - _SETTLED_MS)
    over = {one.start_ms // 1000: one for one in settled}
    first_s = next((start_s for start_s in starts if start_s not in over), starts[-1])
    sums = _sums(lists, queue, step_s, first_s, now_s, point_s)
    return History(now_ms, tuple(over.get(start_s) or _point(start_s, point_s, sums[start_s]) for start_s in starts))


def _point(start_s: int, point_s: int, numbers: Counter[str]) -> Point:
    buckets = [number for _, number in read_buckets(TRANSFER_LATENESS, numbers)]
    return Point(
        start_ms=start_s * 1000,
        end_ms=(start_s + point_s) * 1000,
        transferred=numbers[TRANSFERRED],
        p50_s=quantile(0.5, buckets),
        p95_s=quantile(0.95, buckets),
    )


def _sums(
    lists: BrokerLists, queue: str | None, step_s: int, first_s: int, now_s: int, point_s: int
) -> defaultdict[int, Counter[str]]:
    """Return, for each point by its start, what was counted -> how often."""
    _, block_s = HISTORY[step_s]
    with lists.asking.pipeline(transaction=False) as pipe:
        for name in _first_lists(lists, queue):
            keys = QueueKeys.of(name)
            for since_s in range(first_s - first_s % block_s, now_s + 1, block_s):
                pipe.hgetall(keys.history(step_s, since_s))
        replies = execute(lists.asking, pipe)
    sums: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for reply in replies:
        if isinstance(reply, Exception):
            continue
        for field, number in reply.items():
            when, _, what = field.decode(errors="replace").partition(":")
            if what.startswith(_READ) and when.isascii() and when.isdigit() and number.lstrip(b"-").isdigit():
                sums[int(when) - int(when) % point_s][what] += int(number)
    return sums


#: How the names of what is read begin.
_READ = (TRANSFERRED, TRANSFER_LATENESS)


def _first_lists(lists: BrokerLists, queue: str | None) -> list[str]:
    """Return the lists with which the sums are: of the known queues, and of those for which something was counted."""
    if queue is not None:
        return [lists.channel.first_list(lists.channel.broker_lists(queue)[0])]
    known, _ = lists.known(also_counted=True)
    return sorted({lists.channel.first_list(one.name) for one in known})

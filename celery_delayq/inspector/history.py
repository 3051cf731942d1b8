"""History: how many messages were transferred in the last hours or days, and how late.

Workers keep sums for this; see `count.lua`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from celery_delayq.basics.times import to_datetime
from celery_delayq.inspector.away import execute
from celery_delayq.inspector.broker_lists import BrokerLists
from celery_delayq.queue.histograms import TRANSFER_LATENESS, TRANSFERRED, quantile, read_buckets
from celery_delayq.queue.keys import QueueKeys
from celery_delayq.queue.measuring import HISTORY

#: Hours that a history has -> the seconds over which its sums are, and the seconds of a point.
_SPANS = {8: (60, 300), 72: (600, 3600)}

#: How long after a point somebody may still add to it: clocks of a cluster's nodes differ a little.
_SETTLED = timedelta(minutes=1)


@dataclass(frozen=True)
class Point:
    """What happened from `start` (included) to `end` (excluded).

    Attributes:
        start: a full five minutes, or a full hour: aware, in UTC.
        end: the next one; in the future for the last point.
        transferred: number of messages that were moved to their queues.
        p50_s: half of them were at most so many seconds late; None if there were none.
        p95_s: the same for 95 % of them.
    """

    start: datetime
    end: datetime
    transferred: int
    p50_s: float | None
    p95_s: float | None


@dataclass(frozen=True)
class History:
    """What happened in the last hours.

    Attributes:
        at: when it was read, by the server's clock: aware, in UTC.
        points: the oldest first; the last one is not over yet.
    """

    at: datetime
    points: tuple[Point, ...] = field(repr=False)


def read(lists: BrokerLists, hours: float, *, queue: str | None = None, known: History | None = None) -> History:
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
    if hours not in _SPANS:
        raise ValueError(f"a history has {' or '.join(map(str, _SPANS))} hours, not {hours:g}")
    hours = int(hours)
    step_s, point_s = _SPANS[hours]
    now_ms = lists.now_ms()
    now_s = now_ms // 1000
    last_s = now_s - now_s % point_s
    starts = range(last_s - hours * 3600 + point_s, last_s + 1, point_s)
    # Workers add to the minute in which they do so: nobody adds any more to a point that is over.
    settled = () if known is None else (one for one in known.points if one.end <= known.at - _SETTLED)
    over = {int(one.start.timestamp()): one for one in settled}
    first_s = next((start_s for start_s in starts if start_s not in over), starts[-1])
    sums = _sums(lists, queue, step_s, first_s, now_s, point_s)
    points = (over.get(start_s) or _point(start_s, point_s, sums[start_s]) for start_s in starts)
    return History(to_datetime(now_ms), tuple(points))


def _point(start_s: int, point_s: int, numbers: Counter[str]) -> Point:
    buckets = [number for _, number in read_buckets(TRANSFER_LATENESS, numbers)]
    return Point(
        start=to_datetime(start_s * 1000),
        end=to_datetime((start_s + point_s) * 1000),
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
        for name, number in reply.items():
            when, _, what = name.decode(errors="replace").partition(":")
            if what.startswith(_READ) and when.isascii() and when.isdigit() and number.lstrip(b"-").isdigit():
                sums[int(when) - int(when) % point_s][what] += int(number)
    return sums


#: How the names of what is read begin.
_READ = (TRANSFERRED, TRANSFER_LATENESS)


def _first_lists(lists: BrokerLists, queue: str | None) -> list[str]:
    """Return the lists with which the sums are: of the known queues, and of those for which something was counted."""
    known, _ = lists.known(*(() if queue is None else (queue,)), also_counted=True)
    return sorted({lists.channel.first_list(one.name) for one in known})

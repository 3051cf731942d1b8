"""Histograms: how many waiting tasks are due when."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise

from celery_delayq.basics.times import Span, span_s, to_datetime
from celery_delayq.inspector.away import Lost
from celery_delayq.inspector.broker_lists import BrokerList, BrokerLists
from celery_delayq.queue.call import run_each
from celery_delayq.queue.measuring import spread

#: Maximum number of buckets in a histogram.
MAX_BUCKETS = 1000

#: A thousand years.
_LONGEST_SPAN_S = 31_557_600_000

#: No histogram starts later, unix time in ms: the year 10000. All numbers of a histogram are exact as scores then.
_LATEST_START_MS = 253_402_300_800_000


@dataclass(frozen=True)
class Bucket:
    """How many tasks are due in a part of the window.

    Attributes:
        start: when it starts, included: aware, in UTC.
        end: when it ends, excluded: aware, in UTC.
        count: number of tasks.
    """

    start: datetime
    end: datetime
    count: int


@dataclass(frozen=True)
class Histogram:
    """When the waiting tasks of all queues, or of one, are due.

    Attributes:
        at: time of the count, by the server's clock: aware, in UTC.
        buckets: due times within the window.
        before: number of tasks due before the window.
        after: number of tasks due after it.
        lost: queues that are not counted because nodes of a cluster are away.
    """

    at: datetime
    buckets: tuple[Bucket, ...] = field(repr=False)
    before: int
    after: int
    lost: Lost = field(default_factory=Lost)


def histogram(
    lists: BrokerLists, start_ms: int, span: Span, buckets: int, *, queue: str | None = None, partial: bool = False
) -> Histogram:
    """Count due times in a window; see `DelayQ.histogram`. A script for each list in which something waits."""
    if type(start_ms) is not int:
        raise TypeError(f"start_ms must be a whole number, not {start_ms!r}")
    if not 0 <= start_ms < _LATEST_START_MS:
        raise ValueError(f"start_ms must be a time from 1970 to 9999 in ms, not {start_ms!r}")
    if queue is not None and not isinstance(queue, str):
        raise TypeError(f"queue must be a name as a str, not {queue!r}")
    edges = edges_of(start_ms, span, buckets)
    waiting, lost = lists.waiting(*(() if queue is None else (queue,)))
    now_ms = lists.now_ms()
    found, lost = lists.complete(ask_due(lists, list(waiting), edges), lost, partial=partial)
    before, after = (sum(numbers[at] for numbers in found.values()) for at in (0, -1))
    return Histogram(to_datetime(now_ms), buckets_of(edges, found.values()), before, after, lost)


def edges_of(start_ms: int, span: Span, buckets: int) -> list[int]:
    """Return where the buckets of a histogram start, and where the last one ends: unix time in ms.

    Raises:
        TypeError: `span` is neither a timedelta nor a number of seconds, or `buckets` is not a whole number.
        ValueError: one of them is out of range.
    """
    if type(buckets) is not int:
        raise TypeError(f"buckets must be a whole number, not {buckets!r}")
    if not 1 <= buckets <= MAX_BUCKETS:
        raise ValueError(f"buckets must be 1 to {MAX_BUCKETS}, not {buckets!r}")
    length_s = span_s(span, "span")
    if not 0 < length_s <= _LONGEST_SPAN_S:
        raise ValueError(f"span must be more than 0 and at most {_LONGEST_SPAN_S} seconds, not {span!r}")
    return [start_ms + round(number * length_s * 1000 / buckets) for number in range(buckets + 1)]


def ask_due(
    lists: BrokerLists, known: Sequence[BrokerList], edges: Sequence[int]
) -> dict[BrokerList, list[int] | Exception]:
    """Return for each list how many entries are due before the buckets, in each of them, and after; see `spread.lua`.

    Leave out lists in which nothing waits: the edges are sent once for each.

    It is the error of a list that cannot be read.
    """
    calls = [spread(lists.delayed_queue(broker_list).keys, edges_ms=edges) for broker_list in known]
    replies = run_each(lists.asking, calls)
    return {one: reply or [0] * (len(edges) + 1) for one, reply in zip(known, replies, strict=True)}


def buckets_of(edges: Sequence[int], due: Iterable[Sequence[int]]) -> tuple[Bucket, ...]:
    """Return the buckets; `due` is as of `ask_due`."""
    counts = [sum(numbers) for numbers in zip(*due, strict=True)] or [0] * (len(edges) + 1)
    times = pairwise(map(to_datetime, edges))
    return tuple(Bucket(*ends, number) for ends, number in zip(times, counts[1:-1], strict=True))

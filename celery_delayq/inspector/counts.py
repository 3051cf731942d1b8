"""Message counts per queue, and a histogram of the due times ahead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby

from redis.exceptions import ResponseError

from celery_delayq.basics.times import Span, to_datetime
from celery_delayq.inspector.away import Lost, is_away
from celery_delayq.inspector.broker_lists import BrokerLists
from celery_delayq.inspector.histogram import Bucket, ask_due, buckets_of, edges_of
from celery_delayq.queue.connections import CONNECTION_ERRORS
from celery_delayq.queue.measuring import Measured


@dataclass(frozen=True)
class QueueCounts:
    """Message counts of one queue, all priorities together.

    Attributes:
        queue: name of the queue.
        ready: messages on its broker lists.
        delayed: waiting messages, including overdue ones.
        overdue: messages that are due, but not yet moved to the broker list.
        in_flight: messages that workers have fetched and not acknowledged. Messages held by workers with kombu's own
            transport are not included, because its `unacked` does not tell queues apart.
        dead: dead letters.
        next_due: when the next message is due: aware, in UTC; None if none waits.
        punctual: ids of the loops that moved messages last, as `<host>:<process id>:<number>`; one per list in use.
        node: host and port of its node of a Redis Cluster; None with a single server.
        is_paused: whether workers fetch nothing from it, see `DelayQ.pause`. False if that is unknown: the node that
            knows is away, or the key is of another type.
        failed: failed tasks that are kept.
    """

    queue: str
    ready: int
    delayed: int
    overdue: int
    in_flight: int
    dead: int
    next_due: datetime | None
    punctual: tuple[str, ...]
    node: str | None = None
    is_paused: bool = False
    failed: int = 0


@dataclass(frozen=True)
class Counts:
    """Message counts of all queues.

    Attributes:
        at: time of the count, by the server's clock: aware, in UTC.
        queues: counts of each queue, sorted by name.
        histogram: due times, starting at `at`.
        lost: queues that are not counted because nodes of a cluster are away.
    """

    at: datetime
    queues: tuple[QueueCounts, ...]
    histogram: tuple[Bucket, ...] = field(repr=False)
    lost: Lost = field(default_factory=Lost)

    @property
    def next_due(self) -> datetime | None:
        """When the next message of all queues is due: aware, in UTC."""
        return min((queue.next_due for queue in self.queues if queue.next_due is not None), default=None)

    @property
    def later(self) -> int:
        """Number of messages due after the end of the histogram."""
        return sum(queue.delayed - queue.overdue for queue in self.queues) - sum(b.count for b in self.histogram)


def count(lists: BrokerLists, *, span: Span, buckets: int, partial: bool = False) -> Counts:
    """Count the messages of all lists; see `DelayQ.counts`. Three pipelines with calls of O(log N)."""
    edges_of(0, span, buckets)  # fails before anything is asked
    now_ms = lists.now_ms()
    edges = edges_of(now_ms + 1, span, buckets)
    known, lost = lists.of_all_priorities()
    known.sort(key=lambda broker_list: broker_list.queue)
    replies = lists.measure(known, now_ms)
    waiting = [one for one, reply in replies.items() if isinstance(reply, Measured) and reply.delayed]
    due = ask_due(lists, waiting, edges)
    replies |= {one: numbers for one, numbers in due.items() if isinstance(numbers, Exception)}
    found, lost = lists.complete(replies, lost, partial=partial)
    paused = _paused(lists)
    queues = [
        _summed(queue, lists.node_of(group[0]), [found[broker_list] for broker_list in group], queue in paused)
        for queue, group in ((queue, list(group)) for queue, group in groupby(found, key=lambda it: it.queue))
    ]
    spread = [numbers for one, numbers in due.items() if one in found and not isinstance(numbers, Exception)]
    return Counts(to_datetime(now_ms), tuple(queues), buckets_of(edges, spread), lost)


def _paused(lists: BrokerLists) -> frozenset[str]:
    try:
        return lists.paused()
    except (*CONNECTION_ERRORS, ResponseError) as exc:
        if isinstance(exc, CONNECTION_ERRORS) and not is_away(lists.client, exc):
            raise
        return frozenset()


def _summed(queue: str, node: str | None, found: Sequence[Measured], is_paused: bool) -> QueueCounts:
    head_due_ms = min((one.head_due_ms for one in found if one.head_due_ms is not None), default=None)
    return QueueCounts(
        queue,
        ready=sum(one.ready for one in found),
        delayed=sum(one.delayed for one in found),
        overdue=sum(one.overdue for one in found),
        in_flight=sum(sum(one.in_flight.values()) for one in found),
        dead=sum(one.dead for one in found),
        failed=sum(one.failed for one in found),
        next_due=None if head_due_ms is None else to_datetime(head_due_ms),
        punctual=tuple(sorted({one.punctual for one in found} - {""})),
        node=node,
        is_paused=is_paused,
    )

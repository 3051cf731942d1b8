"""Message counts per queue, and a histogram of the due times ahead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from typing import Any

from celery_delayq.inspector.away import Lost, LostQueue, execute
from celery_delayq.inspector.broker_lists import BrokerList, BrokerLists
from celery_delayq.inspector.histogram import Bucket, ask_due, buckets_of, edges_of
from celery_delayq.queue.scripts import score_to_ms
from celery_delayq.times import to_datetime


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
        next_due_ms: when the next message is due, unix time in ms; None if none waits.
        punctual: ids of the loops that moved messages last, as `<host>:<process id>:<number>`; one per list in use.
        node: host and port of its node of a Redis Cluster; None with a single server.
    """

    queue: str
    ready: int
    delayed: int
    overdue: int
    in_flight: int
    dead: int
    next_due_ms: int | None
    punctual: tuple[str, ...]
    node: str | None = None

    @property
    def next_due(self) -> datetime | None:
        """When the next message is due: aware, in UTC."""
        return None if self.next_due_ms is None else to_datetime(self.next_due_ms)


@dataclass(frozen=True)
class Counts:
    """Message counts of all queues.

    Attributes:
        at_ms: time of the count, unix time in ms by the server's clock.
        queues: counts of each queue, sorted by name.
        histogram: due times, starting at `at_ms`.
        lost: queues that are not counted because nodes of a cluster are away.
    """

    at_ms: int
    queues: tuple[QueueCounts, ...]
    histogram: tuple[Bucket, ...]
    lost: Lost = field(default_factory=Lost)

    @property
    def next_due(self) -> datetime | None:
        """When the next message of all queues is due: aware, in UTC."""
        return min((queue.next_due for queue in self.queues if queue.next_due is not None), default=None)

    @property
    def later(self) -> int:
        """Number of messages due after the end of the histogram."""
        return sum(queue.delayed - queue.overdue for queue in self.queues) - sum(b.count for b in self.histogram)


def count(lists: BrokerLists, *, span: float, buckets: int, partial: bool = False) -> Counts:
    """Count the messages of all lists; see `DelayQ.counts`. Three pipelines with commands of O(1) and O(log N).

    Raises:
        NodesAway: nodes of a cluster are away, and `partial` is False.
        TypeError: `span` is not a number, or `buckets` is not a whole number.
        ValueError: an argument is out of range.
    """
    edges_of(0, span, buckets)  # fails before anything is asked
    now_ms = lists.now_ms()
    edges = edges_of(now_ms + 1, span, buckets)
    known, lost = lists.known()
    known.sort(key=lambda broker_list: broker_list.queue)
    answers, losses = _ask(lists, known, now_ms, edges)
    lost |= Lost(tuple(losses))
    if not partial:
        lost.check()
    without = {away.queue for away in lost.queues}
    found = [broker_list for broker_list in known if broker_list.queue not in without]
    queues = [
        _summed(queue, lists.node_of(group[0]), [answers[broker_list.name] for broker_list in group])
        for queue, group in ((queue, list(group)) for queue, group in groupby(found, key=lambda it: it.queue))
    ]
    histogram = buckets_of(edges, (answers[broker_list.name].due for broker_list in found))
    return Counts(now_ms, tuple(queues), histogram, lost)


@dataclass
class _Answer:
    """The counts of one broker list."""

    numbers: list[int]
    next_due_ms: int | None
    punctual: str
    due: list[int]


def _ask(
    lists: BrokerLists, found: Sequence[BrokerList], now_ms: int, edges: Sequence[int]
) -> tuple[dict[str, _Answer], list[LostQueue]]:
    """Return the counts of the lists by name, and the queues of lists whose nodes are away."""
    with lists.asking.pipeline(transaction=False) as pipe:
        for broker_list in found:
            keys = lists.delayed_queue(broker_list).keys
            pipe.llen(keys.queue)
            pipe.zcard(keys.timeout_set)
            pipe.zcount(keys.timeout_set, "-inf", now_ms)
            pipe.zcard(keys.dead)
            pipe.zrange(keys.timeout_set, 0, 0, withscores=True)
            pipe.get(keys.transferrer)
            pipe.zrange(keys.consumers, 0, -1)
        replies = iter(execute(lists.asking, pipe))
    asked = {broker_list: [next(replies) for _ in range(7)] for broker_list in found}
    due_of = ask_due(lists, [broker_list for broker_list, (_, delayed, *_) in asked.items() if delayed], edges)
    answers, holders, losses = {}, {}, []
    for broker_list, numbers in asked.items():
        due = due_of.get(broker_list, [0] * (len(edges) + 1))
        if errors := [reply for reply in numbers if isinstance(reply, Exception)]:
            losses.append(lists.lose(broker_list, errors[0]))
            continue
        if isinstance(due, Exception):
            losses.append(lists.lose(broker_list, due))
            continue
        ready, delayed, overdue, dead, head, punctual, consumers = numbers
        answers[broker_list.name] = _Answer(
            [ready, delayed, overdue, 0, dead],
            score_to_ms(head[0][1]) if head else None,
            (punctual or b"").decode(errors="replace").partition(":")[2],
            due,
        )
        holders[broker_list] = [consumer.decode(errors="surrogateescape") for consumer in consumers if consumer]
    for broker_list, number in _in_flight(lists, holders):
        if isinstance(number, Exception):
            losses.append(lists.lose(broker_list, number))
        else:
            answers[broker_list.name].numbers[3] += number
    return answers, losses


def _in_flight(
    lists: BrokerLists, holders: dict[BrokerList, list[str]]
) -> Iterator[tuple[BrokerList, int | Exception]]:
    with lists.asking.pipeline(transaction=False) as pipe:
        for broker_list, consumers in holders.items():
            for consumer in consumers:
                pipe.llen(lists.delayed_queue(broker_list).keys.in_flight(consumer))
        asked = [broker_list for broker_list, consumers in holders.items() for _ in consumers]
        yield from zip(asked, execute(lists.asking, pipe), strict=True)


def _summed(queue: str, node: str | None, answers: Sequence[_Answer]) -> QueueCounts:
    ready, delayed, overdue, in_flight, dead = (
        sum(numbers) for numbers in zip(*(a.numbers for a in answers), strict=True)
    )
    dues: list[Any] = [answer.next_due_ms for answer in answers if answer.next_due_ms is not None]
    punctual = sorted({answer.punctual for answer in answers} - {""})
    return QueueCounts(queue, ready, delayed, overdue, in_flight, dead, min(dues, default=None), tuple(punctual), node)

"""Consumers: the connections of workers that fetch messages, with their leases and what they hold."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from celery_delayq.fetching.process import process_of
from celery_delayq.inspector.away import Lost, execute
from celery_delayq.inspector.broker_lists import BrokerList, BrokerLists
from celery_delayq.queue.connections import as_text

#: The most consumers of a list that are read: those whose leases last longest.
MOST_OF_A_LIST = 1000


@dataclass(frozen=True)
class Lease:
    """The lease of a consumer on one broker list.

    Attributes:
        queue: name of the queue.
        broker_list: full name of the list.
        priority: priority step of the list.
        ends_ms: when the lease ends, or has ended, unix time in ms; or when the consumer was given up.
        is_lasting: whether it lasts. If it does not, others put back what the consumer holds.
        is_given_up: whether others have given the consumer up, and put back what it held.
        in_flight: number of messages that the consumer has fetched from the list and not acknowledged.
        is_punctual: whether a loop of the same process moved due messages to the list last.
    """

    queue: str
    broker_list: str
    priority: int
    ends_ms: int
    is_lasting: bool
    is_given_up: bool
    in_flight: int
    is_punctual: bool


@dataclass(frozen=True)
class Consumer:
    """A consumer: one connection of a worker, or of another program that fetches messages through kombu.

    Attributes:
        id: its id.
        host: name of its host; the id if it has another form.
        pid: id of its process; None if the id has another form.
        leases: one for each list that it consumes, in the order of queues and priorities.
    """

    id: str
    host: str
    pid: int | None
    leases: tuple[Lease, ...]

    @property
    def in_flight(self) -> int:
        """Number of messages that it has fetched and not acknowledged."""
        return sum(lease.in_flight for lease in self.leases)

    @property
    def queues(self) -> tuple[str, ...]:
        """Names of the queues that it consumes, sorted."""
        return tuple(sorted({lease.queue for lease in self.leases}))


@dataclass(frozen=True)
class Consumers:
    """All consumers.

    Attributes:
        at_ms: when they were read, unix time in ms by the server's clock.
        consumers: sorted by id.
        lost: queues whose leases are left out because nodes of a cluster are away.
    """

    at_ms: int
    consumers: tuple[Consumer, ...]
    lost: Lost = field(default_factory=Lost)


def consumers(lists: BrokerLists, *, partial: bool = False) -> Consumers:
    """Return all consumers; see `DelayQ.consumers`. Two pipelines with commands of O(1) and O(log N).

    Raises:
        NodesAway: nodes of a cluster are away, and `partial` is False.
    """
    known, lost = lists.known()
    now_ms = lists.now_ms()
    with lists.asking.pipeline(transaction=False) as pipe:
        for broker_list in known:
            keys = lists.delayed_queue(broker_list).keys
            pipe.get(keys.transferrer)
            pipe.zrange(keys.consumers, 0, MOST_OF_A_LIST - 1, desc=True, withscores=True)
        replies = iter(execute(lists.asking, pipe))
    found: list[tuple[BrokerList, str, float, tuple[str, int | None]]] = []
    for broker_list in known:
        transferrer, scores = next(replies), next(replies)
        if errors := [reply for reply in (transferrer, scores) if isinstance(reply, Exception)]:
            lost |= Lost((lists.lose(broker_list, errors[0]),))
            continue
        punctual = process_of((transferrer or b"").decode(errors="replace").partition(":")[2])
        found += [(broker_list, as_text(name), score, punctual) for name, score in scores if name]
    with lists.asking.pipeline(transaction=False) as pipe:
        for broker_list, consumer, _, _ in found:
            pipe.llen(lists.delayed_queue(broker_list).keys.in_flight(consumer))
        numbers = execute(lists.asking, pipe)
    leases: defaultdict[str, list[Lease]] = defaultdict(list)
    for (broker_list, consumer, score, punctual), number in zip(found, numbers, strict=True):
        if isinstance(number, Exception):
            lost |= Lost((lists.lose(broker_list, number),))
            continue
        is_punctual = punctual[1] is not None and process_of(consumer) == punctual
        leases[consumer].append(_lease(broker_list, score, now_ms, number, is_punctual))
    if not partial:
        lost.check()
    without = {away.queue for away in lost.queues}
    kept = {consumer: [lease for lease in leases[consumer] if lease.queue not in without] for consumer in leases}
    return Consumers(now_ms, tuple(_consumer(name, kept[name]) for name in sorted(kept) if kept[name]), lost)


def _lease(broker_list: BrokerList, score: float, now_ms: int, in_flight: int, is_punctual: bool) -> Lease:
    return Lease(
        queue=broker_list.queue,
        broker_list=broker_list.name,
        priority=broker_list.priority,
        ends_ms=round(abs(score)),
        is_lasting=score > now_ms,
        is_given_up=score <= 0,
        in_flight=in_flight,
        is_punctual=is_punctual,
    )


def _consumer(id: str, leases: list[Lease]) -> Consumer:
    return Consumer(id, *process_of(id), tuple(sorted(leases, key=lambda lease: (lease.queue, lease.priority))))

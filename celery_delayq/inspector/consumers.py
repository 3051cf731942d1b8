"""Consumers: the connections of workers that fetch messages, with their leases and what they hold."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime

from celery_delayq.basics.times import to_datetime
from celery_delayq.inspector.away import Lost
from celery_delayq.inspector.broker_lists import BrokerList, BrokerLists
from celery_delayq.queue.connections import process_of
from celery_delayq.queue.measuring import Measured


@dataclass(frozen=True)
class Lease:
    """The lease of a consumer on one broker list.

    Attributes:
        queue: name of the queue.
        broker_list: full name of the list.
        priority: priority step of the list.
        ends: when the lease ends, or has ended, or when the consumer was given up: aware, in UTC.
        is_lasting: whether it lasts. If it does not, others put back what the consumer holds.
        is_given_up: whether others have given the consumer up, and put back what it held.
        in_flight: number of messages that the consumer has fetched from the list and not acknowledged.
        is_punctual: whether a loop of the same process moved due messages to the list last.
    """

    queue: str
    broker_list: str
    priority: int
    ends: datetime
    is_lasting: bool
    is_given_up: bool
    in_flight: int
    is_punctual: bool


@dataclass(frozen=True)
class Consumer:
    """A consumer: one connection of a worker, or of another program that fetches messages through kombu.

    Attributes:
        id: its id.
        node: name of the worker as Celery has it, `celery@host`; of another program, the name of its host; the id if it
            has another form.
        pid: id of its process; None if the id has another form.
        leases: one for each list that it consumes, in the order of queues and priorities.
    """

    id: str
    node: str
    pid: int | None
    leases: tuple[Lease, ...]

    @property
    def host(self) -> str:
        """Name of its host, as its node says it."""
        return self.node.rpartition("@")[2]

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
        at: when they were read, by the server's clock: aware, in UTC.
        consumers: sorted by id.
        lost: queues whose leases are left out because nodes of a cluster are away.
    """

    at: datetime
    consumers: tuple[Consumer, ...]
    lost: Lost = field(default_factory=Lost)


def consumers(lists: BrokerLists, *, partial: bool = False) -> Consumers:
    """Return all consumers; see `DelayQ.consumers`. Two pipelines with calls of O(log N)."""
    known, lost = lists.known()
    now_ms = lists.now_ms()
    found, lost = lists.complete(lists.measure(known, now_ms), lost, partial=partial)
    leases: defaultdict[str, list[Lease]] = defaultdict(list)
    for broker_list in sorted(found, key=lambda it: (it.queue, it.priority)):
        for consumer in found[broker_list].leases:
            leases[consumer].append(_lease(broker_list, found[broker_list], consumer))
    made = (Consumer(name, *process_of(name), tuple(leases[name])) for name in sorted(leases))
    return Consumers(to_datetime(now_ms), tuple(made), lost)


def _lease(broker_list: BrokerList, found: Measured, consumer: str) -> Lease:
    ends_ms, punctual = found.leases[consumer], process_of(found.punctual)
    return Lease(
        queue=broker_list.queue,
        broker_list=broker_list.name,
        priority=broker_list.priority,
        ends=to_datetime(round(abs(ends_ms))),
        is_lasting=ends_ms > found.now_ms,
        is_given_up=ends_ms <= 0,
        in_flight=found.in_flight[consumer],
        is_punctual=punctual[1] is not None and process_of(consumer) == punctual,
    )

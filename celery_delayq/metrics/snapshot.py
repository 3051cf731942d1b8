"""Snapshot: all numbers of a broker at one moment, read by few commands that do not grow with the number of messages.

One pipeline has a script call for each broker list, which reads counts and totals. A second one has the lengths of the
lists of messages in flight. Periodic entries take some more round trips. On a cluster, a node that is away or hangs is
not waited for, and its queues are left out.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from logging import getLogger
from typing import Any

from redis import exceptions

from celery_delayq.inspector.broker_lists import BrokerList, BrokerLists
from celery_delayq.queue.connections import CONNECTION_ERRORS, LOST, as_text, hurried, is_cluster
from celery_delayq.queue.keys import counted
from celery_delayq.queue.registry import registered
from celery_delayq.queue.script import run_each
from celery_delayq.queue.scripts import Measured, measure
from celery_delayq.schedule.periodic_task import PeriodicTask, read_all
from celery_delayq.schedule.service import store_of
from celery_delayq.schedule.store import ScheduleStore

logger = getLogger(__name__)

#: Spans for which a snapshot has how many messages become due within, in seconds.
WITHIN_S = (60, 300, 3600)

#: The most periodic entries that a snapshot has. With more, it has none: nobody would look at so many lines.
MOST_ENTRIES = 5000


@dataclass
class Queue:
    """The numbers of one queue, all priorities together.

    Attributes:
        ready, delayed, overdue, in_flight, dead: messages, see `counts.QueueCounts`.
        oldest_overdue_s: how long the oldest overdue message has been due, in seconds; 0 if there is none.
        next_due_ms: when the next message is due, unix time in ms; None if none waits.
        due: for each span of `WITHIN_S`, how many messages become due within it, overdue ones included.
        lasting: consumers whose leases last.
        ended: number of leases that have ended, and whose messages nobody has recovered yet.
        punctual: ids of the loops that moved messages last.
        totals: what workers have counted so far; wrong if the queue is unreadable, since it may lack a part.
    """

    ready: int = 0
    delayed: int = 0
    overdue: int = 0
    in_flight: int = 0
    dead: int = 0
    oldest_overdue_s: float = 0.0
    next_due_ms: int | None = None
    due: Counter[int] = field(default_factory=Counter)
    lasting: set[str] = field(default_factory=set)
    ended: int = 0
    punctual: set[str] = field(default_factory=set)
    totals: Counter[str] = field(default_factory=Counter)

    def add(self, found: Measured) -> None:
        """Add the numbers of one of its lists."""
        self.ready += found.ready
        self.delayed += found.delayed
        self.overdue += found.overdue
        self.dead += found.dead
        self.due.update(dict(zip(WITHIN_S, found.due, strict=False)))  # there are none if nothing is there
        self.lasting.update(found.lasting)
        self.ended += len(found.ended)
        self.punctual.update({found.punctual} - {""})
        self.totals.update(found.totals)
        if found.head_due_ms is not None:
            known = found.head_due_ms if self.next_due_ms is None else self.next_due_ms
            self.next_due_ms = min(found.head_due_ms, known)
            self.oldest_overdue_s = max(self.oldest_overdue_s, (found.now_ms - found.head_due_ms) / 1000)


@dataclass(frozen=True)
class Snapshot:
    """All numbers.

    Attributes:
        queues: by name.
        unreadable: names of the queues of which the server refuses something; at least a part of their numbers is left
            out.
        nodes: on a cluster, for each node whether it answers.
        entries: periodic tasks.
        seconds: how long it took to read.
    """

    queues: dict[str, Queue]
    unreadable: set[str]
    nodes: dict[str, bool]
    entries: list[PeriodicTask]
    seconds: float


class Reader:
    """Reads snapshots over one channel, one at a time.

    Args:
        channel: a channel of our transport.
        queues: names of the app's queues.
    """

    def __init__(self, channel: Any, queues: Sequence[str] = ()) -> None:
        self._lists = BrokerLists(channel, queues)
        self._queues = tuple(queues)
        self._channel = channel
        self._client = hurried(self._lists.client)
        #: Names of lists, by where they were read.
        self._known: dict[str, set[Any]] = {}
        #: Errors that were logged.
        self._logged: set[str] = set()

    def read(self) -> Snapshot:
        """Return a snapshot.

        Raises:
            redis.RedisError: the server is away, or refuses everything; on a cluster, no node of a queue answers.
        """
        begin = time.monotonic()
        lists, away = self._find(), _Away(self._client)
        queues: dict[str, Queue] = {}
        unreadable: set[str] = set()
        replies = run_each(self._client, [measure(self._keys(one), spans_ms=_SPANS_MS) for one in lists])
        found: dict[BrokerList, Measured] = {}
        for one, reply in zip(lists, replies, strict=True):
            if isinstance(reply, CONNECTION_ERRORS) and away.add(one, reply):
                continue
            if isinstance(reply, Exception):
                unreadable.add(one.queue)
                self._note(f"The metrics leave out {one.label}, as the server refuses it", reply)
            else:
                away.answers(one)
                found[one] = reply
                queues.setdefault(one.queue, Queue()).add(found[one])
        if lists and not found:
            raise next(reply for reply in replies if isinstance(reply, Exception))
        self._add_in_flight(queues, found)
        nodes = away.nodes()
        return Snapshot(queues, unreadable, nodes, self._entries(), time.monotonic() - begin)

    def _find(self) -> list[BrokerList]:
        """Return the lists of the app's queues, and those for which messages wait or something was counted."""
        prefix = self._channel.global_keyprefix
        self._known["registry"] = self._names("registry", lambda: registered(self._client, prefix))
        self._known["counted"] = self._names("counted", lambda: set(self._client.zrange(counted(prefix), 0, -1)))
        names = {as_text(name) for known in self._known.values() for name in known}
        for queue in self._queues:
            names.update(self._channel.broker_lists(queue))
        return sorted(map(self._lists.parse, names - {""}))

    def _names(self, where: str, read: Callable[[], set[Any]]) -> set[Any]:
        """Read names of lists; those that were read last if their node of a cluster is away, or the server refuses."""
        try:
            return read()
        except (*CONNECTION_ERRORS, exceptions.ResponseError) as exc:
            if isinstance(exc, CONNECTION_ERRORS) and not is_cluster(self._client):
                raise
            self._note("The metrics may leave out queues", exc)
            return self._known.get(where, set())

    def _add_in_flight(self, queues: dict[str, Queue], found: dict[BrokerList, Measured]) -> None:
        with self._client.pipeline(transaction=False) as pipe:
            asked = []
            for one, numbers in found.items():
                keys = self._keys(one)
                for consumer in (*numbers.lasting, *numbers.ended, *numbers.given_up):
                    if consumer:
                        pipe.llen(keys.in_flight(consumer))
                        asked.append(one.queue)
            for queue, reply in zip(asked, pipe.execute(raise_on_error=False), strict=True):
                if isinstance(reply, int):
                    queues[queue].in_flight += reply

    def _entries(self) -> list[PeriodicTask]:
        """Return the periodic tasks; none if the server refuses, or if their node is away."""
        try:
            return self._read_entries(store_of(self._channel))
        except (*CONNECTION_ERRORS, exceptions.ResponseError) as exc:
            if isinstance(exc, CONNECTION_ERRORS) and not is_cluster(self._client):
                raise
            self._note("The metrics leave out periodic tasks", exc)
            return []

    def _read_entries(self, store: ScheduleStore) -> list[PeriodicTask]:
        store.client = self._client
        if self._client.hlen(store.keys.definitions) > MOST_ENTRIES:
            self._note("The metrics leave out periodic tasks", f"there are more than {MOST_ENTRIES:,}")
            return []
        return [
            entry if entry.queue is None else replace(entry, queue=self._lists.parse(entry.queue).queue)
            for entry in read_all(store, partly=True)
        ]

    def _keys(self, one: BrokerList) -> Any:
        return self._lists.delayed_queue(one).keys

    def _note(self, what: str, why: object) -> None:
        text = f"{what}: {why}"
        if text not in self._logged:
            self._logged.add(text)
            logger.warning("%s", text)


class _Away:
    """Which nodes of a cluster answer."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._answers: dict[str, bool] = {}

    def add(self, one: BrokerList, error: Exception) -> bool:
        """Record that the node of a list does not; returns False if no node of the cluster serves the list.

        Raises:
            redis.ConnectionError: `error`, if there is no cluster.
        """
        if not is_cluster(self._client):
            raise error
        address = self._client.topology.address_of(one.name)
        if address is not None:
            self._answers[str(address)] = False
        return address is not None

    def answers(self, one: BrokerList) -> None:
        """Record that it does."""
        if is_cluster(self._client):
            self._answers.setdefault(str(self._client.topology.address_of(one.name)), True)

    def nodes(self) -> dict[str, bool]:
        """Return for each node of a cluster whether it answers; ask those that have no list."""
        if not is_cluster(self._client):
            return {}
        for node in self._client.masters():
            if str(node.address) not in self._answers:
                try:
                    self._client.with_home(node).ping()
                    self._answers[str(node.address)] = True
                except (*LOST, exceptions.ResponseError):
                    self._answers[str(node.address)] = False
        return self._answers


_SPANS_MS = tuple(seconds * 1000 for seconds in WITHIN_S)

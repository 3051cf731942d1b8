"""Snapshot: all numbers of a broker at one moment, read by few commands that do not grow with the number of messages.

`BrokerLists.measure` reads those of queues. Periodic entries take some more round trips. On a cluster, a node that is
away or hangs is not waited for, and its queues are left out.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from logging import getLogger
from typing import Any

from redis import exceptions

from celery_delayq.inspector.away import is_away
from celery_delayq.inspector.broker_lists import BrokerList, BrokerLists
from celery_delayq.queue.connections import CONNECTION_ERRORS, LOST, hurried, is_cluster
from celery_delayq.queue.measuring import Measured
from celery_delayq.schedule.periodic_task import PeriodicTask, read_all
from celery_delayq.schedule.service import store_of

logger = getLogger(__name__)

#: Spans for which a snapshot has how many messages become due within, in seconds.
WITHIN_S = (60, 300, 3600)

#: The most periodic entries that a snapshot has. With more, it has none: nobody would look at so many lines.
MOST_ENTRIES = 5000


@dataclass(frozen=True)
class Snapshot:
    """All numbers.

    Attributes:
        queues: name -> the numbers of each of its lists that could be read.
        unreadable: names of the queues of which the server refuses something; at least a part of their numbers is left
            out.
        nodes: on a cluster, for each node whether it answers.
        entries: periodic tasks.
        paused: names of the paused queues.
        seconds: how long it took to read.
    """

    queues: dict[str, list[Measured]]
    unreadable: set[str]
    nodes: dict[str, bool]
    entries: list[PeriodicTask]
    paused: frozenset[str]
    seconds: float


class Reader:
    """Reads snapshots over one channel, one at a time.

    Args:
        channel: a channel of our transport.
        queues: names of the app's queues.
    """

    def __init__(self, channel: Any, queues: Sequence[str] = ()) -> None:
        self._channel = channel
        self._client = hurried(channel.plain_client)
        self._lists = BrokerLists(channel, queues, self._client)
        #: The lists that were known last.
        self._known: set[BrokerList] = set()
        #: Errors that were logged.
        self._logged: set[str] = set()

    def read(self) -> Snapshot:
        """Return a snapshot.

        Raises:
            redis.RedisError: the server is away, or refuses everything; on a cluster, no node of a queue answers.
        """
        begin = time.monotonic()
        queues: dict[str, list[Measured]] = {}
        unreadable: set[str] = set()
        replies = self._lists.measure(self._find(), spans_ms=[seconds * 1000 for seconds in WITHIN_S])
        for one, reply in replies.items():
            if isinstance(reply, CONNECTION_ERRORS) and not is_cluster(self._client):
                raise reply
            if is_away(self._client, reply) and self._lists.node_of(one) is not None:
                continue
            if isinstance(reply, Exception):
                unreadable.add(one.queue)
                self._note(f"The metrics leave out {one.label}, as the server refuses it", reply)
            else:
                queues.setdefault(one.queue, []).append(reply)
        if replies and not queues:
            raise next(reply for reply in replies.values() if isinstance(reply, Exception))
        entries, paused = self._entries(), self._paused()
        return Snapshot(queues, unreadable, _nodes(self._client), entries, paused, time.monotonic() - begin)

    def _find(self) -> list[BrokerList]:
        """Return the lists of the app's queues, and those for which messages wait or something was counted.

        While these cannot be read, those that were known last.
        """
        try:
            found, lost = self._lists.known(also_counted=True)
            known, why = set(found), str(lost)
        except exceptions.ResponseError as exc:
            known, why = self._lists.of_app(), str(exc)
        if why:
            self._note("The metrics may leave out queues", why)
            known |= self._known
        self._known = known
        return sorted(known)

    def _entries(self) -> list[PeriodicTask]:
        """Return the periodic tasks; none if the server refuses, or if their node is away."""
        store = store_of(self._channel)
        store.client = self._client
        try:
            if self._client.hlen(store.keys.definitions) > MOST_ENTRIES:
                self._note("The metrics leave out periodic tasks", f"there are more than {MOST_ENTRIES:,}")
                return []
            entries = read_all(store, partly=True)
        except (*CONNECTION_ERRORS, exceptions.ResponseError) as exc:
            if isinstance(exc, CONNECTION_ERRORS) and not is_cluster(self._client):
                raise
            self._note("The metrics leave out periodic tasks", exc)
            return []
        return [
            entry if entry.queue is None else replace(entry, queue=self._lists.parse(entry.queue).queue)
            for entry in entries
        ]

    def _paused(self) -> frozenset[str]:
        """Return the paused queues; none if the server refuses, or if their node is away."""
        try:
            return self._lists.paused()
        except (*CONNECTION_ERRORS, exceptions.ResponseError) as exc:
            if isinstance(exc, CONNECTION_ERRORS) and not is_cluster(self._client):
                raise
            self._note("The metrics do not know which queues are paused", exc)
            return frozenset()

    def _note(self, what: str, why: object) -> None:
        text = f"{what}: {why}"
        if text not in self._logged:
            self._logged.add(text)
            logger.warning("%s", text)


def _nodes(client: Any) -> dict[str, bool]:
    """Return for each node of a cluster whether it answers."""
    found: dict[str, bool] = {}
    for node in client.masters() if is_cluster(client) else ():
        try:
            found[str(node.address)] = bool(client.with_home(node).ping())
        except (*LOST, exceptions.ResponseError):
            found[str(node.address)] = False
    return found

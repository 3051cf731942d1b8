"""NodeFetcher: fetches from one node of a Redis Cluster, and never holds up those of the other nodes.

If the answer of its node is late, it takes it when it comes.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any, Protocol

from redis import exceptions

from celery_delayq.basics.errors import LeaseLost
from celery_delayq.cluster import hanging
from celery_delayq.cluster.client import Routed, own_connections
from celery_delayq.cluster.node import Address
from celery_delayq.cluster.topology import PATIENCE_S
from celery_delayq.fetching.consumer import Consumer
from celery_delayq.fetching.conversation import NotYet
from celery_delayq.fetching.wire import Wire
from celery_delayq.queue.connections import CONNECTION_ERRORS
from celery_delayq.queue.redirection import REDIRECTIONS, understood
from celery_delayq.transport.fetcher import Fetcher
from celery_delayq.transport.protocols import OfCluster
from celery_delayq.transport.slots import Slot
from celery_delayq.transport.station import Station

#: Pause before a list whose slot is on its way to another node is tried again, in seconds.
_MOVING_S = 0.1

#: How long the consuming thread waits for an answer of a node before it looks after the others, in seconds.
_PATIENCE_S = 0.02

#: How long an answer may take before the other nodes are asked what has become of the node, in seconds.
_SUSPICIOUS_S = 0.25


class Siblings(Protocol):
    """The fetchers of a channel, as one of them knows them; see `NodeFetchers`."""

    @property
    def undelivered(self) -> int:
        """The number of messages that are fetched but not delivered."""
        ...

    def queues_at(self, address: Address) -> list[str]:
        """Return the consumed queues whose lists are at a node."""
        ...

    def suspect(self, fetcher: NodeFetcher) -> None:
        """Look whether a node has a successor: it does not answer."""
        ...

    def trust(self, fetcher: NodeFetcher) -> None:
        """Record that nobody waits for an answer of a node any more."""
        ...

    def lose(self, fetcher: NodeFetcher, exc: Exception) -> None:
        """Record that a node is lost."""
        ...

    def make_way(self, asker: NodeFetcher) -> None:
        """Fetch nothing from other nodes, because a message has to be delivered alone."""
        ...


class NodeFetcher(Fetcher):
    """Fetches for one channel from one node.

    Args:
        channel: a `ClusterChannel`.
        siblings: the fetchers of the channel.
        address: of the node.
    """

    _channel: OfCluster

    def __init__(self, channel: OfCluster, siblings: Siblings, address: Address) -> None:
        super().__init__(channel, self._open_station)
        self.address = address
        self.server = str(address)
        self._siblings = siblings
        #: The connection on which an answer is late, and since when (monotonic).
        self._late: Wire | None = None
        self._late_since = 0.0

    def _open_station(self) -> Station:
        transport, topology = self._channel.connection, self._channel.topology
        return transport.station(
            self.server,
            partial(own_connections, topology, self.address, hurries_elsewhere=True),
            # Without patience: while one list waits for its slot, the others are read. Nor for a node that hangs.
            Routed(topology, home=self.address, deadline_s=0, is_hurried=True),
            _PATIENCE_S,
        )

    # -- an answer that is late: the other nodes go on meanwhile

    def _is_late(self) -> bool:
        """Return whether nothing can be asked, because an answer is late.

        Raises:
            redis.TimeoutError: it comes too late.
        """
        if self._late is None:
            return False
        waited_s = time.monotonic() - self._late_since
        timeout_s = self._channel.socket_timeout
        if timeout_s and waited_s > timeout_s:
            raise exceptions.TimeoutError(f"Redis node {self.address} did not answer within {timeout_s:g} s")
        if waited_s >= _SUSPICIOUS_S:
            self._siblings.suspect(self)
        if waited_s >= PATIENCE_S:
            hanging.hangs(self.address)
        self._channel.connection.cycle.wake_in(_SUSPICIOUS_S)
        return True

    def _put_off(self) -> None:
        """Go on when the answer comes."""
        assert self._consumer is not None
        connection = self._consumer.late
        if connection is None or self._late is not None:
            return
        self._late, self._late_since = connection, time.monotonic()
        hanging.is_late(self.address)
        cycle = self._channel.connection.cycle
        cycle.add_slot(connection, self)
        cycle.wake_in(_SUSPICIOUS_S)

    def _resume(self, wait_s: float = 0) -> None:
        """Take the answer if it has come.

        Raises:
            redis.ConnectionError: the connection is lost.
        """
        late, consumer = self._late, self._consumer
        if late is None or consumer is None or not late.has_reply(wait_s):
            return
        self._stop_waiting()
        queue, name = self._asking
        try:
            found = self._ask(name, consumer.resume)
        except NotYet:
            self._put_off()
            return
        hanging.answers(self.address)
        self._channel.topology.recovered(self.address)
        if found:
            self._cycle.rotate(queue)
            self._delivery.add(queue, name, found)

    def _stop_waiting(self) -> None:
        late, self._late = self._late, None
        if late is None:
            return
        hanging.is_not_late(self.address)
        self._siblings.trust(self)
        if self._channel.connection is not None:
            self._channel.connection.cycle.remove_slot(late)

    def fetch(self) -> bool:
        """Fetch, see `Fetcher`."""
        self._resume()  # a program without an event loop polls only if no other node has messages
        if self._is_late():
            self._idle = None
            return self.has_fetched
        try:
            return super().fetch()
        except NotYet:
            self._put_off()
            return False

    def wait(self) -> None:
        """Wait on the node for messages, see `Fetcher`."""
        try:
            super().wait()
        except NotYet:
            self._put_off()

    def tidy(self) -> None:
        """End leases, see `Fetcher`."""
        if self._late is None:
            super().tidy()

    def get(self, queue: str) -> Any:
        """Return one message of a queue, see `Fetcher`.

        Raises:
            redis.TimeoutError: the node does not answer.
        """
        self._resume(self._channel.socket_timeout or 0)
        if self._late is not None:
            raise exceptions.TimeoutError(f"Redis node {self.address} does not answer")
        return super().get(queue)

    def _unblock(self, consumer: Consumer, armed: list[Slot]) -> bool:
        if self._late is not None:
            return False  # what comes goes back
        identities = [slot.identity for slot in armed]
        try:
            waited = consumer.unblock([identity.client_id for identity in identities if identity is not None])
        except NotYet:
            self._put_off()
            return False
        if len(waited) < len(armed):
            waited = [False] * len(armed)
        for slot, has_waited in zip(armed, waited, strict=True):
            if not has_waited and not slot.has_reply():
                slot.unblock(consumer.client)
        return True

    def disconnect(self) -> None:
        """Close all connections, see `Fetcher`."""
        self._stop_waiting()
        super().disconnect()

    # -- its queues

    def _queues(self) -> list[str]:
        return self._siblings.queues_at(self.address)

    @property
    def has_queues(self) -> bool:
        """Whether there is any queue to fetch from."""
        return bool(self._channel.ack_emulation) and bool(self._queues())

    def credit(self) -> int:
        """Return how many messages may be fetched now."""
        return max(0, super().credit() - self._siblings.undelivered)

    def _is_elsewhere(self, name: str, exc: exceptions.ResponseError) -> bool:
        if not isinstance(understood(exc), REDIRECTIONS):
            return False
        self._refused[name] = (time.monotonic() + _MOVING_S, str(exc))
        self._channel.nodes.watch()
        self._channel.connection.cycle.wake_in(_MOVING_S)
        return True

    def on_readable(self, slot: Slot | Any) -> None:
        """Take the message that a slot has waited for, see `Fetcher`; never raises for a lost connection."""
        try:
            if slot is self._late:
                self._resume()
            else:
                super().on_readable(slot)
        except LeaseLost:
            raise
        except CONNECTION_ERRORS as exc:
            self._siblings.lose(self, exc)

    def _clear_the_way(self) -> None:
        self._siblings.make_way(self)
        self.make_way()

    def abandon(self) -> None:
        """Fetch nothing any more, without a command to the node. The watchdog puts back what was not delivered."""
        self._on_connection_lost()
        self.disconnect()

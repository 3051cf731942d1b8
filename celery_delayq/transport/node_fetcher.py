"""NodeFetcher: fetches from one node of a Redis Cluster, and never holds up those of the other nodes.

If the answer of its node is late, it takes it when it comes.
"""

from __future__ import annotations

from functools import partial
from typing import Protocol

from redis import exceptions

from celery_delayq.basics.errors import LeaseLost
from celery_delayq.cluster import hanging
from celery_delayq.cluster.client import Routed, own_connections
from celery_delayq.cluster.node import Address
from celery_delayq.cluster.topology import PATIENCE_S
from celery_delayq.fetching.conversation import LATE_ANSWER_S
from celery_delayq.queue.connections import CONNECTION_ERRORS
from celery_delayq.queue.redirection import REDIRECTIONS, understood
from celery_delayq.transport.fetcher import Fetcher
from celery_delayq.transport.protocols import OfCluster
from celery_delayq.transport.slots import Slot
from celery_delayq.transport.station import Station

#: Pause before a list whose slot is on its way to another node is tried again, in seconds.
_MOVING_S = 0.1

#: How long an answer may take before the watch looks often what has become of the node, in seconds.
_SUSPICIOUS_S = 0.25


class Siblings(Protocol):
    """The fetchers of a channel, as one of them knows them; see `NodeFetchers`."""

    @property
    def on_the_way(self) -> int:
        """The number of messages that are fetched but not delivered, or may be on their way."""
        ...

    def queues_at(self, address: Address) -> list[str]:
        """Return the consumed queues whose lists are at a node."""
        ...

    def on_found(self, fetcher: NodeFetcher) -> None:
        """Record that a node had messages."""
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

    patience_s = LATE_ANSWER_S

    def __init__(self, channel: OfCluster, siblings: Siblings, address: Address) -> None:
        super().__init__(channel, self._open_station)
        self.address = address
        self.server = str(address)
        self._siblings = siblings
        self._is_late = False

    def _open_station(self) -> Station:
        transport, topology = self._channel.connection, self._channel.topology
        return transport.station(
            self.server,
            partial(own_connections, topology, self.address, hurries_elsewhere=True),
            # Without patience: while one list waits for its slot, the others are read. Nor for a node that hangs.
            Routed(topology, home=self.address, deadline_s=0, is_hurried=True),
        )

    # -- an answer that is late: the other nodes go on meanwhile

    def ask(self) -> None:
        """Ask for messages, see `Fetcher`. If there is no answer for long, the watch often looks for a successor."""
        super().ask()
        owes_for_s = 0.0 if self.consumer is None else self.consumer.conversation.owes_for_s
        if owes_for_s or self._rounds.is_asking:
            self._channel.connection.cycle.wake_in(LATE_ANSWER_S if self.asked else _SUSPICIOUS_S)
        if owes_for_s >= PATIENCE_S:
            hanging.hangs(self.address)
        if owes_for_s >= _SUSPICIOUS_S:
            self._is_late = True
            hanging.is_late(self.address)
        elif self._is_late:
            hanging.answers(self.address)
            self._is_late = False

    def _wait_no_more(self) -> None:
        if self._is_late:
            hanging.is_not_late(self.address)
            self._is_late = False

    def take(self, queue: str, name: str, messages: list[bytes]) -> None:
        """Take messages that have come, see `Fetcher`."""
        super().take(queue, name, messages)
        self._siblings.on_found(self)

    def on_queues_changed(self) -> None:
        """Follow a change of `channel.task_queues`, see `Fetcher`."""
        super().on_queues_changed()
        if not self.has_queues:
            self._wait_no_more()

    def disconnect(self) -> None:
        """Close all connections, see `Fetcher`."""
        self._wait_no_more()
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
        return max(0, super().credit() - self._siblings.on_the_way)

    def _is_elsewhere(self, name: str, exc: exceptions.ResponseError) -> bool:
        if not isinstance(understood(exc), REDIRECTIONS):
            return False
        self._lists.put_off(name, exc, _MOVING_S)
        self._channel.nodes.watch()
        return True

    def on_readable(self, slot: Slot) -> None:
        """Take the message that a slot has waited for, see `Fetcher`; never raises for a lost connection."""
        try:
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
        self._waits.abandon()
        self.disconnect()

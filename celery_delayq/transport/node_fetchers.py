"""NodeFetchers: fetch from the nodes of a Redis Cluster, with a fetcher for each node.

What happens to one node concerns only its own lists. If a node is lost, or gives lists away, its fetcher ends, and the
others go on. Tasks that came from there can still be acknowledged: their consumer is retired, not closed. If the answer
of a node is late, it is taken when it comes, and the others are asked meanwhile.
"""

from __future__ import annotations

import math
import time
from contextlib import suppress
from functools import partial
from logging import getLogger

from redis import exceptions

from celery_delayq.cluster import hanging
from celery_delayq.cluster.client import Routed, own_connections
from celery_delayq.cluster.node import Address
from celery_delayq.cluster.topology import PATIENCE_S
from celery_delayq.fetching.conversation import LATE_ANSWER_S
from celery_delayq.queue.connections import LOST
from celery_delayq.queue.redirection import REDIRECTIONS, understood
from celery_delayq.transport.bindings import AGAIN_S
from celery_delayq.transport.fetcher import Fetcher
from celery_delayq.transport.fetchers import Fetchers
from celery_delayq.transport.protocols import OfCluster
from celery_delayq.transport.station import Station

logger = getLogger(__name__)

#: How long an answer may take before the watch looks often what has become of the node, in seconds.
_SUSPICIOUS_S = 0.25


class NodeFetchers(Fetchers):
    """Those of one channel; the servers are nodes.

    Args:
        channel: a `ClusterChannel`.
    """

    _channel: OfCluster

    patience_s = LATE_ANSWER_S

    def __init__(self, channel: OfCluster) -> None:
        super().__init__(channel)
        self._addresses: dict[str, Address] = {}
        #: The nodes whose answers are late.
        self._late: set[str] = set()
        self._version = -1
        #: When to write bindings that a node has refused (monotonic).
        self._bind_at = math.inf
        #: Whether queues or nodes may have changed since the last fetch.
        self._is_changed = True
        #: Node -> queues of this channel; None to find out.
        self._queues: dict[str, list[str]] | None = None

    # -- which nodes

    def consumed_at(self, server: str) -> list[str]:
        """Return the consumed queues whose lists are at a node."""
        queues = self._queues
        if queues is None:
            queues = self._queues = {}  # first: another thread may say that nodes have changed
            for queue in super().consumed_at(server):
                with suppress(exceptions.RedisError):  # nobody serves its slot now
                    queues.setdefault(self._server_of(queue), []).append(queue)
        return queues.get(server, [])

    def station(self, server: str) -> Station:
        """Return the station at a node."""
        transport, topology, address = self._channel.connection, self._channel.topology, self._addresses[server]
        return transport.stations.at(
            server,
            lambda: Station(
                transport,
                server,
                partial(own_connections, topology, address, hurries_elsewhere=True),
                # Without patience: while one list waits for its slot, the others are read. Nor for a node that hangs.
                Routed(topology, home=address, deadline_s=0, is_hurried=True),
            ),
        )

    def _server_of(self, queue: str) -> str:
        address = self._channel.plain_client.node_of(self._channel.broker_list(queue, 0)).address
        self._addresses[str(address)] = address
        return str(address)

    def _follow(self) -> None:
        transport, topology = self._channel.connection, self._channel.topology
        transport.stations.check_former()
        for fetcher in self._all:
            if fetcher.has_timed_out:
                self.lose(fetcher, exceptions.TimeoutError("Redis does not answer"))
        if topology.version == self._version and not self._is_changed:
            if time.monotonic() >= self._bind_at:
                self._bind()
            return
        is_new = topology.version != self._version
        self._is_changed = False
        self._version, self._queues = topology.version, None
        masters = {str(node.address): node.address for node in topology.masters()}
        for server in self._fetchers.keys() - masters.keys():
            self._end(self._fetchers[server])
        for server, address in masters.items():
            if self.consumed_at(server) and not self._channel.nodes.is_lost(address):
                self._at(server)
        self._bind()
        if is_new:
            self._channel.nodes.watch()
            super().on_queues_changed()
            transport.loops.follow_nodes()

    def _bind(self) -> None:
        """Write the bindings that could not be written yet, or see to it that this is tried again."""
        channel, transport = self._channel, self._channel.connection
        self._bind_at = math.inf
        error = transport.bindings.bind_postponed(channel)
        if isinstance(error, LOST):
            where = f"{channel.global_keyprefix}{channel.keyprefix_queue}"
            channel.nodes.lose(channel.topology.address_of(where))
        elif error is not None:  # the node answers, so nothing else tells when it takes them
            self._bind_at = time.monotonic() + AGAIN_S
            transport.cycle.wake_in(AGAIN_S)

    def on_queues_changed(self) -> None:
        """Follow a change of `channel.task_queues`."""
        self.on_nodes_changed()
        super().on_queues_changed()
        for server in self._late.copy():
            if not self.consumed_at(server):
                self._wait_no_more(server)

    def on_nodes_changed(self) -> None:
        """Look which nodes there are at the next fetch. Safe in any thread."""
        self._queues, self._is_changed = None, True

    # -- a node that is lost

    def _end(self, fetcher: Fetcher) -> None:
        self._fetchers = self._without(fetcher)
        self._wait_no_more(fetcher.server)
        fetcher.abandon()
        if self._channel.connection is not None:
            self._channel.connection.stations.retire(fetcher.server, fetcher.consumer)

    def lose(self, fetcher: Fetcher, exc: Exception) -> None:
        """Handle that a node is lost: its queues wait until it, or its successor, answers."""
        if self._fetchers.get(fetcher.server) is not fetcher:
            return
        logger.warning(
            "Redis node %s is lost: %s. Its queues wait until it is back; other queues are not affected",
            fetcher.server,
            str(exc).rstrip("."),
        )
        self._end(fetcher)
        self._channel.nodes.lose(self._addresses[fetcher.server])

    def is_elsewhere(self, exc: exceptions.ResponseError) -> bool:
        """Return whether a list is on its way to another node, see `Fetchers`; then the watch looks soon."""
        if not isinstance(understood(exc), REDIRECTIONS):
            return False
        self._channel.nodes.watch()
        return True

    # -- an answer that is late

    def ask(self, fetcher: Fetcher) -> None:
        """Ask for messages. If there is no answer for long, the watch often looks for a successor."""
        super().ask(fetcher)
        server, address = fetcher.server, self._addresses[fetcher.server]
        if self._fetchers.get(server) is not fetcher:
            return
        owes_for_s = fetcher.owes_for_s
        if owes_for_s or fetcher.rounds.is_asking:
            self._channel.connection.cycle.wake_in(LATE_ANSWER_S if fetcher.rounds.on_the_way else _SUSPICIOUS_S)
        if owes_for_s >= PATIENCE_S:
            hanging.hangs(address)
        if owes_for_s >= _SUSPICIOUS_S:
            self._late.add(server)
            hanging.is_late(address)
        elif server in self._late:
            self._late.discard(server)
            hanging.answers(address)

    def _wait_no_more(self, server: str) -> None:
        if server in self._late:
            self._late.discard(server)
            hanging.is_not_late(self._addresses[server])

    # -- the end

    def close(self) -> None:
        """Stop waiting for messages, and put undelivered ones back. Never raises."""
        super().close()
        for server in self._late.copy():
            self._wait_no_more(server)

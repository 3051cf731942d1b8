"""NodeFetchers: fetch from the nodes of a Redis Cluster, with a fetcher for each node.

What happens to one node concerns only its own lists. If a node is lost, or gives lists away, its fetcher ends, and the
others go on. Tasks that came from there can still be acknowledged: their consumer is retired, not closed.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from logging import getLogger
from typing import Any

from redis import exceptions

from celery_delayq.basics.errors import LeaseLost
from celery_delayq.cluster.node import Address
from celery_delayq.queue.connections import CONNECTION_ERRORS, LOST, is_full
from celery_delayq.queue.redirection import REDIRECTIONS, understood
from celery_delayq.transport.bindings import AGAIN_S
from celery_delayq.transport.fetcher import Fetcher
from celery_delayq.transport.node_fetcher import NodeFetcher
from celery_delayq.transport.protocols import OfCluster

logger = getLogger(__name__)

#: How long a node that had no messages is asked after the others, in seconds.
_EMPTY_S = 0.1

#: When a node that has no connection left is asked again, in seconds.
_FULL_S = 1.0


class NodeFetchers:
    """Fetches for one channel, as `Fetcher` does. It belongs to the consuming thread.

    Args:
        channel: a `ClusterChannel`.
    """

    def __init__(self, channel: OfCluster) -> None:
        self._channel = channel
        self._fetchers: dict[Address, NodeFetcher] = {}
        #: The addresses in the order in which they are asked; the one that had messages goes to the end.
        self._turns: deque[Address] = deque()
        #: Node without messages -> since when (monotonic); and when one had messages last.
        self._empty_since: dict[Address, float] = {}
        self._found_at = 0.0
        #: Node without a connection left -> when it is asked again (monotonic).
        self._full_until: dict[Address, float] = {}
        self._version = -1
        #: When to write bindings that a node has refused (monotonic).
        self._bind_at = math.inf
        #: Whether queues or nodes may have changed since the last fetch.
        self._is_changed = True
        #: Node -> queues of this channel; None to find out.
        self._at: dict[Address, list[str]] | None = None

    # -- which nodes

    def queues_at(self, address: Address) -> list[str]:
        """Return the consumed queues whose lists are at a node."""
        if self._at is None:
            self._at = {}
            for queue in dict.fromkeys(self._channel.task_queues.values()):
                with suppress(exceptions.RedisError):  # nobody serves its slot now
                    node = self._channel.plain_client.node_of(self._channel.broker_list(queue, 0))
                    self._at.setdefault(node.address, []).append(queue)
        return self._at.get(address, [])

    def _follow(self) -> None:
        """Have a fetcher for each node that has queues of this channel, and none for others."""
        transport, topology = self._channel.connection, self._channel.topology
        if topology.version == self._version and not self._is_changed:
            if time.monotonic() >= self._bind_at:
                self._bind()
            return
        is_new = topology.version != self._version
        self._is_changed = False
        self._version, self._at = topology.version, None
        masters = {node.address for node in topology.masters()}
        for address in self._fetchers.keys() - masters:
            self._end(self._fetchers[address])
        for address in masters - self._fetchers.keys():
            if self.queues_at(address) and not self._channel.nodes.is_lost(address):
                self._fetchers[address] = NodeFetcher(self._channel, self, address)
                self._turns.append(address)
                self._try(self._fetchers[address], Fetcher.on_queues_changed)
        self._bind()
        if is_new:
            self._channel.nodes.watch()
            self._try_each(Fetcher.on_queues_changed)
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
        self._at, self._is_changed = None, True
        self._try_each(Fetcher.on_queues_changed)

    def on_nodes_changed(self) -> None:
        """Look which nodes there are at the next fetch. Safe in any thread."""
        self._at, self._is_changed = None, True

    def _end(self, fetcher: NodeFetcher) -> None:
        self._fetchers.pop(fetcher.address, None)
        self._empty_since.pop(fetcher.address, None)
        self._full_until.pop(fetcher.address, None)
        with suppress(ValueError):
            self._turns.remove(fetcher.address)
        fetcher.abandon()
        if self._channel.connection is not None:
            self._channel.connection.stations.retire(str(fetcher.address))

    def lose(self, fetcher: NodeFetcher, exc: Exception) -> None:
        """Record that a node is lost. Its queues wait until it, or its successor, answers."""
        if self._fetchers.get(fetcher.address) is not fetcher:
            return
        logger.warning(
            "Redis node %s is lost: %s. Its queues wait; those of other nodes go on",
            fetcher.address,
            str(exc).rstrip("."),
        )
        self._end(fetcher)
        self._channel.nodes.lose(fetcher.address)

    def _try(self, fetcher: NodeFetcher, action: Callable[[NodeFetcher], Any]) -> Any:
        """Do something with a fetcher; returns False, and gives up its node, if the connection is lost.

        Raises:
            LeaseLost: see `Fetcher.fill`.
            Exception: the callback of a consumer has raised it.
        """
        try:
            return action(fetcher)
        except LeaseLost:
            raise
        except CONNECTION_ERRORS as exc:
            if exc is fetcher.callback_error:
                raise
            if is_full(exc):
                self._on_full(fetcher)
            else:
                self.lose(fetcher, exc)
        except exceptions.ResponseError as exc:
            if not isinstance(understood(exc), REDIRECTIONS) or exc is fetcher.callback_error:
                raise
            self._channel.nodes.watch()
        return False

    def _on_full(self, fetcher: NodeFetcher) -> None:
        """Leave the connections to a node to its loop and its watchdog, and look there for messages once a second."""
        if fetcher.address not in self._full_until:
            logger.error(
                "Redis node %s has no connection left for this worker: its limit maxclients is reached. The worker "
                "looks for its messages once a second. Raise maxclients, or see docs/limits.md",
                fetcher.address,
            )
        self._full_until[fetcher.address] = time.monotonic() + _FULL_S
        self._channel.connection.cycle.wake_in(_FULL_S)
        if not fetcher.is_sparing:
            self._try(fetcher, NodeFetcher.spare_connections)

    def _is_full(self, fetcher: NodeFetcher) -> bool:
        """Return whether a node has refused a connection just now."""
        if fetcher.is_in_the_way:
            self._on_full(fetcher)
        return time.monotonic() < self._full_until.get(fetcher.address, 0.0)

    def _try_each(self, action: Callable[[NodeFetcher], Any]) -> None:
        for fetcher in list(self._fetchers.values()):
            self._try(fetcher, action)

    # -- what a fetcher does

    @property
    def has_queues(self) -> bool:
        """Whether there is any queue to fetch from."""
        return bool(self._channel.task_queues) and bool(self._channel.ack_emulation)

    @property
    def is_consuming(self) -> bool:
        """Whether it waits for messages, or has undelivered ones."""
        return any(fetcher.is_consuming for fetcher in self._all)

    @property
    def is_starved(self) -> bool:
        """Whether the last fetch ended because there was no credit."""
        return any(fetcher.is_starved for fetcher in self._all)

    @property
    def is_sparing(self) -> bool:
        """Whether it does without connections that wait."""
        return any(fetcher.is_sparing for fetcher in self._all)

    @property
    def is_in_the_way(self) -> bool:
        """Whether all nodes have to be spared: never, since `fill` looks at each of them."""
        return False

    @property
    def has_fetched(self) -> bool:
        """Whether there is something to deliver."""
        return any(fetcher.has_fetched for fetcher in self._all)

    @property
    def on_the_way(self) -> int:
        """The number of messages that are fetched but not delivered, or may be on their way."""
        return sum(fetcher.undelivered + fetcher.asked for fetcher in self._all)

    @property
    def _all(self) -> Iterable[NodeFetcher]:
        return list(self._fetchers.values())

    def fill(self) -> None:
        """Ask one node after the other until there is something to deliver; see `Fetcher.fill`.

        Only if no node has messages, this waits on them. A node that had none is asked again when others have had some,
        but not within `_EMPTY_S`: while they have many, that would cost more than the messages themselves.
        """
        self._channel.connection.stations.check_former()
        self._follow()
        if self.has_fetched:
            return
        now = time.monotonic()
        for address in sorted(self._turns, key=lambda address: now < self._empty_since.get(address, 0.0) + _EMPTY_S):
            fetcher = self._fetchers.get(address)
            if fetcher is None or not fetcher.has_queues or self._is_full(fetcher):
                continue
            if fetcher.is_empty:
                since = self._empty_since.setdefault(address, now)
                if self._found_at <= since or now < since + _EMPTY_S:
                    continue
                del self._empty_since[address]
            self._try(fetcher, NodeFetcher.ask)
            if not self._is_full(fetcher) and not fetcher.is_sparing:
                self._full_until.pop(address, None)
            if fetcher.asked:
                return  # the others are asked when it has answered, or is late
        for fetcher in self._all:
            if fetcher.is_empty and not self._is_full(fetcher):
                self._try(fetcher, NodeFetcher.wait)

    def on_found(self, fetcher: NodeFetcher) -> None:
        """Record that a node had messages: the others are asked first."""
        self._found_at = time.monotonic()
        self._empty_since.pop(fetcher.address, None)
        with suppress(ValueError):
            self._turns.remove(fetcher.address)
            self._turns.append(fetcher.address)

    def send_acks(self, *, is_busy: bool) -> bool:
        """Send the acknowledgements that wait, see `Fetcher.send_acks`."""
        still_wait = [fetcher.send_acks(is_busy=is_busy) for fetcher in self._all]
        return any(still_wait)

    def deliver(self) -> bool:
        """Deliver one fetched message to its kombu consumer; returns whether there was one."""
        return any(self._try(fetcher, NodeFetcher.deliver) for fetcher in self._all)

    def get(self, queue: str) -> Any:
        """Return one message of a queue as a kombu message, see `Fetcher.get`."""
        node = self._channel.plain_client.node_of(self._channel.broker_list(queue, 0))
        fetcher = self._fetchers.get(node.address)
        if fetcher is None:
            fetcher = self._fetchers[node.address] = NodeFetcher(self._channel, self, node.address)
            self._turns.append(node.address)
        try:
            return fetcher.get(queue)
        except CONNECTION_ERRORS as exc:
            self.lose(fetcher, exc)
            raise

    def make_way(self, asker: NodeFetcher) -> None:
        """Fetch nothing from other nodes, because a message has to be delivered alone."""
        for fetcher in self._all:
            if fetcher is not asker:
                self._try(fetcher, NodeFetcher.make_way)

    def tidy(self) -> None:
        """End the leases on lists that are no longer fetched from, see `Fetcher.tidy`."""
        self._try_each(NodeFetcher.tidy)

    def unsettle(self) -> None:
        """Look at all lists again at the next fetch. In any thread."""
        for fetcher in self._all:
            fetcher.unsettle()

    def spare_connections(self) -> None:
        """Do without connections that wait, for a while, see `Fetcher.spare_connections`."""
        self._try_each(NodeFetcher.spare_connections)

    def maxclients(self) -> str:
        """Return nothing: each node has a limit of its own."""
        return ""

    def close(self) -> None:
        """Stop waiting for messages, and put undelivered ones back. Never raises."""
        for fetcher in self._all:
            fetcher.close()

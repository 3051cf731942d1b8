"""Nodes: what a connection knows of the nodes of a Redis Cluster."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial

from celery_delayq.basics.native import native_lock
from celery_delayq.cluster.client import Routed, own_connections
from celery_delayq.cluster.node import Address
from celery_delayq.cluster.topology import Topology
from celery_delayq.queue.connections import Connect
from celery_delayq.queue.registry import Registry
from celery_delayq.transport.watch import NodesWatch


class Nodes:
    """Those of one connection.

    Args:
        topology: all channels of the connection share it.
        on_change: called in another thread when slots have moved, or when a lost node is back.
    """

    def __init__(self, topology: Topology, on_change: Callable[[], None]) -> None:
        self.topology = topology
        self._on_change = on_change
        self._watch: NodesWatch | None = None
        self._registry: Registry | None = None

    def registry(self, keyprefix: str) -> Registry:
        """Return the registry that all transfer loops share."""
        if self._registry is None:
            # All loops wait for whoever reads it. Connections of their own: they close them after use.
            self._registry = Registry(Routed(self.topology.clone(), deadline_s=0), keyprefix)
            self._registry.turn = native_lock()
        return self._registry

    def servers(self) -> dict[str, tuple[Connect, Callable[[str], bool]]]:
        """Return, for each master, how to connect to it, and which lists it has."""
        topology = self.topology
        found: dict[str, tuple[Connect, Callable[[str], bool]]] = {}
        for address in [node.address for node in topology.masters()]:
            connect = partial(own_connections, topology, address, hurries_elsewhere=True)
            found[str(address)] = (connect, partial(topology.serves, address))
        return found

    def watch(self) -> None:
        """Look soon which node has which slots, and again from time to time."""
        if self._watch is None:
            self._watch = NodesWatch(self.topology, self._on_change)
            weakref.finalize(self, self._watch.stop, 0).atexit = False  # if nobody closes the connection
        else:
            self._watch.hurry()
        self._watch.start()  # again, if the process had no more threads

    def lose(self, address: Address | None) -> None:
        """Fetch from a node again only when it answers. None: nobody knows which one; look soon."""
        self.watch()
        assert self._watch is not None
        if address is not None:
            self._watch.lose(address)

    def is_lost(self, address: Address) -> bool:
        """Return whether a node was lost, and does not answer yet."""
        return self._watch is not None and self._watch.is_lost(address)

    def close(self) -> None:
        """Close the connections that all channels share."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.stop()
        self.topology.close()

"""NodesWatch: follows the nodes of a Redis Cluster in a native thread: nobody has to wait for a node that hangs."""

from __future__ import annotations

import random
from collections.abc import Callable
from logging import getLogger

from celery_delayq.basics.native import NativeLoop
from celery_delayq.cluster import hanging
from celery_delayq.cluster.node import Address
from celery_delayq.cluster.topology import Topology
from celery_delayq.queue.connections import Outage
from celery_delayq.transport.known import leave

logger = getLogger(__name__)

#: How often to look which nodes there are, and how often while one is lost or late, or slots move, in seconds.
_LOOK_S, _SOON_S = 1.5, 0.25


class NodesWatch:
    """The watch of one connection. Any thread may call the methods.

    Args:
        topology: what the connection knows of the cluster; it is brought up to date.
        on_change: called in the thread of the watch when the slots have moved, or a lost node is back.
    """

    def __init__(self, topology: Topology, on_change: Callable[[], None]) -> None:
        self._topology = topology
        self._on_change = on_change
        self._lost: set[Address] = set()
        #: The masters when this looked last: others may have brought the topology up to date since.
        self._masters = {node.address for node in topology.masters()}
        self._version = topology.version
        self._outage = Outage(logger, "Watching the nodes of Redis Cluster", "A failover is noticed later")
        self._is_hurried = self._is_stopping = False
        self._loop = NativeLoop(self._run, lambda: not self._is_stopping)

    def start(self) -> None:
        """Begin to watch, unless this does so already.

        Raises:
            RuntimeError, OSError: the process may have no more threads, or no more descriptors.
        """
        self._loop.begin()

    def is_lost(self, address: Address) -> bool:
        """Return whether a node does not answer."""
        return address in self._lost

    def lose(self, address: Address) -> None:
        """Record that a node was lost; it is asked until it answers, or is no longer a master."""
        self._lost.add(address)
        self.hurry()

    def hurry(self) -> None:
        """Look soon: slots have moved."""
        self._is_hurried = True
        self._loop.wake()

    def stop(self, timeout_s: float = 5.0) -> None:
        """End the watch, and wait at most so many seconds."""
        self._is_stopping = True
        self._loop.wake()
        self._loop.wait(lambda: not self._loop.runs, timeout_s)

    # -- its own thread

    def _run(self) -> None:
        while not (self._is_stopping or self._loop.is_exiting):
            is_hurried, self._is_hurried = self._is_hurried, False
            try:
                self._look()
                self._outage.ends()
                pause_s = _SOON_S if self._lost or is_hurried or hanging.is_any_late() else _LOOK_S
            except Exception as exc:
                pause_s = 0.0 if self._is_stopping else self._outage.note(exc)
            self._loop.sleep(pause_s)

    def _look(self) -> None:
        # Any of them knows; not all watches of the cluster should ask the same one.
        self._topology.refresh(random.choice([node.address for node in self._topology.masters()]))
        version = self._topology.version
        masters = {node.address for node in self._topology.masters()}
        former, self._masters = self._masters - masters, masters
        for address in former:
            ended = leave(*address)
            logger.info("Redis node %s is no longer a master; ended %d connections to it", address, ended)
        lost = self._lost.copy()  # others add to it while this asks
        back = {address for address in lost if address not in masters or self._topology.answers(address, _SOON_S)}
        self._lost -= back
        for address in back:
            self._topology.recovered(address)
            hanging.answers(address)
        if back or self._version != version:
            self._version = version
            self._on_change()

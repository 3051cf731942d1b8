"""Loops: the transfer loops of a connection, one for each server."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from logging import getLogger
from typing import TYPE_CHECKING

from celery_delayq.basics.weak import call_of

if TYPE_CHECKING:  # what only a consumer needs is imported when one needs it
    from celery_delayq.queue.connections import Connect
    from celery_delayq.transfer.failover_log import Moments
    from celery_delayq.transfer.loop import TransferLoop
    from celery_delayq.transfer.settings import TransferSettings
    from celery_delayq.transport.protocols import Connection

logger = getLogger(__name__)


class Loops:
    """They belong to the thread that starts them; any thread may look which there are.

    Args:
        connection: the `Transport`. Neither this nor the loops keep it.

    Attributes:
        more_lists: broker lists to transfer to besides those that the connection consumes.
        has_failover: whether a loop tries the alternative URLs in turn. A worker's stays with the worker's server.
    """

    def __init__(self, connection: Connection) -> None:
        self._owner = weakref.ref(connection)
        #: Server -> loop; "" is the name of a single server.
        self._loops: dict[str, TransferLoop] = {}
        #: Settings of the loops, and what they know of servers; None while none may run.
        self._transfer: tuple[TransferSettings | None, Moments] | None = None
        self.more_lists: frozenset[str] = frozenset()
        self.has_failover = False

    @property
    def all(self) -> list[TransferLoop]:
        """The loops of all servers."""
        return list(self._loops.values())

    @property
    def _connection(self) -> Connection:
        connection = self._owner()
        assert connection is not None  # who uses its loops has it
        return connection

    def of(self, name: str) -> TransferLoop | None:
        """Return the loop that transfers to a list; None if there is none."""
        nodes = self._connection.nodes
        return self._loops.get("" if nodes is None else str(nodes.topology.address_of(name)))

    def is_full(self, server: str) -> bool:
        """Return whether a server has no connection left for its loop."""
        loop = self._loops.get(server)
        return loop is not None and loop.outage.is_full

    def start(self, settings: TransferSettings | None = None, moments: Moments | None = None) -> None:
        """Start to transfer all registered queues and all queues that the connection consumes.

        There is one loop for each server. They replace loops that already run, and end with the connection.

        Args:
            settings: of the loops.
            moments: what is known of servers from earlier connections, see `FailoverLog`.
        """
        self.stop()
        self._transfer = settings, {} if moments is None else moments
        self._start(self._servers())

    def ensure(self) -> None:
        """Start them, unless they were started, or the connection consumes nothing, or is gone."""
        connection = self._owner()  # an event loop may call this of a connection that was lost before it ran
        if self._transfer is None and connection is not None and connection.task_lists():
            self.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Stop transferring, and wait at most so many seconds for each loop; does nothing if no loop runs."""
        loops, self._loops, self._transfer = self.all, {}, None
        for loop in loops:
            loop.stop(timeout_s)

    def follow_nodes(self) -> None:
        """Have a loop for each master of the cluster; for the thread that started them."""
        if self._transfer is None:
            return
        servers = self._servers()
        for server in self._loops.keys() - servers.keys():
            self._loops.pop(server).stop(timeout_s=0)
            self._connection.keepers.pop(server, None)  # the node may become a master again, with another one
        self._start(servers)
        self.wake()

    def wake(self) -> None:
        """Tell the loops that a consumer came or went."""
        for loop in self.all:
            loop.wake()

    def _servers(self) -> dict[str, tuple[Connect, Callable[[str], bool]]]:
        """Return how to connect to each server, and which lists it has."""
        from celery_delayq.transport.connector import Connector

        connection = self._connection
        if connection.nodes is not None:
            return connection.nodes.servers()
        return {"": (Connector(connection.client, failover=self.has_failover), lambda name: True)}

    def _start(self, servers: dict[str, tuple[Connect, Callable[[str], bool]]]) -> None:
        from celery_delayq.transfer.failover_log import FailoverLog
        from celery_delayq.transfer.loop import TransferLoop

        assert self._transfer is not None
        settings, moments = self._transfer
        connection = self._connection
        keyprefix = connection.client.transport_options.get("global_keyprefix", "")
        call = partial(partial, call_of, self._owner)
        for server in servers.keys() - self._loops.keys():
            connect, serves = servers[server]
            self._loops[server] = loop = TransferLoop(
                connection.keeper(server, connect),
                partial(_lists_of, self._owner),
                keyprefix=keyprefix,
                settings=settings,
                on_pass=call("program.on_pass"),
                may_begin=call("program.may_transfer"),
                failover_log=FailoverLog(logger, moments),
                serves=serves,
                registry=None if connection.nodes is None else connection.nodes.registry(keyprefix),
                slot_of=connection.slot_of,
                chores=call("program.chores"),
            )
            connection.ends_with(loop)
            loop.start()


def _lists_of(owner: Callable[[], Connection | None]) -> set[str]:
    """Return the lists that a connection consumes or transfers to."""
    connection = owner()
    return set() if connection is None else connection.task_lists() | connection.loops.more_lists

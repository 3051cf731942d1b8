"""Routed: a `redis.Redis` for a Redis Cluster. It sends each command to the node that serves its keys.

Why not redis-py's `RedisCluster`: that one sends a command again after a lost connection, whose reply may be that of a
command that was executed. A message would be offered twice. Here, a command is sent again only if a node has refused it
(MOVED, ASK, TRYAGAIN, CLUSTERDOWN), or if the connection could not even be opened. It knows only Redis.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis
from redis import exceptions

from celery_delayq.cluster.dispatch import execute
from celery_delayq.cluster.pipeline import RoutedPipeline
from celery_delayq.cluster.router import Router
from celery_delayq.cluster.topology import HURRY_S, Address, Node, Topology


class Routed(redis.Redis):
    """A client that sends each command to the node that serves its keys; without a key, to the home node.

    Safe to share between threads, and after a fork. The connections are those of the topology, which stay open when
    this client is closed.

    Several keys have to be in one hash slot, except those of DEL, EXISTS, MGET, TOUCH and UNLINK, which are not atomic
    then. DBSIZE, FLUSHALL, FLUSHDB, KEYS, and SCRIPT with LOAD, EXISTS and FLUSH go to all masters. SCAN goes over one
    node, so it needs a `home`; `scan_iter` goes over all.

    Every command raises, besides what a plain client raises:

    - `redis.exceptions.ClusterCrossSlotError`: its keys are in several slots. It was not sent.
    - `redis.exceptions.TryAgainError`, `ClusterDownError` and so on: no node served the slot in time.
    - `redis.ConnectionError`, `redis.TimeoutError`: the connection was lost. Nobody knows whether the command was
      executed. It is not sent again, whatever the pool's options say about retries.

    Args:
        topology: the nodes. Nothing is sent before the first command.
        home: the node for commands without a key; by default the home node of the topology, which is another one after
            it has failed.
        deadline_s: how long a command is tried while no node serves its slot, in seconds; by default that of `Router`.
            With 0, it goes to another node if it has to, but does not wait.
        owns_topology: whether `close` closes the topology.
        is_hurried: see `Router`; for what can be done later, or without the node.
        hurry_s: see `Router`.
        hurries_elsewhere: see `Router`.
    """

    #: redis-py may close a client that was never made completely.
    _owns_topology = False

    def __init__(
        self,
        topology: Topology,
        *,
        home: Address | None = None,
        deadline_s: float | None = None,
        owns_topology: bool = False,
        is_hurried: bool = False,
        hurry_s: float = HURRY_S,
        hurries_elsewhere: bool = False,
    ) -> None:
        self.topology = topology
        self.router = Router(
            topology, home, deadline_s, is_hurried=is_hurried, hurry_s=hurry_s, hurries_elsewhere=hurries_elsewhere
        )
        self._owns_topology = owns_topology
        super().__init__(connection_pool=self.router.pool)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.topology!r}>"

    # -- nodes

    @property
    def connection_pool(self) -> Any:
        """The pool of the home node, see `Router.pool`."""
        return self.router.pool

    @connection_pool.setter
    def connection_pool(self, pool: Any) -> None:
        """Do nothing: redis-py sets what it was given."""

    def node_of(self, key: str | bytes) -> Node:
        """Return the node that serves a key.

        Raises:
            redis.RedisError, ConfigurationError: see `Topology.node_of`.
        """
        return self.topology.node_of(self.router.slot_of(key))

    def masters(self) -> list[Node]:
        """Return the masters, sorted by address; see `Topology.masters`."""
        return self.topology.masters()

    def is_elsewhere(self, key: str | bytes) -> bool:
        """Return whether a key is not at `home`, as far as is known. If no node was chosen as home, none is there."""
        home = self.router.home
        return home is None or self.topology.address_of(key) != home

    def at(self, key: str | bytes) -> Routed:
        """Return a client whose commands without a key go to the node that serves a key now, see `node_of`."""
        return self.with_home(self.node_of(key))

    def with_home(self, node: Node) -> Routed:
        """Return a client whose commands without a key go to a node."""
        return self._with_router(home=node.address)

    def hurried(self) -> Routed:
        """Return a client that waits neither for a node that hangs nor for a slot that moves, see `Router`."""
        return self._with_router(is_hurried=True)

    def _with_router(self, *, home: Address | None = None, is_hurried: bool = False) -> Routed:
        router = self.router
        return Routed(
            self.topology,
            home=home or router.home,
            deadline_s=router.deadline_s,
            is_hurried=is_hurried or router.is_hurried,
            hurry_s=router.hurry_s,
            hurries_elsewhere=router.hurries_elsewhere,
        )

    def pubsub(self, **kwargs: Any) -> Any:
        """Return a subscription at the home node, see redis-py. After that node has failed, make another one."""
        return self.router.node_for(None).client.pubsub(**kwargs)

    def client(self) -> Any:
        """Return another client of this topology; it has no connection of its own, unlike redis-py's."""
        return self._with_router()

    def close(self) -> None:
        """Close the topology if this client owns it. redis-py also calls this when the client is collected."""
        if self._owns_topology:
            self.topology.close()

    # -- commands

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send a command to the nodes that serve its keys, and return what a plain client returns.

        Raises:
            redis.RedisError: see the class.
        """
        return execute(self.router, args, options, self.parse_response)

    def scan_iter(
        self, match: Any = None, count: int | None = None, _type: str | None = None, **kwargs: Any
    ) -> Iterator[Any]:
        """Yield the keys of all masters, see redis-py. A key whose slot moves meanwhile may be missing, or come twice.

        Raises:
            redis.RedisError: a node is away, or refuses the command.
        """
        for node in self.masters():
            yield from redis.Redis.scan_iter(self.with_home(node), match=match, count=count, _type=_type, **kwargs)

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> RoutedPipeline:
        """Return a pipeline, see `RoutedPipeline`."""
        return RoutedPipeline(self.router, self.response_callbacks, transaction, shard_hint)


@contextmanager
def own_connections(
    topology: Topology, address: Address, *, must_be_master: bool = False, hurries_elsewhere: bool = False
) -> Iterator[Routed]:
    """Give a client with connections of its own, whose commands without a key go to a node; close them at the end.

    It does not wait for a slot that no node serves, or that moves: what it is for must go on with other slots.

    Args:
        topology: the nodes; it is not changed.
        address: the node; if it is no longer a master, they go to any other.
        must_be_master: raise an error instead.
        hurries_elsewhere: see `Router`.

    Raises:
        redis.ConnectionError: the node is no longer a master, but must be one.
    """
    own = topology.clone()
    try:
        is_master = any(node.address == address for node in own.masters())
        if must_be_master and not is_master:
            raise exceptions.ConnectionError(f"Redis node {address} is no longer a master")
        home = address if is_master else None
        yield Routed(own, home=home, deadline_s=0, hurries_elsewhere=hurries_elsewhere)
    finally:
        own.close()

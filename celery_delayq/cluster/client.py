"""Routed: a `redis.Redis` for a Redis Cluster. It sends each command to the node that serves its keys.

Why not redis-py's `RedisCluster`: that one sends a command again after a lost connection, whose reply may be that of a
command that was executed. A message would be offered twice. Here, a command is sent again only if a node has refused it
(MOVED, ASK, TRYAGAIN, CLUSTERDOWN), or if the connection could not even be opened. It knows only Redis.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import redis
from redis import exceptions

from celery_delayq.cluster.dispatch import Dispatch
from celery_delayq.cluster.node import Address, Node
from celery_delayq.cluster.pipeline import RoutedPipeline
from celery_delayq.cluster.round_trip import Command
from celery_delayq.cluster.router import DEADLINE_S, Router
from celery_delayq.cluster.topology import Topology


class Routed(redis.Redis):
    """A client that sends each command to the node that serves its keys; without a key, to the home node.

    Safe to share between threads, and after a fork. The connections are those of the topology, which stay open when
    this client is closed.

    It knows the commands that this package, kombu and Celery send, see `command_keys`. Several keys have to be in one
    hash slot, except those of `mget`. `scan_iter` and `script_load` go to all masters.

    Every command raises, besides what a plain client raises:

    - `redis.exceptions.ClusterCrossSlotError`: its keys are in several slots. It was not executed.
    - `redis.exceptions.TryAgainError`, `ClusterDownError` and so on: no node served the slot in time.
    - `redis.ConnectionError`, `redis.TimeoutError`: the connection was lost. Nobody knows whether the command was
      executed. It is not sent again, whatever the pool's options say about retries.

    Args:
        topology: the nodes. Nothing is sent before the first command.
        home: the node for commands without a key; by default the home node of the topology, which is another one after
            it has failed.
        deadline_s, is_hurried, hurries_elsewhere: see `Router`.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        home: Address | None = None,
        deadline_s: float = DEADLINE_S,
        is_hurried: bool = False,
        hurries_elsewhere: bool = False,
    ) -> None:
        self.topology = topology
        self.router = Router(topology, home, deadline_s, is_hurried=is_hurried, hurries_elsewhere=hurries_elsewhere)
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
        """Return the node that serves a key, see `Topology.node_of`."""
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
        return self._with(replace(self.router, home=node.address))

    def hurried(self, deadline_s: float | None = None, hurry_s: float | None = None) -> Routed:
        """Return a client that waits neither for a node that hangs nor for a slot that moves, see `Router`."""
        router = replace(self.router, is_hurried=True)
        if deadline_s is not None:
            router = replace(router, deadline_s=deadline_s)
        return self._with(router if hurry_s is None else replace(router, hurry_s=hurry_s))

    def _with(self, router: Router) -> Routed:
        client = Routed(self.topology)
        client.router = router
        return client

    def pubsub(self, **kwargs: Any) -> Any:
        """Return a subscription at the home node, see redis-py. After that node has failed, make another one."""
        return self.router.node_for(None).client.pubsub(**kwargs)

    # -- commands

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send a command to the node that serves its key, and return what a plain client returns.

        Raises:
            redis.RedisError: see the class.
        """
        command = Command(args, options, self.router.slot_for(args))
        Dispatch(self.router, self.parse_response).send_one(command)
        if isinstance(command.reply, Exception):
            raise command.reply
        return command.reply

    def mget(self, keys: Any, *args: Any) -> Any:
        """Return the values of keys, see redis-py. Not atomic; a value that is no string is an error."""
        with self.pipeline(transaction=False) as pipe:
            for key in [*([keys] if isinstance(keys, (str, bytes)) else keys), *args]:
                pipe.get(key)
            return pipe.execute()

    def script_load(self, script: Any) -> Any:
        """Load a script at all masters, see redis-py: its `Script` does so after NOSCRIPT.

        A node that is away will not know it. Whoever runs a script there meets that anyway.

        Raises:
            redis.RedisError: no node has loaded it.
        """
        loaded: Any = None
        error: Exception | None = None
        for node in self.masters():
            try:
                loaded = redis.Redis.script_load(self.with_home(node), script)
            except exceptions.RedisError as exc:
                error = exc
        if loaded is None and error is not None:
            raise error
        return loaded

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
def own_connections(topology: Topology, address: Address, *, hurries_elsewhere: bool = False) -> Iterator[Routed]:
    """Give a client with connections of its own, whose commands without a key go to a node; close them at the end.

    It does not wait for a slot that no node serves, or that moves: what it is for must go on with other slots.

    Args:
        topology: the nodes; it is not changed.
        address: the node; if it is no longer a master, they go to any other.
        hurries_elsewhere: see `Router`.
    """
    own = topology.clone()
    try:
        is_master = any(node.address == address for node in own.masters())
        home = address if is_master else None
        yield Routed(own, home=home, deadline_s=0, hurries_elsewhere=hurries_elsewhere)
    finally:
        own.close()

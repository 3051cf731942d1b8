"""Topology: which master of a Redis Cluster serves which hash slot, and a plain client of each.

It learns that from the nodes, with `CLUSTER SLOTS`. It sends nothing else: `dispatch` sends the commands.
"""

from __future__ import annotations

import inspect
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import redis
from redis import exceptions
from redis.backoff import NoBackoff
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.retry import Retry

from celery_delayq.basics import deadline
from celery_delayq.basics.errors import ConfigurationError
from celery_delayq.cluster import hanging
from celery_delayq.cluster.node import Address, Node, hurried_options
from celery_delayq.queue.connections import as_text

#: How long a node may take to connect, and to answer which node serves which slot, in seconds.
PATIENCE_S = 1.0

#: The nodes are not asked again so soon after they were asked, in seconds: many threads may notice a change at once.
REFRESH_PAUSE_S = 0.1

#: Options of a connection that does not tell the server its name. redis-py keeps the error of a Redis before 7.2, which
#: refuses that, and with it all callers.
_UNNAMED: dict[str, None] = dict.fromkeys(
    {"driver_info"} & inspect.signature(redis.connection.AbstractConnection).parameters.keys()
    or ("lib_name", "lib_version")
)


@dataclass(frozen=True)
class View:
    """What a node said about the slots.

    Attributes:
        asked_at: when it was asked, monotonic time in seconds.
        by: the node.
        ranges: first and last slot, address and id of their master.
    """

    asked_at: float
    by: Address
    ranges: tuple[tuple[int, int, Address, str], ...]


class Topology:
    """The masters of a cluster, and the slots that they serve.

    Safe to share between threads, and after a fork: the child opens new connections. Nothing is asked before it is
    needed: `masters`, `node_of` and `home` raise what `refresh` raises if it is not known yet. Whoever makes a topology
    closes it.

    Args:
        seeds: addresses of some nodes, at least one.
        connect: returns a new connection pool for a node. Its password, TLS and timeouts are used for all commands.

    Attributes:
        version: grows when slots or masters have changed; 0 until they are known.
    """

    def __init__(self, seeds: Sequence[Address], connect: Callable[[Address], redis.ConnectionPool]) -> None:
        if not seeds:
            raise ValueError("a topology needs at least one seed")
        self.version = 0
        self._seeds = tuple(dict.fromkeys(seeds))
        self._connect = connect
        self._slots: list[Node | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
        self._masters: tuple[Node, ...] = ()
        #: Nodes that are no masters as far as is known: seeds, and targets of a slot that moves.
        self._others: dict[Address, Node] = {}
        self._home: Node | None = None
        self._failed: set[Address] = set()
        #: What a node last said about the slots.
        self._view: View | None = None
        #: When what is known was asked for, and when a node was last asked; monotonic time in seconds.
        self._known_at = self._asked_at = -math.inf
        #: Makes the error of the last question, if it had no answer: with its traceback, it would keep all its callers.
        self._error: Callable[[], Exception] | None = None
        self.make_locks()
        _topologies.add(self)

    def make_locks(self) -> None:
        """Make new locks: in a forked child, nobody would release the old ones."""
        self._lock = threading.RLock()
        self._asking = threading.Lock()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(map(str, self._seeds))}>"

    # -- which nodes there are

    def masters(self) -> list[Node]:
        """Return the masters that serve slots, sorted by address."""
        self._ensure_known()
        return list(self._masters)

    def node_of(self, slot: int) -> Node:
        """Return the master that serves a slot.

        Raises:
            redis.ClusterDownError: no node serves it.
        """
        self._ensure_known()
        node = self._slots[slot]
        if node is None:
            raise exceptions.ClusterDownError(f"no node serves slot {slot}")
        return node

    def node_at(self, address: Address) -> Node:
        """Return the node at an address, whether or not it is known. Sends nothing."""
        with self._lock:
            masters = (node for node in self._masters if node.address == address)
            node = next(masters, None) or self._others.get(address)
            if node is None:
                node = self._others[address] = Node(address, self._connect(address))
            return node

    def home(self) -> Node:
        """Return the master for commands without a key: the same one, until it fails or is no longer a master."""
        self._ensure_known()
        with self._lock:
            if self._home is None or hanging.is_avoided(self._home.address):
                if self._failed.issuperset(node.address for node in self._masters):
                    self._failed.clear()
                self._home = min(self._masters, key=self._reasons_against)
            return self._home

    def _reasons_against(self, node: Node) -> tuple[bool, ...]:
        """Return what speaks against a home node, the worst first."""
        has_answered = self._view is not None and self._view.by == node.address
        return node.address in self._failed, hanging.is_avoided(node.address), not has_answered

    @property
    def any_pool(self) -> redis.ConnectionPool:
        """The pool of the home node; that of a seed while no master is known. Sends nothing."""
        pool: redis.ConnectionPool
        with self._lock:
            node = self.home() if self._masters else self.node_at(self._seeds[0])
            pool = node.client.connection_pool
        return pool

    def address_of(self, name: str | bytes) -> Address | None:
        """Return the address of the master that serves a key; None if that is not known. Sends nothing."""
        node = self._slots[key_slot(name.encode() if isinstance(name, str) else name)]
        return None if node is None else node.address

    def serves(self, address: Address, name: str | bytes) -> bool:
        """Return whether the master at an address serves a key, as far as is known. Sends nothing."""
        return self.address_of(name) == address

    # -- what changed

    def failed(self, address: Address) -> None:
        """Record that a node does not answer: it is asked last, and is no longer the home node."""
        with self._lock:
            self._failed.add(address)
            if self._home is not None and self._home.address == address:
                self._home = None

    def recovered(self, address: Address) -> None:
        """Record that a node answers again."""
        with self._lock:
            self._failed.discard(address)

    def moved(self, slot: int, address: Address) -> None:
        """Record that a node said which other node serves a slot. Sends nothing."""
        with self._lock:
            node = self.node_at(address)
            self._known_at = time.monotonic()
            if self._slots[slot] is not node:
                slots = self._slots.copy()
                slots[slot] = node
                self._take(slots)

    def clone(self) -> Topology:
        """Return a topology that knows the same, with connections of its own. Sends nothing."""
        clone = Topology(self._seeds, self._connect)
        if self._view is not None:
            clone.learn(self._view)
        return clone

    def refresh_if_older(self, seconds: float) -> None:
        """Ask the nodes unless they were asked within the last seconds, see `refresh`."""
        if time.monotonic() - self._asked_at > seconds:
            self.refresh()

    def refresh(self, first: Address | None = None) -> None:
        """Ask the nodes, one after the other until one answers, which of them serves which slot.

        Threads that do so at the same time share one answer. If they were asked less than `REFRESH_PAUSE_S` ago, that
        answer counts.

        Args:
            first: the address to ask first.

        Raises:
            ConfigurationError: no node of a cluster answered, but a server that is not in a cluster.
            redis.ClusterDownError: the nodes that answered know no node that serves slots.
            redis.ConnectionError: no node answered, or accepted the password.
        """
        wait_s = max(0.0, min(deadline.left_s(), threading.TIMEOUT_MAX))
        if not self._asking.acquire(timeout=wait_s):
            raise exceptions.TimeoutError("the timeout of this call is over: another thread asks the nodes")
        try:
            if time.monotonic() - self._asked_at < REFRESH_PAUSE_S:
                if self._error is not None:
                    raise self._error()
                return
            try:
                self.learn(self._ask_any(first))
                self._error = None
            except (exceptions.RedisError, ConfigurationError) as exc:
                self._error = partial(type(exc), *exc.args)
                raise
            finally:
                if deadline.left_s() > 0:  # otherwise, the next one has more time to ask
                    self._asked_at = time.monotonic()
        finally:
            self._asking.release()

    def _ensure_known(self) -> None:
        if not self._masters:
            self.refresh()

    # -- asking

    def _ask_any(self, first: Address | None) -> View:
        alone: Address | None = None
        last: Exception | None = None
        for address in self._in_order(first):
            try:
                view = self._ask(address)
            except exceptions.ResponseError as exc:
                if "cluster support disabled" in str(exc):
                    alone = address
                last = exc
            except (exceptions.RedisError, OSError) as exc:
                self.failed(address)
                last = exc
            else:
                if view.ranges:
                    return view
                last = exceptions.ClusterDownError(f"{address} knows no node that serves slots")
        if alone is not None:
            raise ConfigurationError(
                f"Redis at {alone} is not in a cluster: its URL starts with delayq://, and not with delayq+cluster://"
            ) from last
        if isinstance(last, exceptions.ClusterDownError):
            raise last
        seeds = ", ".join(map(str, self._seeds))
        raise exceptions.ConnectionError(f"cannot use any node of the Redis Cluster {seeds}: {last}") from last

    def _in_order(self, first: Address | None) -> list[Address]:
        """Return all known addresses: those that failed come last."""
        known = [*([] if first is None else [first]), *(node.address for node in self._masters), *self._seeds]
        known += _last_masters.get(self._seeds, ())
        return sorted(dict.fromkeys(known), key=lambda address: address in self._failed)

    def answers(self, address: Address, within_s: float) -> bool:
        """Return whether a node answers within some seconds."""
        try:
            self._ask(address, within_s)
        except (exceptions.RedisError, OSError):
            return False
        return True

    def _ask(self, address: Address, within_s: float = PATIENCE_S) -> View:
        """Ask one node, on a connection of its own: others may wait long for theirs."""
        pool: Any = self.node_at(address).client.connection_pool
        kwargs = hurried_options(pool.connection_kwargs, within_s)
        for name in ("retry_on_timeout", "retry_on_error"):
            kwargs.pop(name, None)
        kwargs.update(_UNNAMED, protocol=2, retry=Retry(NoBackoff(), 0), health_check_interval=0)
        asked_at = time.monotonic()
        connection = pool.connection_class(**kwargs)
        try:
            connection.connect()
            connection.send_command("CLUSTER", "SLOTS")
            found = connection.read_response(disable_decoding=True)
        finally:
            connection.disconnect()
        return View(asked_at, address, tuple(slot_ranges(found, address)))

    def learn(self, view: View) -> None:
        """Take over what a node has said about the slots, if that is newer. Sends nothing."""
        with self._lock:
            self._failed.discard(view.by)
            if view.asked_at < self._known_at:  # a node has said something since
                return
            self._known_at, self._view = view.asked_at, view
            slots: list[Node | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
            has_new_id = False
            for start, end, address, id in view.ranges:
                node = self.node_at(address)
                has_new_id |= node.id != id
                node.id = id
                slots[start : end + 1] = [node] * (end + 1 - start)
            if has_new_id or slots != self._slots:
                self._take(slots)

    def _take(self, slots: list[Node | None]) -> None:
        """Replace what is known. The lock is held."""
        masters = sorted({node for node in slots if node is not None}, key=lambda node: node.address)
        former = {*self._masters, *self._others.values()} - set(masters)
        self._slots, self._masters, self._others = slots, tuple(masters), {}
        if masters:
            _last_masters[self._seeds] = tuple(node.address for node in masters)
        if self._home not in masters:
            self._home = None
        self._failed &= {*self._seeds, *(node.address for node in masters)}
        self.version += 1
        for node in former:
            node.close(in_use=False)

    # -- the end

    def close(self, *, in_use: bool = True) -> None:
        """Close all connections, see `Node.close`. Whoever goes on opens new ones."""
        with self._lock:
            nodes = [*self._masters, *self._others.values()]
        for node in nodes:
            node.close(in_use=in_use)


def slot_ranges(found: Iterable[Any], asked: Address) -> Iterable[tuple[int, int, Address, str]]:
    """Yield first and last slot, address and id of their master, from a reply to CLUSTER SLOTS.

    No host, or an empty one, means that of the node that was asked; `?` means that it is not known.
    """
    for start, end, master, *_replicas in found:
        host, port, *rest = master
        name = as_text(host or "") or asked.host
        if name != "?" and int(port):  # a node that has lost its configuration has no port
            yield int(start), int(end), Address(name, int(port)), as_text(rest[0]) if rest else ""


#: Seeds -> the masters of the cluster when one of the process's topologies was last told: all seeds may be dead since.
#: Safe in all threads without a lock: each use is one operation of a dict, atomic with the GIL and without it.
_last_masters: dict[tuple[Address, ...], tuple[Address, ...]] = {}

#: All topologies of this process. Threads only add to it; a forked child reads it, and has no other thread yet.
_topologies: weakref.WeakSet[Topology] = weakref.WeakSet()


def _after_fork() -> None:
    """Renew the locks: a thread that held one does not exist in the child."""
    for topology in list(_topologies):
        topology.make_locks()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

"""Router: finds the node that serves a hash slot, and follows a slot that moves while something is sent there."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from redis import exceptions
from redis.crc import key_slot

from celery_delayq.basics import deadline
from celery_delayq.basics.errors import ConfigurationError
from celery_delayq.cluster import hanging
from celery_delayq.cluster.command_keys import key_of
from celery_delayq.cluster.node import HURRY_S, Address, Node, NotSent
from celery_delayq.cluster.topology import Topology
from celery_delayq.queue.redirection import is_redirection, understood

T = TypeVar("T")

#: How long a command is tried while no node serves its slot, in seconds.
DEADLINE_S = 30.0

#: The pauses in between, in seconds.
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.5


class NodeHangs(exceptions.ConnectionError):
    """A node does not answer, so nothing was sent to it."""


#: So many times a command follows from node to node at once. After that, the nodes do not agree: there is a pause.
_HOPS = 4


@dataclass(frozen=True)
class Router:
    """The way to the nodes of one client. Safe to share between threads, and after a fork. It sends nothing itself.

    Attributes:
        topology: the nodes.
        home: the home node: where commands without a key go; by default that of the topology.
        deadline_s: how long a command is tried while no node serves its slot, in seconds. With 0, it goes to
            another node if it has to, but does not wait.
        is_hurried: wait for an answer of a node, or for a node that serves the slot, for `hurry_s` at most; and not at
            all for a node that hangs, as far as this process knows.
        hurry_s: see `is_hurried`; in seconds.
        hurries_elsewhere: be hurried at all nodes but `home`. Without `home`, this does nothing.
    """

    topology: Topology
    home: Address | None = None
    deadline_s: float = DEADLINE_S
    is_hurried: bool = False
    hurry_s: float = HURRY_S
    hurries_elsewhere: bool = False

    # -- nodes

    @property
    def pool(self) -> Any:
        """The pool of the home node; that of a seed while no master is known. Sends nothing."""
        if self.home is None:
            return self.topology.any_pool
        return self._connected(self.topology.node_at(self.home)).client.connection_pool

    @property
    def patience_s(self) -> float:
        """How long a command is tried while no node serves its slot, in seconds."""
        return min(self.deadline_s, self.hurry_s) if self.is_hurried else self.deadline_s

    @cached_property
    def _encode(self) -> Callable[[Any], bytes]:
        encoder: Any = self.pool.get_encoder()
        return encoder.encode  # type: ignore[no-any-return]

    def slot_of(self, key: Any) -> int:
        """Return the hash slot of a key."""
        return key_slot(bytes(self._encode(key)))

    def slot_for(self, args: Sequence[Any]) -> int | None:
        """Return the hash slot of a command; None if it has no key."""
        key = key_of(args)
        return None if key is None else self.slot_of(key)

    def node_for(self, slot: int | None, asked: Container[Address] = ()) -> Node:
        """Return the node that serves a hash slot; None: the home node.

        Args:
            slot: the slot.
            asked: nodes that this was asked for just now: what goes there goes together.

        Raises:
            redis.ClusterDownError: no node serves the slot.
            NodeHangs: this is hurried, and the node hangs.
            redis.RedisError, ConfigurationError: the nodes are not known yet, see `Topology.refresh`.
        """
        if slot is None:
            node = self.topology.home() if self.home is None else self.topology.node_at(self.home)
        else:
            node = self.topology.node_of(slot)
        if self._hurries_at(node) and node.address not in asked and not hanging.may_ask(node.address):
            raise NodeHangs(f"Redis node {node.address} does not answer")
        return self._connected(node)

    def _connected(self, node: Node) -> Node:
        """Return a node with the connections that this client uses."""
        return node.hurried(self.hurry_s) if self._hurries_at(node) else node

    def _hurries_at(self, node: Node) -> bool:
        return self.is_hurried or (self.hurries_elsewhere and self.home not in (None, node.address))

    # -- what changed

    def lost(self, node: Node, error: Exception) -> None:
        """Record that a node cannot be used, and ask the others who serves its slots. Never raises.

        Args:
            node: the node.
            error: why; its message will name the node. One that refuses connections does not hang: asking it again
                costs nothing.
        """
        name = f"Redis node {node.address}"
        if isinstance(error, exceptions.RedisError) and name not in str(error):
            error.args = (f"{name}: {error}",)
        self.topology.failed(node.address)
        if self._hurries_at(node) and isinstance(error, exceptions.TimeoutError) and deadline.left_s() > 0:
            hanging.hangs(node.address)
        self.refresh()

    def answered(self, node: Node) -> None:
        """Record that a node answers."""
        if self._hurries_at(node):
            hanging.answers(node.address)

    def refresh(self, first: Address | None = None) -> None:
        """Ask the nodes who serves which slot, see `Topology.refresh`. Never raises."""
        with suppress(exceptions.RedisError, ConfigurationError, OSError):
            self.topology.refresh(first)

    # -- following

    def follow(self, slot: int | None, send: Callable[[Node, bool], T], *, until: float | None = None) -> T:
        """Send something to the node that serves a slot, and follow redirections.

        Args:
            slot: the hash slot; None for the home node.
            send: called with the node, and with whether to send ASKING first. It raises a redirection only if the node
                has executed nothing.
            until: when to stop trying, monotonic time in seconds; by default `patience_s` from now.

        Raises:
            redis.ResponseError: one of `REDIRECTIONS` if no node served the slot in time; another one of `send`.
            redis.ConnectionError, redis.TimeoutError: a connection could not be opened, or was lost.
        """
        until = time.monotonic() + self.patience_s if until is None else until
        pause_s, hops = _FIRST_PAUSE_S, 0
        refused: dict[Address, Exception] = {}
        target: tuple[Node, bool] | None = None
        while True:
            node: Node | None = None
            try:
                node, asking = target or (self.node_for(slot), False)
                target = None
                if node.address in refused:
                    raise refused[node.address]
                return send(node, asking)
            except NotSent as exc:
                assert node is not None
                refused[node.address] = exc.error
                self.lost(node, exc.error)
                continue  # there may be another one now
            except exceptions.ResponseError as exc:
                error: Any = understood(exc)
                if not is_redirection(error):
                    raise
            if isinstance(error, exceptions.AskError) and node is not None:  # MOVED is one, too
                has_moved = isinstance(error, exceptions.MovedError)
                address = _address(error, node)
                hops += 1
                if address is not None and has_moved:
                    self.topology.moved(error.slot_id, address)
                    self.refresh(address)
                if address is not None and hops <= _HOPS:
                    target = self._connected(self.topology.node_at(address)), not has_moved
                    continue
            left_s = until - time.monotonic()
            if min(left_s, deadline.left_s()) <= 0:
                if self.patience_s and left_s <= 0:
                    error.args = (f"the cluster did not serve slot {slot} for {self.patience_s:g} s: {error}",)
                raise error
            time.sleep(max(0.0, min(pause_s, left_s, deadline.left_s())))
            pause_s, hops = min(2 * pause_s, _LONGEST_PAUSE_S), 0
            refused.clear()
            self.refresh()


def _address(error: Any, node: Node) -> Address | None:
    """Return the address that a redirection names; None if the node did not know it."""
    return None if error.host == "?" else Address(error.host or node.address.host, int(error.port))

"""Nodes of a Redis Cluster that are away: dead, or hanging. What is lost meanwhile, and how to go on without it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import redis
from redis import exceptions

from celery_delayq.basics.errors import DelayqError
from celery_delayq.queue.connections import CONNECTION_ERRORS, LOST, hurried, is_cluster

#: How long a node may take to answer, or a cluster that is down to recover, in seconds.
_PATIENCE_S = 2.0

#: How many queues an error names.
_QUEUES_NAMED = 20


@dataclass(frozen=True)
class LostQueue:
    """A queue of which nothing is known, because its node does not serve it.

    Attributes:
        queue: name of the queue.
        node: host and port of its node; None if no node has its hash slot.
        error: what the node does, after its name: "does not answer".
    """

    queue: str
    node: str | None
    error: str

    @property
    def reason(self) -> str:
        """The node and the error as one text."""
        return f"Redis node {self.node} {self.error}" if self.node else f"a Redis node {self.error}"


@dataclass(frozen=True)
class Lost:
    """What could not be read because nodes of a cluster are away. False if nothing is lost: always with one server.

    Attributes:
        queues: queues of which nothing is known, sorted by name.
        registry: why the names of delayed queues are not known; None if they are. Without them, the app's queues are
            known, and those that the caller names.
    """

    queues: tuple[LostQueue, ...] = ()
    registry: str | None = None

    def __bool__(self) -> bool:
        return bool(self.queues or self.registry)

    def __str__(self) -> str:
        named: dict[str, list[str]] = {}
        for lost in self.queues:
            named.setdefault(lost.reason, []).append(lost.queue)
        if self.registry:
            named[self.registry] = named.pop(self.registry, [])  # the last one
        sentences = [f"{reason}, so nothing is known of {_quoted(names)}" for reason, names in named.items() if names]
        if self.registry:
            sentences += [] if named[self.registry] else [self.registry]
            sentences.append(
                "It has the names of all delayed queues, so only those of the app's configuration are known"
            )
        return ". ".join(sentences)

    def __or__(self, other: Lost) -> Lost:
        """Return what is lost in either."""
        found = {lost.queue: lost for lost in (*self.queues, *other.queues)}
        return Lost(tuple(found[name] for name in sorted(found)), self.registry or other.registry)

    def check(self) -> None:
        """Check that nothing is lost.

        Raises:
            NodesAway: something is.
        """
        if self:
            raise NodesAway(self)


class NodesAway(DelayqError, exceptions.ConnectionError):
    """Nodes of a Redis Cluster do not answer, so not all queues could be read. The message names nodes and queues.

    Attributes:
        lost: what could not be read.
    """

    def __init__(self, lost: Lost) -> None:
        super().__init__(str(lost))
        self.lost = lost


def impatient(client: redis.Redis) -> redis.Redis:
    """Return a client that waits for a node of a cluster for 2 s at most, and then asks it no more for some time.

    That is the client itself, unless it is one of a cluster.
    """
    return hurried(client, deadline_s=_PATIENCE_S, hurry_s=_PATIENCE_S)


def is_away(client: redis.Redis, reply: object) -> bool:
    """Return whether a reply is the error of a node of a cluster that is away; with a single server, nothing is."""
    return isinstance(reply, CONNECTION_ERRORS) and is_cluster(client)


def execute(client: redis.Redis, pipe: Any) -> list[Any]:
    """Execute a pipeline of reading commands. On a cluster, the errors of nodes that are away are replies.

    Raises:
        redis.RedisError: any other error.
    """
    if not is_cluster(client):
        return list(pipe.execute())
    commands = list(pipe.command_stack)
    replies: list[Any] = pipe.execute(raise_on_error=False)
    pipe.raise_first_error(commands, [None if is_away(client, reply) else reply for reply in replies])
    return replies


def lost_queue(client: redis.Redis, queue: str, name: str, error: Exception) -> LostQueue:
    """Return what is lost by an error of a node that is away.

    Args:
        client: one of a cluster.
        queue: name of the queue.
        name: full name of a list of it.
        error: the error.
    """
    what = "does not answer" if isinstance(error, LOST) else "answers that the cluster is down"
    return LostQueue(queue, node_of(client, name), what)


def node_of(client: redis.Redis, name: str) -> str | None:
    """Return host and port of the node of a cluster that has a key; None if there is none, and with a single server."""
    address = client.topology.address_of(name) if is_cluster(client) else None  # type: ignore[attr-defined]
    return None if address is None else str(address)


def _quoted(names: list[str]) -> str:
    more = f" and {len(names) - _QUEUES_NAMED} more" if len(names) > _QUEUES_NAMED else ""
    noun = "queue" if len(names) == 1 else "queues"
    return f"{noun} {', '.join(map(repr, names[:_QUEUES_NAMED]))}{more}"

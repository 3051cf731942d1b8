"""What an onlooker sees of a cluster: which node has which queue, and how much is in there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.retry import Retry

from celery_delayq import DelayedQueue

#: How long a node has to answer, in seconds.
_PATIENCE_S = 0.3


@dataclass
class NodeView:
    """Some queues that are on one node, and what is in them.

    Attributes:
        queues: the queues.
        first: the address of the master that had them at first.
        address: the address of the master that has them now.
        is_lost: whether that one does not answer.
        delayed: how many messages wait there until they are due.
        ready: how many are due and wait for a worker.
        in_flight: how many a worker has, and has not acknowledged.
    """

    queues: list[str]
    first: str
    address: str
    is_lost: bool = False
    delayed: int = 0
    ready: int = 0
    in_flight: int = 0


class Nodes:
    """Asks each node with a plain client, and waits for none of them.

    Args:
        seeds: some nodes, as in "user:password@host:6379".
        queues: the queues to look at.

    Raises:
        redis.RedisError: no node answers.
    """

    def __init__(self, seeds: Iterable[str], queues: Sequence[str]) -> None:
        self._queues = queues
        self._clients: dict[str, redis.Redis] = {}
        self._login: dict[str, Any] = {}
        for seed in seeds:
            kwargs = redis.Redis.from_url(f"redis://{seed}").get_connection_kwargs()
            self._login = {name: kwargs.get(name) for name in ("username", "password")}
            self._client(f"{kwargs.get('host', 'localhost')}:{kwargs.get('port', 6379)}")
        owners = self._owners()
        self.views = [
            NodeView([queue for queue in queues if owners[queue] == address], address, address)
            for address in sorted(set(owners.values()))
        ]

    @property
    def waiting(self) -> int:
        """How many messages waited at the last look; of a node that does not answer, those at the look before."""
        return sum(view.delayed for view in self.views)

    def look(self) -> None:
        """Look at all nodes."""
        with suppress(redis.RedisError, KeyError):  # nobody answers, or some queue has no node now
            owners = self._owners()
            for view in self.views:
                view.address = owners[view.queues[0]]
        for view in self.views:
            try:
                self._count(view)
                view.is_lost = False
            except redis.RedisError:
                view.is_lost = True

    def _client(self, address: str) -> redis.Redis:
        if address not in self._clients:
            host, _, port = address.rpartition(":")
            self._clients[address] = redis.Redis(
                host=host,
                port=int(port),
                username=self._login["username"],
                password=self._login["password"],
                socket_timeout=_PATIENCE_S,
                socket_connect_timeout=_PATIENCE_S,
                retry=Retry(NoBackoff(), 0),
            )
        return self._clients[address]

    def _owners(self) -> dict[str, str]:
        """Return the address of each queue's master, as the first node that answers sees it."""
        error: Exception | None = None
        for address, client in list(self._clients.items()):
            try:
                # In two words: redis-py parses the reply to "CLUSTER SLOTS".
                ranges: Any = client.execute_command("CLUSTER", "SLOTS")
            except redis.RedisError as exc:
                error = exc
                continue
            host = address.rpartition(":")[0]
            for _, _, *nodes in ranges:  # replicas, too: they may be all that is left to ask
                for node in nodes:
                    self._client(_address(node, host))
            slots = {queue: key_slot(queue.encode()) for queue in self._queues}
            return {
                queue: _address(master, host)
                for queue, slot in slots.items()
                for first, last, master, *_ in ranges
                if first <= slot <= last
            }
        raise redis.ConnectionError(f"no node of the cluster answers: {error}")

    def _count(self, view: NodeView) -> None:
        client = self._client(view.address)
        delayed_queues = [DelayedQueue(client, queue) for queue in view.queues]
        with client.pipeline(transaction=False) as pipe:
            for queue in delayed_queues:
                pipe.zcard(queue.keys.timeout_set)
                pipe.llen(queue.name)
                pipe.zrange(queue.keys.consumers, 0, -1)
            replies = pipe.execute()
            for queue, consumers in zip(delayed_queues, replies[2::3], strict=True):
                for consumer in consumers:
                    pipe.llen(queue.keys.in_flight(consumer.decode()))
            in_flight = sum(pipe.execute())
        view.delayed, view.ready, view.in_flight = sum(replies[::3]), sum(replies[1::3]), in_flight

    def close(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            client.close()


def _address(node: Sequence[Any], asked: str) -> str:
    host = node[0].decode() if node[0] else asked
    return f"{host}:{node[1]}"

"""The connections of a channel, and what its lists are called."""

from __future__ import annotations

from logging import getLogger
from typing import TYPE_CHECKING, Any

import redis
from kombu.transport import redis as kombu_redis

from celery_delayq.options.settings import HEALTH_CHECK_S, SOCKET_TIMEOUT_S
from celery_delayq.queue.connections import passing_refusal
from celery_delayq.queue.delayed_queue import DelayedQueue
from celery_delayq.queue.keys import registry
from celery_delayq.transport.known import known
from celery_delayq.transport.replicas import Replicas, ReplicatedClient
from celery_delayq.transport.wrong_server import refuse_wrong_server

if TYPE_CHECKING:  # which a producer need not load
    from celery_delayq.transport.protocols import Connection

#: How many connections a pool needs at least: for a transaction and what it reads, and for threads that acknowledge.
_LEAST_CONNECTIONS = 4

logger = getLogger(__name__)


class _Once:
    """kombu's `cached_property` without its lock, which all channels of the process share, see `Connector.channel`.

    A channel belongs to one thread.
    """

    def __init__(self, of_kombu: Any) -> None:
        self._make, self._name = of_kombu.func, of_kombu.attrname

    def __get__(self, channel: Any, owner: type) -> Any:
        if channel is None:
            return self
        value = channel.__dict__[self._name] = self._make(channel)
        return value


class ConnectingChannel(kombu_redis.Channel):
    """kombu's Redis channel, whose connections are known, on one pool for all channels of a connection.

    Overrides these hooks of kombu (5.6 and 5.7): `client`, `subclient`, `_create_client`, `_connparams`, `pool`.
    """

    connection_class = known(kombu_redis.Channel.connection_class)
    connection_class_ssl = known(kombu_redis.Channel.connection_class_ssl)

    client = _Once(kombu_redis.Channel.client)
    subclient = _Once(kombu_redis.Channel.subclient)

    #: Longest wait for a reply, in seconds. kombu has no limit: a publisher would hang for as long as the server does.
    socket_timeout: float | None = SOCKET_TIMEOUT_S

    #: How often an idle connection speaks, in seconds.
    health_check_interval: float = HEALTH_CHECK_S

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        self._transport: Connection = connection
        self._plain_client: redis.Redis | None = None
        self._kombu_client: redis.Redis | None = None
        self._delayed_queues: dict[str, DelayedQueue] = {}
        super().__init__(connection, **kwargs)

    @staticmethod
    def slot_of(key: str) -> int:
        """Return a number that is the same for keys that may be in one command: on one server, for all."""
        return 0

    def broker_list(self, queue: str, priority: int) -> str:
        """Return the full name of a queue's list for a priority, with `global_keyprefix`."""
        return f"{self.global_keyprefix}{self._q_for_pri(queue, priority)}"

    def broker_lists(self, queue: str) -> list[str]:
        """Return the full names of all lists of a queue, one per priority step."""
        return [self.broker_list(queue, priority) for priority in self.priority_steps]

    def queue_of(self, plain: str) -> str:
        """Return the queue of a list for a priority; without the key prefix, separator and priority."""
        return plain

    def parse(self, name: str) -> tuple[str, int]:
        """Return the queue and the priority step of the list with this full name.

        Source: kombu 5.7 `transport.redis.Channel._q_for_pri`.
        """
        plain = name.removeprefix(self.global_keyprefix)
        queue, _, step = plain.rpartition(self.sep)
        return (self.queue_of(queue), int(step)) if queue and step.isdecimal() else (plain, 0)

    def first_list(self, name: str) -> str:
        """Return the full name of the list for priority 0 of the queue to which a list belongs."""
        return f"{self.global_keyprefix}{self.parse(name)[0]}"

    def delayed_queue(self, broker_list: str) -> DelayedQueue:
        """Return the delayed queue of a broker list, on this channel's connections."""
        client = self.plain_client
        if broker_list not in self._delayed_queues:
            self._delayed_queues[broker_list] = DelayedQueue(
                client,
                broker_list,
                mirror_list=self._transport.options["mirror_list"],
                keyprefix=self.global_keyprefix,
                writer=self.writer,
            )
        return self._delayed_queues[broker_list]

    def check_writable(self) -> None:
        """Make sure that the server accepts writes.

        Raises:
            redis.ResponseError: it refuses them for now, see `passing_refusal`.
            ConfigurationError: it is a node of a cluster, or a Redis Sentinel.
        """
        try:
            self.plain_client.zrem(registry(self.global_keyprefix), "")  # "" is never in it
        except redis.ResponseError as exc:  # no permission, for example
            refuse_wrong_server(exc, self.plain_client)
            if passing_refusal(exc):
                raise
            logger.debug("Cannot check whether Redis accepts writes: %s", exc)

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        params: dict[str, Any] = super()._connparams(asynchronous=asynchronous)
        # redis-py would connect again by itself, and send a command twice. What waits for messages would never know.
        params.pop("retry_on_timeout", None)
        params["connection_class"] = known(params["connection_class"])  # kombu has a class of its own for sockets
        return params

    @property
    def pool(self) -> Any:
        """The pool for commands, see kombu. All channels of a connection share it: they belong to one thread."""
        transport = self._transport
        if transport.pool is None:
            transport.pool = pool = self._get_pool()
            pool.max_connections = max(pool.max_connections, _LEAST_CONNECTIONS)
        return transport.pool

    @property
    def batch_client(self) -> Any:
        """A client for `Batch.send`: kombu's own, which adds the key prefix."""
        return self._create_client()

    @property
    def plain_client(self) -> redis.Redis:
        """A client on this channel's pool that adds no key prefix; kombu's own client adds `global_keyprefix`."""
        pool = self.pool
        if self._plain_client is None or self._plain_client.connection_pool is not pool:
            credentials = pool.connection_kwargs.get("credential_provider")
            self._plain_client = redis.Redis(connection_pool=pool, credential_provider=credentials)
            self._delayed_queues.clear()
        return self._plain_client

    @property
    def must_replicate(self) -> Replicas | None:
        """The replicas that must have each write of a caller; None for none."""
        options = self._transport.options
        return Replicas(options["replicas"], round(options["replicas_timeout"] * 1000)) if options["replicas"] else None

    @property
    def writer(self) -> Any:
        """A client for what a caller takes for done: its writes wait for replicas, if the options want that."""
        replicas = self.must_replicate
        return self.plain_client if replicas is None else ReplicatedClient(self.plain_client, replicas)

    def _create_client(self, asynchronous: bool = False) -> Any:
        """Return a client for kombu's own commands, the same each time.

        kombu creates one for every command, even for each acknowledgement, and each time that costs another command.
        """
        if asynchronous:
            return super()._create_client(asynchronous=True)
        if self._kombu_client is None or self._kombu_client.connection_pool is not self.pool:
            self._kombu_client = super()._create_client()
        return self._kombu_client

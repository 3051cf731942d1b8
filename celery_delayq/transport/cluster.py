"""ClusterChannel: a channel to a Redis Cluster. Each command goes to the node that owns its key.

kombu's Pub/Sub, and commands without a key, go to a home node: any master, as long as it answers.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from logging import getLogger
from typing import Any

from kombu.transport import redis as kombu_redis
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.retry import Retry

from celery_delayq.basics.errors import ConfigurationError
from celery_delayq.basics.weak import call_of
from celery_delayq.cluster.client import Routed
from celery_delayq.cluster.names import check_name, priority_list, queue_of
from celery_delayq.cluster.node import Address, pool_at
from celery_delayq.cluster.pipeline import RoutedPipeline
from celery_delayq.cluster.topology import PATIENCE_S, Topology
from celery_delayq.queue.connections import CONNECTION_ERRORS
from celery_delayq.queue.redirection import REDIRECTIONS
from celery_delayq.transport.channel import DelayedChannel
from celery_delayq.transport.known import NodeConnection, NodeSSLConnection
from celery_delayq.transport.node_fetchers import NodeFetchers
from celery_delayq.transport.nodes import Nodes
from celery_delayq.transport.qos import FetchingQoS
from celery_delayq.transport.replies import Replies

logger = getLogger(__name__)


class ClusterQoS(FetchingQoS):
    """Looks for no messages that kombu's own transport left behind: it cannot use a cluster."""

    def restore_visible(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""


class ClusterChannel(DelayedChannel):
    """A channel whose queues are on the nodes of a Redis Cluster, by their hash slots.

    Overrides these hooks of kombu (5.6 and 5.7) besides those of `DelayedChannel`: `_q_for_pri`, `_get_pool`,
    `supports_batch_publish`, and the prefixes of kombu's own keys, which have to share a slot.
    """

    QoS = ClusterQoS

    connection_class = NodeConnection
    connection_class_ssl = NodeSSLConnection

    keyprefix_queue = "{_kombu.binding}.%s"
    keyprefix_binding_deadlines = "{_kombu.binding}_deadlines"
    keyprefix_binding_permanent = "{_kombu.binding}_permanent.%s"

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        self._routed: Routed | None = None
        #: Clients for kombu's own commands, by whether they are hurried.
        self._kombu_clients: dict[bool, Any] = {}
        #: The version of the topology for which `follow_home` has looked.
        self._followed = 0
        #: Whether kombu's commands do not wait for a node that hangs.
        self._is_hurrying = False
        super().__init__(connection, **kwargs)
        #: Reads the queues that are consumed without acknowledgement.
        self.replies = Replies(self)

    # -- names

    @staticmethod
    def slot_of(key: str) -> int:
        """Return the hash slot of a key."""
        return int(key_slot(key.encode()))

    def _new_queue(self, queue: str, auto_delete: bool = False, **kwargs: Any) -> None:
        check_name(queue, self.global_keyprefix)
        super()._new_queue(queue, auto_delete=auto_delete, **kwargs)

    def _q_for_pri(self, queue: str, pri: int) -> str:
        """Return the name of a queue's list for a priority, see kombu. All lists of a queue share its slot."""
        step = self.priority(pri)
        return priority_list(queue, f"{self.sep}{step}" if step else "", self.global_keyprefix)

    def queue_of(self, plain: str) -> str:
        """Return the queue of a list for a priority, see `_q_for_pri`."""
        return queue_of(plain, self.global_keyprefix)

    # -- connections

    @property
    def nodes(self) -> Nodes:
        """What the connection knows of the nodes; all its channels share it."""
        transport = self._transport
        if transport.nodes is None:
            seen = Topology(self._seeds(), partial(pool_at, self._connparams()))
            transport.nodes = Nodes(seen, partial(call_of, weakref.ref(transport), "on_nodes_changed"))
        return transport.nodes

    @property
    def topology(self) -> Topology:
        """The nodes of the cluster."""
        return self.nodes.topology

    def _seeds(self) -> list[Address]:
        default_port = self._transport.default_port  # a closed channel has no connection
        return [Address(host, port or default_port) for host, port in self._transport.client.hosts]

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        params: dict[str, Any] = super()._connparams(asynchronous=asynchronous)
        if params["db"]:
            raise ConfigurationError(
                f"Redis Cluster has database 0 only: remove /{params['db']} from the broker URL. To keep apps apart, "
                "use the transport option global_keyprefix"
            )
        # Nothing is sent twice: a lost reply may be that of a command that was executed.
        params["retry"] = Retry(NoBackoff(), 0)
        return params

    def _get_pool(self, asynchronous: bool = False) -> Any:
        params = self._connparams(asynchronous=asynchronous)
        self.keyprefix_fanout: str = self.keyprefix_fanout.format(db=params["db"])
        if asynchronous and params["socket_timeout"]:
            # redis-py connects a subscription again by itself, to the same node, which may hang.
            params["socket_timeout"] = min(params["socket_timeout"], PATIENCE_S)
        return pool_at(params, self.topology.home().address)

    @property
    def pool(self) -> Any:
        """The pool of the home node."""
        return self.plain_client.connection_pool

    @property
    def plain_client(self) -> Routed:
        """A client that sends each command to its node, and adds no key prefix."""
        if self._routed is None or self._routed.topology is not self.topology:
            self._routed = Routed(self.topology)
            self._kombu_clients = {}
            self._delayed_queues.clear()
        return self._routed

    def _create_client(self, asynchronous: bool = False) -> Any:
        if asynchronous:
            return super()._create_client(asynchronous=True)
        topology = self.plain_client.topology
        is_hurried = self._is_hurrying or bool(self._transport.stations)
        if is_hurried not in self._kombu_clients:
            made: Any = (PrefixedRouted if self.global_keyprefix else Routed)(topology, is_hurried=is_hurried)
            made.global_keyprefix = self.global_keyprefix
            self._kombu_clients[is_hurried] = made
        return self._kombu_clients[is_hurried]

    @contextmanager
    def hurrying(self) -> Iterator[None]:
        """Do not wait for a node that hangs, while the block lasts: for what can be done later, or elsewhere."""
        before, self._is_hurrying = self._is_hurrying, True
        try:
            yield
        finally:
            self._is_hurrying = before

    @property
    def supports_batch_publish(self) -> bool:
        """Whether `Producer.batch` sends its messages together, see kombu 5.7.

        kombu denies it to any connection that has a `Retry`. Ours tries once.
        """
        return True

    def check_writable(self) -> None:
        """Do nothing: a replica in a cluster sends its clients to the master."""

    # -- kombu's own keys

    @staticmethod
    def is_for_later(exc: BaseException) -> bool:
        """Return whether what has met an error is done later: its node refuses it, is away, or gives the slot away."""
        return isinstance(exc, (*CONNECTION_ERRORS, *REDIRECTIONS)) or DelayedChannel.is_for_later(exc)

    def bind_postponed(self) -> None:
        """Do nothing: see `NodeFetchers`."""

    def _put_fanout(self, exchange: str, message: dict[str, Any], routing_key: str, **kwargs: Any) -> None:
        with self.hurrying():  # any node does
            super()._put_fanout(exchange, message, routing_key, **kwargs)

    # -- consuming

    @cached_property
    def fetchers(self) -> NodeFetchers:
        """Fetch what this channel consumes, see `DelayedChannel`."""
        return NodeFetchers(self)

    @property
    def active_queues(self) -> list[str]:
        """The queues that kombu reads with BRPOP: none, since they are on several nodes. See `Replies`."""
        return []

    @property
    def reply_queues(self) -> list[str]:
        """The queues that are consumed without acknowledgement."""
        return super().active_queues

    def wait_for_replies(self) -> None:
        """Wait for messages of queues that are consumed without acknowledgement, see `Replies`."""
        self._follow_home()
        self.replies.wait()

    def _receive(self) -> Any:
        self._follow_home()
        if "subclient" not in self.__dict__:
            return None
        try:
            return super()._receive()
        except self.connection_errors:
            self.leave_home()
            return None

    def keep_subscription(self) -> None:
        """Let the subscription speak, see `DelayedChannel`; subscribe at another node if it is lost."""
        try:
            super().keep_subscription()
        except self.connection_errors:
            self.leave_home()

    def _follow_home(self) -> None:
        """Leave a node that is no longer a master: redis-py would connect again to it, and it may hang."""
        version = self.topology.version
        if version == self._followed:
            return
        self._followed = version
        client = self.__dict__.get("subclient")
        connection = None if client is None else client.connection
        if connection is not None:
            address = Address(connection.host, int(connection.port))
            if all(node.address != address for node in self.topology.masters()):
                self.leave_home()

    def leave_home(self) -> None:
        """Subscribe at another node: kombu does so before it polls next."""
        client = self.__dict__.pop("subclient", None)
        self._in_listen = None
        connection = None if client is None else client.connection
        if connection is not None:
            connection.disconnect()
            self.topology.failed(Address(connection.host, int(connection.port)))
        self._async_pool = None
        self.nodes.watch()

    def close(self) -> None:
        """Close, see kombu."""
        if not self.closed:
            self.replies.close()
        super().close()

    def _after_fork(self) -> None:
        self.replies = Replies(self)
        super()._after_fork()


class PrefixedRouted(kombu_redis.GlobalKeyPrefixMixin, Routed):
    """kombu's client that adds `global_keyprefix`, for a cluster."""

    global_keyprefix: str

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> Any:
        """Return a pipeline that adds the prefix, see redis-py."""
        pipe = PrefixedPipeline(self.router, self.response_callbacks, transaction, shard_hint)
        pipe.global_keyprefix = self.global_keyprefix
        return pipe


class PrefixedPipeline(kombu_redis.GlobalKeyPrefixMixin, RoutedPipeline):
    """The same for a pipeline."""

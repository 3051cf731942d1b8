"""The kombu transport: kombu's Redis transport, with delayed queues.

    channel     fetches messages through its fetchers
    publishing  its base: declares queues and publishes messages
    connecting  and its base: connections, and names of lists
    publisher   recognizes a publication that is repeated
    eta         reads when a message is due
    ahead       messages that came before they are due, by the lead of the transfer
    eta_tasks   sends tasks that are fetched long before their eta back to Redis
    fetchers    those of one channel, one for each server
    fetcher     fetches messages from one server, or waits for them: as many as the prefetch limit allows
    rounds      asks one list after the other
    lists       from which lists, in which order
    delivery    delivers what was fetched
    paused      the queues that it does not fetch from
    program     what it asks the worker, or another program that consumes
    protocols   what channel, transport and poller know of each other
    slots       connections that wait for messages
    rare_lists  lists that are rarely used, which take no connection
    waits       those of one fetcher
    station     what a connection needs at one server: a consumer, its watchdog, and such lists
    stations    those of one connection; who holds a message
    loops       the transfer loops of one connection
    poller      kombu's poller, with those connections
    qos         acknowledges messages
    redelivery  rewrites messages that are delivered again
    requeue     lets a task that has killed its process, or rejected its message, run again later
    last_delivery  delivers a message alone before it becomes a dead letter
    refusal     sets aside messages that no consumer can take
    urls        the URL schemes, and how kombu reads them
    connector   connections for keepers and planners
    threads     in which calls of coroutines wait
    sentinel    leaves a master when Sentinel has named another one
    known       the connections of this process: a master may have to be left, and a forked child closes its copies
    wrong_server  says so if the server is of another kind than the URL says

and for Redis Cluster:

    cluster        a channel whose queues are on several nodes
    nodes          what a connection knows of the nodes
    watch          keeps that up to date
    node_fetchers  the fetchers of a channel, one for each node: none holds up another
    replies        reads queues without acknowledgement, each on its node

A connection that consumes tasks is a `Consumer` with a lease, which a watchdog renews.

It also transfers. In a worker, a bootstep starts the transfer loop with the app's settings. Without that bootstep (a
worker without `DelayQ(app)`, or a consumer that is not Celery's), the transport starts the loop itself before it
delivers the first message.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from logging import getLogger
from typing import TYPE_CHECKING, Any

import kombu
from kombu.exceptions import LimitExceeded, OperationalError
from kombu.transport import redis as kombu_redis
from redis import exceptions

from celery_delayq.basics import deadline
from celery_delayq.basics.errors import ConfigurationError
from celery_delayq.options.settings import check_master_name, check_transport_options, check_urls
from celery_delayq.queue.connections import NOT_SERVING, Connect, is_full, passing_refusal
from celery_delayq.schemes import register
from celery_delayq.transport.bindings import Bindings
from celery_delayq.transport.channel import DelayedChannel
from celery_delayq.transport.known import close_sentinels
from celery_delayq.transport.loops import Loops
from celery_delayq.transport.messages import is_cancelled
from celery_delayq.transport.poller import Poller
from celery_delayq.transport.program import Program
from celery_delayq.transport.publisher import Publisher
from celery_delayq.transport.replicas import NotReplicated
from celery_delayq.transport.stations import Stations
from celery_delayq.transport.urls import SeveralHosts, ensure_tls, hosts_of, name_whole, what_to_write

if TYPE_CHECKING:  # what only a consumer, or a cluster, needs is imported when one needs it
    from celery_delayq.fetching.consumer import Consumer
    from celery_delayq.queue.keeper import Keeper
    from celery_delayq.transfer.loop import TransferLoop
    from celery_delayq.transport.ahead import Ahead
    from celery_delayq.transport.last_delivery import LastDelivery
    from celery_delayq.transport.nodes import Nodes
    from celery_delayq.transport.paused import Paused

__all__ = ["ClusterTransport", "SentinelTransport", "Transport", "register"]

logger = getLogger(__name__)

#: How long to wait for the loops of a connection that is closed, in seconds.
_LOOP_ENDS_S = 1.0

#: Options that kombu's Redis transport reads, in its channels and elsewhere.
KOMBU_OPTIONS = (
    *kombu_redis.SentinelChannel.from_transport_options,
    *("polling_interval", "reauth_check_interval", "wait_for_connection", "credential_provider"),
)


class Transport(kombu_redis.Transport):
    """`delayq://` and `delayqs://`: kombu's Redis transport, with delayed queues.

    `driver_type` stays `redis`: Celery uses it to choose what it does for Redis brokers.

    Overrides these hooks of kombu (5.6 and 5.7): `establish_connection`, `register_with_event_loop`, `drain_events`,
    `_deliver`, `close_connection`.

    Raises:
        ConfigurationError: one of our options in `broker_transport_options` is misspelt or has a wrong value, or
            `master_name` is missing there and the URL is one of Sentinels.
    """

    Channel = DelayedChannel

    #: What the hosts of the URL are, unless the URL says so: "sentinel", "cluster", or one server.
    hosts = ""

    #: kombu would take a replica's reply for an error of the message, and Celery's worker would end.
    connection_errors = (*kombu_redis.Transport.connection_errors, *NOT_SERVING)

    #: kombu sends a message again that too few replicas have.
    channel_errors = (*kombu_redis.Transport.channel_errors, NotReplicated)

    def __init__(self, client: Any, **kwargs: Any) -> None:
        self.options = check_transport_options(client.transport_options, others=KOMBU_OPTIONS)
        #: List -> time until an unused list expires, in ms; for queues declared with `expires` (kombu 5.7).
        self.expires_ms: dict[str, int] = {}
        #: The pool that all channels share, see `DelayedChannel.pool`.
        self.pool: Any = None
        #: Recognizes what is published again.
        self.publisher = Publisher.of(client)
        #: The nodes of a cluster; None until a channel needs them, and with a single server.
        self.nodes: Nodes | None = None
        self.loops = Loops(self)
        #: Makes the event loop call nothing of this connection any more.
        self._leave_loop: Callable[[], object] = bool
        self.stations = Stations()
        #: Server -> keeper.
        self.keepers: dict[str, Keeper] = {}
        #: What ends with this transport, if it is collected and nobody has closed it.
        self._to_end: weakref.WeakSet[Consumer | TransferLoop] = weakref.WeakSet()
        weakref.finalize(self, _end, self._to_end).atexit = False
        self._program = Program()
        self._has_event_loop = False
        ensure_tls(client)
        name_whole(client)
        hosts = hosts_of(client)
        if hosts:
            client = SeveralHosts(client, hosts)  # which `hosts_of` does not tell from one server
        if hosts == "cluster":
            from celery_delayq.transport.cluster import ClusterChannel

            self.Channel = ClusterChannel
        elif hosts == "sentinel":
            from celery_delayq.transport.sentinel import DelayedSentinelChannel

            self.Channel = DelayedSentinelChannel
            self.default_port = kombu_redis.SentinelTransport.default_port
            check_master_name(client.transport_options, "broker_transport_options", "the broker URL is one")
        #: Of queues to exchanges.
        self.bindings = Bindings(self.Channel.is_for_later)
        super().__init__(client, **kwargs)
        self.cycle = Poller()

    @cached_property
    def ahead(self) -> Ahead:
        """The messages that are not due yet."""
        from celery_delayq.transport.ahead import Ahead

        return Ahead()

    @cached_property
    def paused(self) -> Paused:
        """The queues that it does not fetch from."""
        from celery_delayq.transport.paused import Paused

        return Paused(self.cycle)

    @cached_property
    def last_delivery(self) -> LastDelivery:
        """Delivers a message alone before it becomes a dead letter."""
        from celery_delayq.transport.last_delivery import LastDelivery

        return LastDelivery(self.options["delivery_limit"], self._is_busy, lambda delay_s: self.cycle.wake_in(delay_s))

    @property
    def program(self) -> Program:
        """Who consumes; set it before the first message is fetched."""
        return self._program

    @program.setter
    def program(self, program: Program) -> None:
        self._program = program
        self.cycle.delivers_some = program.fetches_ahead

    def _is_busy(self) -> bool:
        is_busy = self.program.is_busy()
        return any(consumer.held for consumer in self.stations.consumers) if is_busy is None else is_busy

    @property
    def fetches_ahead(self) -> bool:
        """Whether to fetch more than one message at a time if there is no prefetch limit, see `Program`."""
        return self._has_event_loop or self.program.fetches_ahead

    # -- the servers of this connection

    def keeper(self, server: str, connect: Connect) -> Keeper:
        """Return the keeper at a server, for its transfer loop and its consumer; made on first use.

        Args:
            server: its name; "" is that of a single server.
            connect: see `Keeper`.
        """
        from celery_delayq.queue.keeper import Keeper

        if server not in self.keepers:
            self.keepers[server] = Keeper(connect)
        return self.keepers[server]

    def ends_with(self, it: Consumer | TransferLoop) -> None:
        """End this, too, if the transport is collected and nobody has closed it."""
        self._to_end.add(it)

    @property
    def slot_of(self) -> Callable[[str], int]:
        """Returns a number that is the same for keys that may be in one command. Threads may keep it."""
        return self.Channel.slot_of

    def is_full(self, server: str) -> bool:
        """Return whether a server has no connection left for its transfer loop or its watchdog."""
        return self.loops.is_full(server) or self.stations.is_full(server)

    def after_fork(self) -> None:
        """Forget what belongs to the parent of a forked child, see `known`."""
        self.stations.forget()
        self.keepers = {}
        self.nodes = self.pool = None

    def on_nodes_changed(self) -> None:
        """Make all channels look which nodes there are. Safe in any thread."""
        for channel in list(self.channels or ()):
            if channel.made_fetchers is not None:
                channel.fetchers.on_nodes_changed()
        self.cycle.wake()

    def loop_for(self, message: Any) -> TransferLoop | None:
        """Return the loop that transfers to the list of a kombu message that was fetched; None if there is none."""
        held = self.stations.held(message.delivery_tag)
        return None if held is None else self.loops.of(held.name)

    def task_lists(self) -> set[str]:
        """Return the names of all broker lists that this connection consumes for tasks. Safe in any thread."""
        return {
            name
            for channel in list(self.channels or ())
            for queue in list(channel.task_queues.values())
            for name in channel.broker_lists(queue)
        }

    # -- kombu's hooks

    def establish_connection(self) -> Any:
        """Connect, see kombu; refuse a server without writes, unless `may_be_replica` is set on the kombu connection.

        A replica, for example, must be refused here: only if the connection fails does kombu wait longer each time and
        try the next URL. Otherwise a worker would connect to a demoted master several times a second, and a publisher
        would give up at once.

        Raises:
            redis.ReadOnlyError: the server is a replica.
            redis.ConnectionError: the server is away, has no connection left, or refuses writes for now.
        """
        try:
            connection = super().establish_connection()
            if not getattr(self.client, "may_be_replica", False):
                channel = self._avail_channels[-1]
                try:
                    channel.check_writable()
                except Exception:
                    self._avail_channels.remove(channel)
                    channel.close()
                    self.disconnect_pool()
                    raise
            return connection
        except exceptions.ResponseError as exc:
            if isinstance(exc, NOT_SERVING) or not passing_refusal(exc):
                raise
            raise exceptions.ConnectionError(passing_refusal(exc)) from None
        except exceptions.ConnectionError as exc:
            if not is_full(exc):
                raise
            text = f"{exc}, as its setting maxclients says. Raise it, or see docs/redis.md"
            raise exceptions.ConnectionError(text) from exc

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Deliver messages from an event loop, see kombu."""
        self.cycle.unregister = loop.remove
        self.cycle.call_later = loop.call_later
        self._has_event_loop = True
        if kombu.VERSION < (5, 7):
            loop.call_soon = partial(_call_soon, loop, self.cycle)
        before = set(loop.on_tick)
        super().register_with_event_loop(connection, loop)
        # kombu's function registers all descriptors anew in each turn; 5.6 removes it when a subscription is lost.
        loop.on_tick.intersection_update(before)
        turn = partial(self.cycle.turn, loop, self.on_readable)
        loop.on_tick.add(turn)
        self._leave_loop = partial(loop.on_tick.discard, turn)
        # Only when the event loop runs: a worker registers before it consumes, and before its bootsteps start.
        loop.call_soon(self.loops.ensure)

    def drain_events(self, connection: Any, timeout: float | None = None) -> Any:
        """Deliver one message, see kombu."""
        self.loops.ensure()
        return super().drain_events(connection, timeout=timeout)

    def _deliver(self, message: Any, queue: str) -> None:
        """Deliver a message, see kombu; drop one without a task, which nobody has to acknowledge here."""
        if not is_cancelled(message):
            super()._deliver(message, queue)

    def close_connection(self, connection: Any) -> None:
        """Close all channels, and end the transfer loop and the leases.

        If the server does not answer, this takes one `socket_timeout`, as it does with kombu's own transport.
        """
        loops, until = self.loops.all, time.monotonic() + _LOOP_ENDS_S
        self.loops.stop(timeout_s=0)
        self._leave_loop()
        try:
            super().close_connection(connection)  # it raises where the server is away
        finally:
            self.stations.close(self.program.running_tags)
            for loop in loops:  # on a cluster, one that reads the registry would open a connection that nobody closes
                loop.stop(timeout_s=max(0.0, until - time.monotonic()))
            self.disconnect_pool()
            self.cycle.poller = None  # its descriptor must not wait for the garbage collector

    def disconnect_pool(self) -> None:
        """Close the connections that all channels share."""
        pool, self.pool = self.pool, None
        if pool is not None:
            pool.disconnect()
            close_sentinels(pool)
        nodes, self.nodes = self.nodes, None
        if nodes is not None:
            nodes.close()


def _end(them: weakref.WeakSet[Consumer | TransferLoop]) -> None:
    """End what threads look after, without waiting for them."""
    for it in them:
        it.stop(timeout_s=0) if hasattr(it, "stop") else it.end()


def _call_soon(loop: Any, cycle: Poller, callback: Any, *args: Any) -> Any:
    """Call `Hub.call_soon`, and wake the event loop, which kombu 5.6 does not do itself.

    The threads of Celery's pool acknowledge this way. Without the wake-up, the worker would wait although it may
    already fetch.
    """
    promise = type(loop).call_soon(loop, callback, *args)
    cycle.wake()
    return promise


class SentinelTransport(Transport):
    """`delayq+sentinel://`, also with TLS: the transport's name for kombu after it switched to another URL."""

    hosts = "sentinel"


class ClusterTransport(Transport):
    """`delayq+cluster://`, also with TLS: the transport's name for kombu after it switched to another URL."""

    hosts = "cluster"


def is_in_memory(app: Any) -> bool:
    """Return whether the broker of an app is `memory://`, which is for tests."""
    with acquired(app) as connection:
        return bool(connection.transport.driver_type == "memory")


@contextmanager
def connected(app: Any) -> Iterator[Any]:
    """Give the channel of a connection of the app's pool. It tries to connect twice, two seconds apart.

    Raises:
        kombu.exceptions.OperationalError: the server cannot be reached, or the `timeout` of the call is over.
        ConfigurationError: see `require_transport`.
    """
    with acquired(app) as connection:
        require_transport(app, connection)
        connection.ensure_connection(deadline.raise_rather_than_wait, max_retries=1)
        yield connection.default_channel


def acquired(app: Any) -> Any:
    """Return a connection of the app's pool, for a `with` block, which gives it back.

    Raises:
        kombu.exceptions.OperationalError: all are in use until the `timeout` of the call is over.
    """
    if not deadline.is_set():
        return app.connection_or_acquire()
    try:
        return app.pool.acquire(block=True, timeout=deadline.at_most(None))
    except LimitExceeded as exc:
        raise OperationalError(f"all {exc} connections of the pool are in use, see broker_pool_limit") from exc


def require_transport(app: Any, connection: Any) -> None:
    """Refuse a connection to a broker that is not `delayq://`.

    Raises:
        ConfigurationError: the broker URL is not a `delayq://` URL; the error says what to write.
    """
    check_urls(app)
    if connection.transport.driver_type == "memory":
        raise ConfigurationError(
            f"the broker of app {app.main!r} is {connection.as_uri()}, which cannot do this: "
            "the fixtures of celery_delayq.testing start a Redis for tests"
        )
    if not isinstance(connection.transport, Transport):
        raise ConfigurationError(": ".join(what_to_write(app, connection, f"the broker of app {app.main!r}")))

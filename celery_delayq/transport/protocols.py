"""What the objects of one kombu connection know of each other. The poller, the transport and the channels are kombu's.

Cycle         the poller, see `Poller`
Connection    the transport, see `Transport`
Channel       a channel, see `DelayedChannel`
Pollable      a connection that the poller polls
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import redis

    from celery_delayq.cluster.client import Routed
    from celery_delayq.cluster.topology import Topology
    from celery_delayq.fetching.consumer import Consumer
    from celery_delayq.queue.delayed_queue import DelayedQueue
    from celery_delayq.transfer.loop import TransferLoop
    from celery_delayq.transport.ahead import Ahead
    from celery_delayq.transport.bindings import Bindings
    from celery_delayq.transport.expiry import Expiry
    from celery_delayq.transport.last_delivery import LastDelivery
    from celery_delayq.transport.nodes import Nodes
    from celery_delayq.transport.program import Program
    from celery_delayq.transport.publisher import Publisher
    from celery_delayq.transport.rare_lists import RareLists
    from celery_delayq.transport.station import Station


class Pollable(Protocol):
    """A connection that waits for something."""

    def fileno(self) -> int:
        """Return its descriptor; -1 once it is lost."""
        ...


class Owner(Protocol):
    """Reads from a connection that waits."""

    def on_readable(self, slot: Any) -> bool | None:
        """Read from it; return whether a message was delivered."""
        ...


class Cycle(Protocol):
    """Polls the connections that wait, and lets channels fetch. For the polling thread, unless stated otherwise."""

    @property
    def is_consuming(self) -> bool:
        """Whether one of the channels waits for messages, or has undelivered ones."""
        ...

    @property
    def call_later(self) -> Callable[[float, Callable[[], None]], Any]:
        """Calls a function after a delay in seconds, if there is an event loop."""
        ...

    def add_slot(self, slot: Pollable, owner: Owner) -> None:
        """Poll a connection; `owner.on_readable` is called with it."""
        ...

    def remove_slot(self, slot: Pollable) -> None:
        """Stop polling a connection, before it disconnects."""
        ...

    def wake(self) -> None:
        """Fetch or deliver now. Safe in any thread."""
        ...

    def wake_in(self, delay_s: float) -> None:
        """Fetch after a delay in seconds, or earlier."""
        ...

    def on_told(self) -> None:
        """Let all channels look at their rarely used lists."""
        ...


class Connection(Protocol):
    """The transport of one connection.

    Attributes:
        nodes: those of a cluster; None until a channel needs them, and with a single server.
        pool: the connection pool that all channels share; None until a channel needs it.
    """

    nodes: Nodes | None
    pool: Any

    @property
    def cycle(self) -> Cycle:
        """Its poller."""
        ...

    @property
    def program(self) -> Program:
        """Who consumes."""
        ...

    @property
    def options(self) -> Mapping[str, Any]:
        """Our transport options."""
        ...

    @property
    def expires_ms(self) -> dict[str, int]:
        """List -> time until an unused list expires, in ms."""
        ...

    @property
    def ahead(self) -> Ahead:
        """The messages that are not due yet."""
        ...

    @property
    def last_delivery(self) -> LastDelivery:
        """Delivers a message alone before it becomes a dead letter."""
        ...

    @property
    def fetches_ahead(self) -> bool:
        """Whether to fetch more than one message at a time if there is no prefetch limit."""
        ...

    @property
    def is_isolated(self) -> bool:
        """Whether a message is delivered alone."""
        ...

    @property
    def consumers(self) -> list[Consumer]:
        """Its consumers, and former ones whose messages tasks may still work on. Safe in any thread."""
        ...

    @property
    def is_fetching(self) -> bool:
        """Whether it consumes tasks."""
        ...

    def station(
        self,
        server: str,
        connect: Callable[[], AbstractContextManager[redis.Redis]],
        client: redis.Redis,
        rare_lists: RareLists | None = None,
        patience_s: float | None = None,
    ) -> Station:
        """Return the station at a server, see `Transport.station`."""
        ...

    def retire_station(self, server: str) -> None:
        """Fetch nothing from a server any more."""
        ...

    def check_former(self) -> None:
        """Make sure that others have not taken over messages of a former station."""
        ...

    def follow_nodes(self) -> None:
        """Have a transfer loop for each master of the cluster."""
        ...

    @property
    def client(self) -> Any:
        """The kombu connection."""
        ...

    @property
    def default_port(self) -> int:
        """Of a server, see kombu."""
        ...

    @property
    def publisher(self) -> Publisher:
        """Recognizes what is published again."""
        ...

    def holder(self, delivery_tag: str) -> Consumer | None:
        """Return the consumer that holds a message. Safe in any thread."""
        ...

    def after_fork(self) -> None:
        """Forget what belongs to the parent of a forked child."""
        ...

    def on_task_queues_changed(self) -> None:
        """Tell the loops that a consumer came or went."""
        ...

    @property
    def bindings(self) -> Bindings:
        """Of queues to exchanges."""
        ...

    @property
    def slot_of(self) -> Callable[[str], int]:
        """Returns a number that is the same for keys that may be in one command. Threads may keep it."""
        ...

    def loop_of(self, name: str) -> TransferLoop | None:
        """Return the loop that transfers to a list."""
        ...

    def is_full(self, server: str) -> bool:
        """Return whether a server has no connection left."""
        ...

    def _deliver(self, message: Mapping[str, Any], queue: str) -> None:
        """Call the callbacks of a queue's consumer, see kombu."""
        ...


class Channel(Protocol):
    """A channel: consumes queues, and publishes."""

    @property
    def connection(self) -> Connection:
        """The transport; None, against what this says, once the channel is closed."""
        ...

    @property
    def qos(self) -> Any:
        """The prefetch limit, and what is not acknowledged: kombu's `QoS`."""
        ...

    @property
    def task_queues(self) -> dict[str, str]:
        """Consumer tag -> queue, for consumers of tasks."""
        ...

    @property
    def ack_emulation(self) -> bool:
        """Whether messages are acknowledged at all, see kombu."""
        ...

    @property
    def queue_order_strategy(self) -> str:
        """In which order queues are read, see kombu."""
        ...

    @property
    def plain_client(self) -> redis.Redis:
        """A client that adds no key prefix."""
        ...

    @property
    def Message(self) -> Any:
        """Kombu's class of messages."""
        ...

    def broker_lists(self, queue: str) -> list[str]:
        """Return the full names of all lists of a queue."""
        ...

    def delayed_queue(self, broker_list: str) -> DelayedQueue:
        """Return the delayed queue of a list."""
        ...


class Fetching(Protocol):
    """Fetches for one channel. For the consuming thread. What it raises: see `Fetcher`."""

    @property
    def has_queues(self) -> bool:
        """Whether there is any queue to fetch from."""
        ...

    @property
    def is_consuming(self) -> bool:
        """Whether it waits for messages, or has undelivered ones."""
        ...

    @property
    def is_starved(self) -> bool:
        """Whether the last fetch ended because there was no credit."""
        ...

    @property
    def is_sparing(self) -> bool:
        """Whether it does without connections that wait."""
        ...

    @property
    def is_in_the_way(self) -> bool:
        """Whether it may have connections that wait, although the server has none left for leases and transfers."""
        ...

    @property
    def has_fetched(self) -> bool:
        """Whether there is something to deliver."""
        ...

    def fill(self) -> bool:
        """Fetch, or wait on the server; return whether there is something to deliver."""
        ...

    def deliver(self) -> bool:
        """Deliver one message; return whether there was one."""
        ...

    def send_acks(self, *, is_busy: bool) -> bool:
        """Send the acknowledgements that wait; return whether some still do."""
        ...

    def get(self, queue: str) -> Any:
        """Return one message of a queue; None if there is none."""
        ...

    def on_queues_changed(self) -> None:
        """Follow a change of the channel's queues."""
        ...

    def tidy(self) -> None:
        """End the leases on lists that are no longer fetched from."""
        ...

    def unsettle(self) -> None:
        """Look at all lists again at the next fetch."""
        ...

    def spare_connections(self) -> None:
        """Do without connections that wait, for a while."""
        ...

    def maxclients(self) -> str:
        """Return the server's limit of connections, as a part of a sentence."""
        ...

    def close(self) -> None:
        """Stop waiting for messages, and put undelivered ones back."""
        ...


class Polled(Protocol):
    """A channel, as the poller knows it."""

    @property
    def made_fetcher(self) -> Fetching | None:
        """Its fetcher; None if there is none yet."""
        ...

    @property
    def expiry(self) -> Expiry:
        """Renews the TTL of its queues."""
        ...

    @property
    def connection_errors(self) -> tuple[type[Exception], ...]:
        """What kombu takes for the loss of its connection."""
        ...

    def bind_postponed(self) -> None:
        """Bind the queues that could not be bound yet."""
        ...

    def wait_for_replies(self) -> None:
        """Wait for messages of queues that are consumed without acknowledgement."""
        ...

    def close_idle(self) -> None:
        """Close the connection for BRPOP if nobody reads with it."""
        ...

    def keep_subscription(self) -> None:
        """Let an idle subscription speak."""
        ...

    def restore_visible(self) -> None:
        """Restore what workers with kombu's own transport left behind."""
        ...


class OfCluster(Channel, Protocol):
    """A channel of a Redis Cluster."""

    @property
    def nodes(self) -> Nodes:
        """What the connection knows of the nodes."""
        ...

    @property
    def topology(self) -> Topology:
        """The nodes."""
        ...

    @property
    def plain_client(self) -> Routed:
        """A client that sends each command to its node, and adds no key prefix."""
        ...

    @property
    def socket_timeout(self) -> float | None:
        """How long a node may take to answer, in seconds, see kombu."""
        ...

    @property
    def reply_queues(self) -> list[str]:
        """The queues that are consumed without acknowledgement."""
        ...

    @property
    def global_keyprefix(self) -> str:
        """What all keys begin with, see kombu."""
        ...

    @property
    def keyprefix_queue(self) -> str:
        """The name of the keys of bindings, see kombu."""
        ...

    def broker_list(self, queue: str, priority: int) -> str:
        """Return the full name of a queue's list for a priority."""
        ...

"""Channels: send messages to their lists, and fetch them from there.

A message with an eta in the future goes to a delayed queue. Tasks are fetched so that none can be lost.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from logging import getLogger
from typing import TYPE_CHECKING, Any

import kombu
import redis
from kombu.transport import redis as kombu_redis
from kombu.transport.virtual.base import queue_declare_ok_t
from kombu.utils.json import dumps
from kombu.utils.uuid import uuid
from redis import exceptions

from celery_delayq.basics.text import plural
from celery_delayq.options.settings import HEALTH_CHECK_S, SOCKET_TIMEOUT_S, TRANSPORT_OPTIONS
from celery_delayq.queue import codec, scripts
from celery_delayq.queue.attempt import Attempt
from celery_delayq.queue.connections import close_idle, passing_refusal, refusals
from celery_delayq.queue.delayed_queue import DelayedQueue
from celery_delayq.queue.holds import Offered
from celery_delayq.queue.keys import registry
from celery_delayq.transport.bindings import AGAIN_S
from celery_delayq.transport.capture import Captured, Caught, captured_for
from celery_delayq.transport.connector import Connector
from celery_delayq.transport.eta import due_ms_of, eta_ms_of
from celery_delayq.transport.expiry import Expiry
from celery_delayq.transport.keyed import (
    THROTTLE_PROPERTY,
    check_protocol,
    claiming_of,
    pace_of,
    purge,
    put_keyed,
)
from celery_delayq.transport.known import known
from celery_delayq.transport.messages import DUE_PROPERTY
from celery_delayq.transport.protocols import Connection, Fetching
from celery_delayq.transport.qos import FetchingQoS
from celery_delayq.transport.replicas import Replicas, ReplicatedClient
from celery_delayq.transport.wrong_server import refuse_wrong_server

if TYPE_CHECKING:  # what only a consumer needs is imported when one needs it
    from celery_delayq.fetching.consumer import Consumer
    from celery_delayq.fetching.held import Held
    from celery_delayq.transport.batch import Batch
    from celery_delayq.transport.station import Station

#: kombu 5.7 itself adds published messages to a batch.
_KOMBU_HAS_NO_BATCH = kombu.VERSION < (5, 7)

#: How many connections a pool needs at least: for a transaction and what it reads, and for threads that acknowledge.
_LEAST_CONNECTIONS = 4

#: With kombu 5.6, a worker would not fetch any more once such a connection was closed.
_KEEPS_BRPOP = kombu.VERSION < (5, 7)

#: Our options in `broker_transport_options` that a channel has as attributes.
OPTIONS = ("mirror_list", "replicas", "replicas_timeout")

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


class DelayedChannel(kombu_redis.Channel):
    """kombu's Redis channel, with delayed queues in front of its broker lists, and in-flight lists behind them.

    kombu's own code still publishes messages that are not delayed. It also consumes messages without
    acknowledgement, and messages from a fanout exchange. Like any channel, it is for one thread at a time.

    Overrides these hooks of kombu (5.6 and 5.7): `queue_declare`, `queue_bind`, `queue_delete`,
    `after_reply_message_received`, `_new_queue`, `_queue_bind`, `get_table`, `maybe_refresh_binding_expiry`,
    `basic_publish`, `_put`, `_put_fanout`, `queue_purge`, `client`, `subclient`, `_create_client`, `_connparams`,
    `pool`, `basic_consume`, `_basic_cancel`, `basic_get`, `active_queues`, `_receive`, `close`, `_after_fork`.
    """

    QoS = FetchingQoS

    connection_class = known(kombu_redis.Channel.connection_class)
    connection_class_ssl = known(kombu_redis.Channel.connection_class_ssl)

    client = _Once(kombu_redis.Channel.client)
    subclient = _Once(kombu_redis.Channel.subclient)

    #: Whether to write Redisson's delay list too, see `DelayedQueue`.
    mirror_list: bool = bool(TRANSPORT_OPTIONS["mirror_list"].default)

    #: How many replicas must have what a caller takes for done, and how long to wait for them, in seconds.
    replicas: int = int(TRANSPORT_OPTIONS["replicas"].default)
    replicas_timeout: float = float(TRANSPORT_OPTIONS["replicas_timeout"].default)

    #: Longest wait for a reply, in seconds. kombu has no limit: a publisher would hang for as long as the server does.
    socket_timeout: float | None = SOCKET_TIMEOUT_S

    #: How often an idle connection speaks, in seconds.
    health_check_interval: float = HEALTH_CHECK_S

    from_transport_options = (*kombu_redis.Channel.from_transport_options, *OPTIONS)

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        self._transport: Connection = connection
        #: Consumer tag -> queue, for consumers of tasks: with acknowledgement, and not from a fanout exchange.
        self.task_queues: dict[str, str] = {}
        self._plain_client: redis.Redis | None = None
        self._kombu_client: redis.Redis | None = None
        self._delayed_queues: dict[str, DelayedQueue] = {}
        #: Collects published messages instead of sending them, see `collecting`; None if nobody collects.
        self.batch: Batch | None = None
        self.expiry = Expiry(self)
        #: When to keep the bindings of queues that expire again (monotonic), after that has failed.
        self._refresh_at, self._refresh_error = 0.0, ""
        super().__init__(connection, **kwargs)
        # kombu has sent a PING on a connection for consuming. Most channels never need that again. If kombu 5.6 heard
        # of its end, it would no longer poll.
        self._registered = False
        self.async_pool.disconnect()
        self._registered = True

    @staticmethod
    def slot_of(key: str) -> int:
        """Return a number that is the same for keys that may be in one command: on one server, for all."""
        return 0

    def _new_queue(self, queue: str, auto_delete: bool = False, **kwargs: Any) -> None:
        super()._new_queue(queue, auto_delete=auto_delete, **kwargs)
        self.expiry.declared(queue)

    # -- kombu's own keys: what the server refuses for now is done later, or is not needed

    @staticmethod
    def is_for_later(exc: BaseException) -> bool:
        """Return whether what has met an error is done later: the server refuses it for now."""
        return bool(passing_refusal(exc))

    def hurrying(self) -> AbstractContextManager[object]:
        """Do not wait for a server that hangs, while the block lasts, if there are others."""
        return nullcontext()

    @contextmanager
    def _if_possible(self) -> Iterator[None]:
        """Do what is not needed; leave it if the server refuses it for now."""
        try:
            with self.hurrying():
                yield
        except Exception as exc:
            if not self.is_for_later(exc):
                raise
            refusals.note(exc, logger)

    def queue_declare(self, queue: str | None = None, passive: bool = False, **kwargs: Any) -> Any:
        """Declare a queue, see kombu. If the server refuses for now to count its messages, there are 0.

        So a worker starts all the same. Within MULTI, a server that is out of memory refuses any command.

        Raises:
            ConfigurationError: the URL is one of a single server, and this is another, see `refuse_wrong_server`.
        """
        queue = queue or f"amq.gen-{uuid()}"
        try:
            with self.hurrying():
                return super().queue_declare(queue, passive=passive, **kwargs)
        except Exception as exc:
            if isinstance(exc, redis.ResponseError):
                refuse_wrong_server(exc, self.plain_client)
            if passive or not self.is_for_later(exc):
                raise
            refusals.note(exc, logger)
            return queue_declare_ok_t(queue, 0, 0)

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any) -> Any:
        """Delete `queue`, see kombu. The tasks of its ready messages give up their unique keys."""
        is_closing = kwargs.pop("client", None) is not None  # kombu closes the channel. That client is of one node only
        if is_closing:
            self._transport.bindings.forget(queue)
        with self._if_possible() if is_closing else nullcontext():
            if not if_empty and queue not in self._fanout_queues and any(self.state.queue_bindings(queue)):
                self._purge_ready(queue)  # kombu deletes only what it has bound, and an empty one with `if_empty`
            super().queue_delete(queue, if_unused, if_empty, **kwargs)
            if not any(self.state.queue_bindings(queue)):  # with `if_empty`, it may not have been
                self._transport.bindings.forget(queue)

    def after_reply_message_received(self, queue: str) -> None:
        """Delete the queue of a reply, see kombu. The next time that it is declared, it is bound again."""
        try:
            with self._if_possible():
                super().after_reply_message_received(queue)
        finally:
            self.state.queue_bindings_delete(queue)  # kombu leaves it there after an error
            self._transport.bindings.forget(queue)

    def queue_bind(
        self, queue: str, exchange: str | None = None, routing_key: str = "", *args: Any, **kwargs: Any
    ) -> None:
        """Bind a queue, see kombu, which does nothing if it has tried before, even if it has failed.

        A program that only waits for replies would never get one.
        """
        exchange = exchange or "amq.direct"
        if self._transport.bindings.waits(exchange, queue):
            self.state.binding_delete(queue, exchange, routing_key)
        try:
            super().queue_bind(queue, exchange, routing_key, *args, **kwargs)
        except Exception:
            self.state.binding_delete(queue, exchange, routing_key)
            raise

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str, queue: str) -> None:
        """Bind a queue, see kombu; later if the server refuses that for now."""
        expires_ms = getattr(self, "_expires", {}).get(queue)

        def bind(channel: DelayedChannel) -> None:
            if expires_ms is not None:
                channel._expires.setdefault(queue, expires_ms)
            with channel.hurrying():
                kombu_redis.Channel._queue_bind(channel, exchange, routing_key, pattern, queue)

        self._transport.bindings.bind(self, exchange, queue, (routing_key, pattern), bind)

    def bind_postponed(self) -> None:
        """Bind the queues that could not be bound yet."""
        self._transport.bindings.bind_postponed(self)

    def get_table(self, exchange: str) -> list[tuple[str, ...]]:
        """Return the bindings of an exchange, see kombu; the last known ones while they cannot be read.

        Raises:
            redis.RedisError: see `Bindings.of`.
        """
        bindings = self._transport.bindings
        with self.hurrying() if bindings.knows(exchange) else nullcontext():
            return list(bindings.of(self, exchange, super().get_table))

    def maybe_refresh_binding_expiry(self) -> None:
        """Keep the bindings of queues that expire, see kombu 5.7; again later if the server refuses that for now.

        kombu would try again every second, and on a cluster the worker would do little else while their slot moves.
        """
        if time.monotonic() < self._refresh_at:
            return
        self._refresh_at = time.monotonic() + AGAIN_S
        try:
            with self._if_possible():
                super().maybe_refresh_binding_expiry()
                self._refresh_at, self._refresh_error = 0.0, ""
        except exceptions.NoScriptError:  # flushed since redis-py looked: next time it loads it again
            self._refresh_at = 0.0
        except redis.ResponseError as exc:  # the user may not call SCRIPT, for example: Celery would log a traceback
            if str(exc) != self._refresh_error:
                logger.warning("Cannot keep the bindings of queues that expire, trying again every 10 s: %s", exc)
            self._refresh_error = str(exc)

    # -- publishing

    def basic_publish(self, message: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Publish a message, see kombu. A task that is published again because the reply was lost is stored once."""
        publisher = self._transport.publisher
        publisher.begins(message["properties"])
        try:
            result = super().basic_publish(message, *args, **kwargs)
        except BaseException:
            publisher.failed()
            raise
        publisher.succeeded()
        return result

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        captured = captured_for(message)
        if captured is not None:
            self._catch(captured, queue, message)
            return
        due_ms, claiming, pace = due_ms_of(message), claiming_of(message), pace_of(message)
        has_key = claiming is not None or pace is not None
        if has_key:
            check_protocol(message, claiming)
        if not {"id", "task"} <= message["headers"].keys():  # no task, or one of protocol 1
            self._put_now(queue, message, **kwargs)
            return
        if due_ms is not None:
            message["properties"][DUE_PROPERTY] = due_ms
        tag = _tag_of(message)
        if due_ms is not None or has_key:
            message["properties"]["delivery_tag"] = tag
        attempt = self._transport.publisher.attempt(tag)
        if has_key:
            # At once, also in a batch: the caller asks what became of it.
            self.expiry.used(queue)
            priority = self._get_message_priority(message, reverse=False)
            broker_list = self.broker_list(queue, priority)
            put_keyed(self, broker_list, message, claiming=claiming, pace=pace, due_ms=due_ms, attempt=attempt)
            return
        if due_ms is None:
            self._put_now(queue, message, attempt, **kwargs)
            return
        priority = self._get_message_priority(message, reverse=False)
        delayed_queue = self.delayed_queue(self.broker_list(queue, priority))
        payload = dumps(message).encode()
        message_id = str(message["headers"]["id"])
        kombu_batch: Any = kwargs.get("_publish_batch")
        if self.batch is None and kombu_batch is None:
            self.expiry.used(queue)
            delayed_queue.offer(payload, due_ms=due_ms, message_id=message_id, attempt=attempt)
            return
        delayed_queue.register()
        if self.batch is not None:
            self.batch.offer(delayed_queue, due_ms=due_ms, message_id=message_id, payload=payload)
            return
        call = scripts.offer(
            delayed_queue.keys,
            due_ms=due_ms,
            message_key=codec.message_key(message_id),
            payload=payload,
            mirrored=self.mirror_list,
        )
        # By its text: nothing in kombu's pipeline could answer NOSCRIPT.
        name, *rest = call.by_text()
        kombu_batch.add(name.lower(), *rest)

    def _put_now(self, queue: str, message: dict[str, Any], attempt: Attempt | None = None, **kwargs: Any) -> None:
        if self.batch is not None and _KOMBU_HAS_NO_BATCH:
            priority = self._get_message_priority(message, reverse=False)
            self.batch.add("lpush", self._q_for_pri(queue, priority), dumps(message))
            return
        is_alone = self.batch is None and kwargs.get("_publish_batch") is None
        if is_alone and (self.replicas or attempt is not None):
            broker_list = self.broker_list(queue, self._get_message_priority(message, reverse=False))
            if attempt is None:
                self.writer.execute_command("LPUSH", broker_list, dumps(message))
            else:
                self.delayed_queue(broker_list).publish(dumps(message).encode(), attempt)
            self.expiry.used(queue)
            return
        super()._put(queue, message, **self._with_batch(kwargs))

    def _put_fanout(self, exchange: str, message: dict[str, Any], routing_key: str, **kwargs: Any) -> None:
        captured = captured_for(message)
        if captured is not None:
            captured.broadcast = True
            return
        if self.batch is not None and _KOMBU_HAS_NO_BATCH:
            self.batch.add("publish", self._get_publish_topic(exchange, routing_key), dumps(message))
            return
        super()._put_fanout(exchange, message, routing_key, **self._with_batch(kwargs))

    def _with_batch(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        return kwargs if self.batch is None else {**kwargs, "_publish_batch": self.batch}

    def _catch(self, captured: Captured, queue: str, message: dict[str, Any]) -> None:
        due_ms = eta_ms_of(message)
        if due_ms is not None:
            message["properties"][DUE_PROPERTY] = due_ms
        broker_list = self.broker_list(queue, self._get_message_priority(message, reverse=False))
        claiming = claiming_of(message)
        if claiming is not None:
            check_protocol(message, claiming)
            claiming.offered = Offered("stored")
        message["properties"].pop(THROTTLE_PROPERTY, None)  # its time is that of the occurrence
        claim = None if claiming is None else claiming.claim
        captured.messages.append(Caught(broker_list, captured.task_id, due_ms, dumps(message).encode(), message, claim))

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
                mirror_list=self.mirror_list,
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
        return Replicas(self.replicas, round(self.replicas_timeout * 1000)) if self.replicas else None

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

    # -- consuming

    def basic_consume(self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **kwargs: Any) -> Any:
        """Consume from `queue`, see kombu."""
        if not no_ack and queue not in self._fanout_queues:
            self.task_queues[consumer_tag] = queue
        result = super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)
        if queue in self._fanout_queues:
            self.connection.cycle.subscribe(self)
        if consumer_tag in self.task_queues:
            self._on_task_queues_changed()
        return result

    def _basic_cancel(self, consumer_tag: str) -> Any:
        was_task_queue = self.task_queues.pop(consumer_tag, None) is not None
        result = super()._basic_cancel(consumer_tag)
        if was_task_queue:
            self._on_task_queues_changed()
        return result

    def _on_task_queues_changed(self) -> None:
        if self.ack_emulation:
            self.fetcher.on_queues_changed()
            self.expiry.keep_now()
        self.connection.on_task_queues_changed()

    @property
    def active_queues(self) -> list[str]:
        """The queues that kombu reads with BRPOP: all except those that the fetcher reads."""
        queues: list[str] = super().active_queues
        if not self.ack_emulation:
            return queues
        fetched = set(self.task_queues.values())
        return [queue for queue in queues if queue not in fetched]

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        """Return one message of `queue`, or None, see kombu."""
        if no_ack or not self.ack_emulation:
            return super().basic_get(queue, no_ack=no_ack, **kwargs)
        self.expiry.used(queue)  # first: if the server refuses this later, a fetched message would be forgotten
        message = self.fetcher.get(queue)
        if message is not None:
            self.qos.append(message, message.delivery_tag)
        return message

    def queue_purge(self, queue: str, **kwargs: Any) -> int:
        """Delete the ready messages of `queue`, see kombu. Delayed messages stay; a warning says how many.

        Their tasks give up their unique keys, see `purge`.
        """
        delayed = sum(self.delayed_queue(name).size() for name in self.broker_lists(queue))
        purged = self._purge_ready(queue)
        if delayed:
            logger.warning(
                "Purge left %s of queue %s. To remove them, and with them the next runs of periodic tasks, run "
                "`delayq cancel --queue %s`",
                plural(delayed, "delayed message"),
                queue,
                queue,
            )
        return purged

    def _purge_ready(self, queue: str) -> int:
        return sum(purge(self.delayed_queue(name)) for name in self.broker_lists(queue))

    @cached_property
    def fetcher(self) -> Fetching:
        """Fetches what this channel consumes; only a consumer has one."""
        return self._make_fetcher()

    @property
    def made_fetcher(self) -> Fetching | None:
        """The fetcher; None if there is none yet. Safe in any thread."""
        return vars(self).get("fetcher")

    def _make_fetcher(self) -> Fetching:
        from celery_delayq.transport.fetcher import Fetcher

        return Fetcher(self, self._station)

    def _station(self) -> Station:
        return self._transport.station("", Connector(self._transport.client), self.plain_client)

    def _receive(self) -> Any:
        """Read what the subscription has received, see kombu, which would wait for a silent one for ever."""
        connection = self.subclient.connection
        if connection is None or connection._sock is None or not connection.can_read(timeout=0):
            return None
        try:
            return super()._receive()
        except redis.ResponseError as exc:  # to a PING on the subscription
            if not refusals.note(exc, logger):
                raise
            return None

    def wait_for_replies(self) -> None:
        """Wait for messages of queues that are consumed without acknowledgement: kombu itself does so."""

    def keep_subscription(self) -> None:
        """Let the subscription speak if it is idle. kombu does so with an event loop only, and too rarely."""
        client = vars(self).get("subclient")
        if client is not None and client.connection is not None and not client.health_check_response_counter:
            client.check_health()

    def close_idle(self) -> None:
        """Close the connection for BRPOP if kombu no longer reads with it: a worker does so only while it starts."""
        client = vars(self).get("client")  # made on first use
        connection = None if client is None else client.connection
        if _KEEPS_BRPOP or connection is None or connection._sock is None or self._in_poll or self.active_queues:
            return
        connection.disconnect()

    # -- for FetchingQoS; also used after the channel was closed, by tasks that were running then

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge a fetched message; does nothing for other messages."""
        holder = self._transport.holder(delivery_tag)
        if holder is not None:
            holder.ack(delivery_tag)
            self._rest(holder)
        if self.connection is not None:
            self.connection.cycle.on_credit()

    def is_held(self, delivery_tag: str) -> bool:
        """Return whether a consumer still holds a fetched message, see `Consumer.is_held`. True for other messages."""
        if not delivery_tag.isdecimal():  # kombu's tags are not numbers
            return True
        holder = self._transport.holder(delivery_tag)
        return holder is not None and holder.is_held(delivery_tag)

    def on_begin(self, delivery_tag: str) -> None:
        """Record that the task of a message begins: a message that was delivered alone is no longer alone."""
        from celery_delayq.transport.last_delivery import on_begin

        for consumer in self._transport.consumers:
            on_begin(consumer, delivery_tag)

    def can_wait(self, delivery_tag: str) -> None:
        """Let the acknowledgement of a message wait a few ms for others, see `Consumer.can_wait`."""
        holder = self._transport.holder(delivery_tag)
        if holder is not None:
            holder.can_wait(delivery_tag)

    def starts(self, delivery_tag: str, *, is_early: bool) -> Held | None:
        """Say that the task of a message starts, see `Consumer.starts`; `ends` takes what this returns."""
        holder = self._transport.holder(delivery_tag)
        return None if holder is None else holder.starts(delivery_tag, is_early=is_early)

    def ends(self, held: Held) -> None:
        """Say that a task is done whose message was acknowledged as it started, see `Consumer.ends`."""
        from celery_delayq.fetching.unique_keys import ended

        for consumer in () if self.closed else self._transport.consumers:
            if held.name in consumer.lists:
                consumer.ends(held)
                return
        ended(held)

    def requeue(self, delivery_tag: str) -> None:
        """Put a fetched message to the back of its list."""
        holder = self._transport.holder(delivery_tag)
        if holder is not None:
            holder.requeue(delivery_tag)
            self._rest(holder)

    def _rest(self, holder: Consumer) -> None:
        """Leave no connection open that was opened after the channel was closed: nobody would close it."""
        if self.connection is None:
            close_idle(holder.client)

    def put_back(self, delivery_tags: Sequence[str]) -> None:
        """Put fetched messages back to the front of their lists, except those whose tasks run."""
        running = self.connection.program.running_tags() if self.connection is not None else set()
        for consumer in self._transport.consumers:
            consumer.put_back([tag for tag in delivery_tags if tag in consumer.held and tag not in running])

    def restore_visible(self) -> None:
        """Restore the messages that workers with kombu's own transport left in `unacked`."""
        options = {"interval": self.unacked_restore_throttle} if hasattr(self, "unacked_restore_throttle") else {}
        self.qos.restore_visible(num=self.unacked_restore_limit, **options)

    # -- the end

    def close(self) -> None:
        """Put back all messages whose tasks do not run, and close, see kombu."""
        if not self.closed and self.made_fetcher is not None:
            self.fetcher.close()
        super().close()

    def _after_fork(self) -> None:
        self.__dict__.pop("fetcher", None)
        self._transport.after_fork()
        super()._after_fork()


def _tag_of(message: dict[str, Any]) -> str:
    """Return a delivery tag that is the same each time the same message is published, unlike kombu's random one.

    So a publication that is repeated because its reply was lost offers the very same message, which is stored once.
    """
    headers = message["headers"]
    # Not whether it is delayed: it may be due when it is repeated.
    what = f"{headers['id']} {headers.get('retries')} {headers.get('eta')} {message['body']}"
    return hashlib.blake2b(what.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

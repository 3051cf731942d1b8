"""Channels: send messages to their lists, and fetch them from there.

A message with an eta in the future goes to a delayed queue. Tasks are fetched so that none can be lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from logging import getLogger
from typing import TYPE_CHECKING, Any, Literal

import kombu
import redis

from celery_delayq.queue.connections import refusals
from celery_delayq.transport.messages import CANCELLED_PROPERTY
from celery_delayq.transport.publishing import PublishingChannel
from celery_delayq.transport.qos import FetchingQoS

if TYPE_CHECKING:  # what only a consumer needs is imported when one needs it
    from celery_delayq.fetching.held import Held
    from celery_delayq.transport.fetchers import Fetchers

#: With kombu 5.6, a worker would not fetch any more once such a connection was closed.
_KEEPS_BRPOP = kombu.VERSION < (5, 7)

logger = getLogger(__name__)


class DelayedChannel(PublishingChannel):
    """kombu's Redis channel, with delayed queues in front of its broker lists, and in-flight lists behind them.

    kombu's own code still consumes messages without acknowledgement, and messages from a fanout exchange. Like any
    channel, it is for one thread at a time.

    Overrides these hooks of kombu (5.6 and 5.7), besides those of its bases: `basic_consume`, `_basic_cancel`,
    `basic_get`, `active_queues`, `_receive`, `close`, `_after_fork`.
    """

    QoS = FetchingQoS

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        #: Consumer tag -> queue, for consumers of tasks: with acknowledgement, and not from a fanout exchange.
        self.task_queues: dict[str, str] = {}
        super().__init__(connection, **kwargs)
        # kombu has sent a PING on a connection for consuming. Most channels never need that again. If kombu 5.6 heard
        # of its end, it would no longer poll.
        self._registered = False
        self.async_pool.disconnect()
        self._registered = True

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
            self.fetchers.on_queues_changed()
            self.expiry.keep_now()
        self.connection.loops.wake()

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
            message = super().basic_get(queue, no_ack=no_ack, **kwargs)
            while no_ack and message is not None and CANCELLED_PROPERTY in message.properties:
                message = super().basic_get(queue, no_ack=no_ack, **kwargs)
            return message
        self.expiry.used(queue)  # first: if the server refuses this later, a fetched message would be forgotten
        message = self.fetchers.get(queue)
        if message is not None:
            self.qos.append(message, message.delivery_tag)
        return message

    @cached_property
    def fetchers(self) -> Fetchers:
        """Fetch what this channel consumes; only a consumer has them."""
        from celery_delayq.transport.fetchers import Fetchers

        return Fetchers(self)

    @property
    def made_fetchers(self) -> Fetchers | None:
        """The fetchers; None if there are none yet. Safe in any thread."""
        return vars(self).get("fetchers")

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
        holder = self._transport.stations.holder(delivery_tag)
        if holder is not None:
            holder.ack(delivery_tag)
        if self.connection is not None:
            self.connection.cycle.on_credit()

    def is_held(self, delivery_tag: str) -> bool:
        """Return whether a consumer still holds a fetched message, see `Consumer.is_held`. True for other messages."""
        if not delivery_tag.isdecimal():  # kombu's tags are not numbers
            return True
        holder = self._transport.stations.holder(delivery_tag)
        return holder is not None and holder.is_held(delivery_tag)

    def on_begin(self, delivery_tag: str) -> None:
        """Record that the task of a message begins: a message that was delivered alone is no longer alone."""
        for consumer in self._transport.stations.consumers:
            if consumer.isolation.is_on:
                from celery_delayq.transport.last_delivery import on_begin

                on_begin(consumer, delivery_tag)

    def can_wait(self, delivery_tag: str) -> None:
        """Let the acknowledgement of a message wait a few ms for others, see `Consumer.can_wait`."""
        holder = self._transport.stations.holder(delivery_tag)
        if holder is not None:
            holder.can_wait(delivery_tag)

    def starts(self, delivery_tag: str, *, is_early: bool) -> Held | None:
        """Say that the task of a message starts, see `UniqueKeys.starts`; `ends` takes what this returns."""
        holder = self._transport.stations.holder(delivery_tag)
        return None if holder is None else holder.unique_keys.starts(delivery_tag, with_ack=is_early)

    def ends(self, held: Held) -> None:
        """Say that a task is done whose message was acknowledged as it started, see `UniqueKeys.ends`."""
        from celery_delayq.fetching.unique_keys import ended

        for consumer in () if self.closed else self._transport.stations.consumers:
            if held.name in consumer.lists:
                consumer.unique_keys.ends(held)
                return
        ended(held)

    def requeue(self, delivery_tag: str) -> None:
        """Put a fetched message to the back of its list; after `task_ended`, see `requeue.run_again`."""
        holder = self._transport.stations.holder(delivery_tag)
        held = None if holder is None else holder.held.get(delivery_tag)  # the watchdog may have let it go just now
        if holder is None or held is None:
            return
        if self.closed or not held.ended:
            holder.requeue(delivery_tag)
            return
        from celery_delayq.transport.requeue import run_again

        run_again(self, holder, delivery_tag, held)

    def task_ended(self, delivery_tag: str, how: Literal["killed", "rejected"]) -> None:
        """Record how the task of a message has ended, before its message is requeued, see `Held`."""
        holder = self._transport.stations.holder(delivery_tag)
        if holder is not None:
            holder.task_ended(delivery_tag, how)

    def put_back(self, delivery_tags: Sequence[str]) -> None:
        """Put fetched messages back to the front of their lists, except those whose tasks run."""
        running = self.connection.program.running_tags() if self.connection is not None else set()
        for consumer in self._transport.stations.consumers:
            consumer.put_back([tag for tag in delivery_tags if tag in consumer.held and tag not in running])

    def restore_visible(self) -> None:
        """Restore the messages that workers with kombu's own transport left in `unacked`."""
        options = {"interval": self.unacked_restore_throttle} if hasattr(self, "unacked_restore_throttle") else {}
        self.qos.restore_visible(num=self.unacked_restore_limit, **options)

    # -- the end

    def close(self) -> None:
        """Put back all messages whose tasks do not run, and close, see kombu."""
        if not self.closed and self.made_fetchers is not None:
            self.fetchers.close()
        super().close()

    def _after_fork(self) -> None:
        self.__dict__.pop("fetchers", None)
        self._transport.after_fork()
        super()._after_fork()

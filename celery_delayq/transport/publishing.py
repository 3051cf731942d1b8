"""Publishing: declares queues, and sends messages to their lists, or to delayed queues in front of them."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from logging import getLogger
from typing import TYPE_CHECKING, Any

import kombu
import redis
from kombu.transport import redis as kombu_redis
from kombu.transport.virtual.base import queue_declare_ok_t
from kombu.utils.json import dumps
from kombu.utils.uuid import uuid
from redis import exceptions

from celery_delayq.basics.times import to_datetime
from celery_delayq.queue import codec, scripts
from celery_delayq.queue.call import Attempt
from celery_delayq.queue.connections import passing_refusal, refusals
from celery_delayq.queue.delayed_queue import DelayedQueue
from celery_delayq.queue.holds import Offered
from celery_delayq.queue.registry import REGISTERED_FOR_S, Registry
from celery_delayq.transport.bindings import AGAIN_S
from celery_delayq.transport.capture import Captured, Caught, captured_for
from celery_delayq.transport.connecting import ConnectingChannel
from celery_delayq.transport.eta import due_ms_of, eta_ms_of
from celery_delayq.transport.expiry import Expiry
from celery_delayq.transport.keyed import (
    THROTTLE_PROPERTY,
    as_stored,
    check_protocol,
    claiming_of,
    pace_of,
    purge,
    put_keyed,
)
from celery_delayq.transport.messages import DUE_PROPERTY
from celery_delayq.transport.wrong_server import refuse_wrong_server

if TYPE_CHECKING:
    from celery_delayq.transport.batch import Batch

#: kombu 5.7 itself adds published messages to a batch.
_KOMBU_HAS_NO_BATCH = kombu.VERSION < (5, 7)

logger = getLogger(__name__)


class PublishingChannel(ConnectingChannel):
    """kombu's Redis channel, with delayed queues in front of its broker lists.

    kombu's own code still publishes messages that are not delayed.

    Overrides these hooks of kombu (5.6 and 5.7): `queue_declare`, `queue_bind`, `queue_delete`,
    `after_reply_message_received`, `_new_queue`, `_queue_bind`, `get_table`, `maybe_refresh_binding_expiry`,
    `queue_purge`, `basic_publish`, `_put`, `_put_fanout`.
    """

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        #: Collects published messages instead of sending them, see `collecting`; None if nobody collects.
        self.batch: Batch | None = None
        self.expiry = Expiry(self)
        #: When to keep the bindings of queues that expire again (monotonic), after that has failed.
        self._refresh_at, self._refresh_error = 0.0, ""
        #: List -> when to register it again (monotonic), see `_register`.
        self._register_at: dict[str, float] = {}
        super().__init__(connection, **kwargs)

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

        def bind(channel: PublishingChannel) -> None:
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

    def queue_purge(self, queue: str, **kwargs: Any) -> int:
        """Delete the ready messages of `queue`, see kombu. Delayed messages stay; a warning says how many.

        Their tasks give up their unique keys, see `purge`.
        """
        delayed = sum(self.delayed_queue(name).size() for name in self.broker_lists(queue))
        purged = self._purge_ready(queue)
        if delayed:
            from celery_delayq.basics.text import plural, with_app

            logger.warning(
                "Purge left %s of queue %s. To remove them, and with them the next runs of periodic tasks, run %s",
                plural(delayed, "delayed message"),
                queue,
                with_app(f"`celery -A ... delayq cancel --queue {queue}`"),
            )
        return purged

    def _purge_ready(self, queue: str) -> int:
        return sum(purge(self.delayed_queue(name)) for name in self.broker_lists(queue))

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
        broker_list = self.broker_list(queue, self._get_message_priority(message, reverse=False))
        if has_key:
            # At once, also in a batch: the caller asks what became of it.
            self.expiry.used(queue)
            put_keyed(self, broker_list, message, claiming=claiming, pace=pace, due_ms=due_ms, attempt=attempt)
            self._register(broker_list)
            return
        if due_ms is None:
            self._put_now(queue, message, attempt, **kwargs)
            self._register(broker_list)
            return
        delayed_queue = self.delayed_queue(broker_list)
        payload = dumps(message).encode()
        message_id = str(message["headers"]["id"])
        kombu_batch: Any = kwargs.get("_publish_batch")
        if self.batch is None and kombu_batch is None:
            self.expiry.used(queue)
            delayed_queue.offer(payload, eta=to_datetime(due_ms), message_id=message_id, attempt=attempt)
            return
        if self.batch is not None:
            delayed_queue.register()
            self.batch.offer(delayed_queue, due_ms=due_ms, message_id=message_id, payload=payload)
            return
        name, *rest = offer_command(delayed_queue, payload, due_ms=due_ms, message_id=message_id)
        kombu_batch.add(name.lower(), *rest)

    def _put_now(self, queue: str, message: dict[str, Any], attempt: Attempt | None = None, **kwargs: Any) -> None:
        if self.batch is not None and _KOMBU_HAS_NO_BATCH:
            priority = self._get_message_priority(message, reverse=False)
            self.batch.add("lpush", self._q_for_pri(queue, priority), dumps(message))
            return
        is_alone = self.batch is None and kwargs.get("_publish_batch") is None
        if is_alone and (self.must_replicate or attempt is not None):
            broker_list = self.broker_list(queue, self._get_message_priority(message, reverse=False))
            if attempt is None:
                self.writer.execute_command("LPUSH", broker_list, dumps(message))
            else:
                self.delayed_queue(broker_list).publish(dumps(message).encode(), attempt)
            self.expiry.used(queue)
            return
        super()._put(queue, message, **self._with_batch(kwargs))

    def _register(self, broker_list: str) -> None:
        """Let others know a list that has ready tasks, once a minute. They are stored even if this fails."""
        now = time.monotonic()
        if now < self._register_at.get(broker_list, 0.0):
            return
        self._register_at[broker_list] = now + REGISTERED_FOR_S
        with suppress(redis.RedisError), self.hurrying():
            Registry(self.plain_client, self.global_keyprefix).sent(broker_list)

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
        message = {**as_stored(message, claiming)}
        claim = None if claiming is None else claiming.claim
        captured.messages.append(Caught(broker_list, captured.task_id, due_ms, dumps(message).encode(), message, claim))


def offer_command(
    queue: DelayedQueue, payload: bytes, *, due_ms: int, message_id: str, attempt: Attempt | None = None
) -> tuple[Any, ...]:
    """Return the Redis command that offers a message to a delayed queue, for a pipeline. Registers the queue.

    Args:
        queue: the delayed queue.
        payload: the message.
        due_ms: when it is due, unix time in ms. If that is past, it is transferred at once.
        message_id: the id of its task.
        attempt: makes it the same publication each time, whatever its id; None if it is published once.
    """
    queue.register()
    key, mirrored = codec.message_key(message_id), queue.mirror_list
    call = scripts.offer(
        queue.keys, due_ms=due_ms, message_key=key, payload=payload, mirrored=mirrored, attempt=attempt
    )
    return call.by_text()  # a pipeline has no answer to NOSCRIPT


def _tag_of(message: dict[str, Any]) -> str:
    """Return a delivery tag that is the same each time the same message is published, unlike kombu's random one.

    So a publication that is repeated because its reply was lost offers the very same message, which is stored once.
    """
    headers = message["headers"]
    # Not whether it is delayed: it may be due when it is repeated.
    what = f"{headers['id']} {headers.get('retries')} {headers.get('eta')} {message['body']}"
    return hashlib.blake2b(what.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

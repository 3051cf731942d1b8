"""DelayedQueue: Redisson's RDelayedQueue in Python, for any bytes and any Redis client, without Celery.

All Redis structures of the package are created and read in this package; the transport, the transfer loop and the
commands call it.
"""

from __future__ import annotations

import time
import uuid
from contextlib import suppress
from datetime import datetime

import redis
from redis.client import NEVER_DECODE

from celery_delayq.basics.times import Span, Time, due_at, span_s, to_datetime, to_ms
from celery_delayq.queue import codec, keys, scripts
from celery_delayq.queue.call import Attempt
from celery_delayq.queue.entry import Entry
from celery_delayq.queue.holds import Claim, Holder, Offered, Pace, move, offer_throttled, offer_unique
from celery_delayq.queue.ready import Ready
from celery_delayq.queue.registry import REGISTERED_FOR_S, Registry
from celery_delayq.queue.scripts import MAX_BATCH_SIZE, Transferred
from celery_delayq.queue.waiting import Waiting

#: Default for the maximum number of messages that one call of `transfer` moves.
BATCH_SIZE = 100

#: Longest single wait of `take` on the server, in seconds. Then it checks whether the head has changed.
_TAKE_SLICE_S = 1.0

#: When a name is registered again that could not be registered, in seconds.
_REGISTER_SOON_S = 1.0


class DelayedQueue(Waiting, Ready):
    """The delayed queue in front of one Redis list.

    An offered message waits in a ZSET until it is due. Then a transfer moves it to the list, and consumers take it from
    the right end of the list. Layout and notifications are Redisson's, so Java's RDelayedQueue can share the queue.

    Safe to share between threads if the client is. It holds no connection and needs no closing. Every method raises
    `redis.RedisError` if the server is away or refuses a command.

    This class never retries, but your client may: `redis.Redis()` retries by default since redis-py 6. If the
    connection breaks before the reply, it may then offer a message with a `countdown` twice, or lose a message that it
    takes. If that matters, pass `retry=Retry(NoBackoff(), 0)` to the client.

    Args:
        client: any `redis.Redis`; `decode_responses` does not matter.
        name: full name of the destination list.
        mirror_list: also write Redisson's delay list, for the methods of RDelayedQueue that read it (`size`,
            `contains`, `remove`, `poll`, iteration). Costs memory, and time that grows with the number of pending
            messages.
        keyprefix: prefix of the registry of queues, kombu's `global_keyprefix`.
        writer: executes what a caller takes for done; by default `client`. See `celery_delayq.transport.replicas`.
    """

    def __init__(
        self,
        client: redis.Redis,
        name: str,
        *,
        mirror_list: bool = False,
        keyprefix: str = "",
        writer: redis.Redis | None = None,
    ) -> None:
        if not isinstance(name, str) or not name:
            raise TypeError(f"the name of a list must be a str, not {name!r}")
        self.client = client
        self.writer = client if writer is None else writer
        self.name = name
        self.mirror_list = mirror_list
        self.keys = keys.QueueKeys.of(name, database_of(client))
        self._registry = Registry(client, keyprefix)
        self._register_again_at = 0.0
        # A client that times out before the server replies would lose the reply.
        reply_timeout_s = client.get_connection_kwargs().get("socket_timeout")
        self._take_slice_s = min(_TAKE_SLICE_S, reply_timeout_s / 2) if reply_timeout_s else _TAKE_SLICE_S

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    def offer(
        self,
        payload: bytes,
        *,
        eta: Time | None = None,
        countdown: Span | None = None,
        message_id: str | None = None,
        attempt: Attempt | None = None,
    ) -> str:
        """Store a message until it is due. One atomic script.

        Args:
            payload: the message, opaque bytes.
            eta: when it is due: a datetime, or unix time in seconds; give either `eta` or `countdown`.
            countdown: the time until it is due, by the server's clock: a timedelta, or seconds.
            message_id: any string; `cancel` finds the message by it. By default a random one. If the id is already in
                use, it gets one more entry; but if this very message waits already, with the same due time and payload,
                nothing is added. So the call may be repeated if its reply was lost.
            attempt: with the same one, the call may be repeated even if the message no longer waits.

        Returns:
            The message id.

        Raises:
            TypeError: not exactly one of `eta` and `countdown` was given, or an argument has the wrong type.
            ValueError: it would be due after the year 9999, or the time is not a number.
        """
        due_ms, delay_ms = _due(eta, countdown)
        if not isinstance(payload, bytes):
            raise TypeError(f"a payload must be bytes, not {type(payload).__name__}")
        message_id = str(uuid.uuid4()) if message_id is None else message_id
        registered_until = self._registered_until()
        _, alone = scripts.offer(
            self.keys,
            due_ms=due_ms,
            delay_ms=delay_ms,
            message_key=codec.message_key(message_id),
            payload=payload,
            mirrored=self.mirror_list,
            attempt=attempt,
        ).run(self.writer)
        if alone and time.monotonic() >= registered_until:
            # The queue was empty: the server may have lost its data, and with them the registry.
            self.register(again=True)
        return message_id

    def offer_unique(
        self,
        payload: bytes,
        claim: Claim,
        *,
        eta: Time | None,
        message_id: str,
        turn: int = 0,
        pace: Pace | None = None,
        tail: bytes = b"",
        attempt: Attempt | None = None,
    ) -> Offered:
        """Store a message that claims a unique key, unless another one holds that. One atomic script.

        If the other one waits in another list of this queue, one script call finds that, and the next one decides.

        Args:
            payload: the message.
            claim: what it claims.
            eta: when it is due, see `offer`; None stores it in the list at once.
            message_id: see `offer`.
            turn: see `Holder`.
            pace: the throttled key that gives it a turn; it waits for that.
            tail: see `offer_throttled`; used only with a pace.
            attempt: see `offer`.

        Returns:
            What became of it.
        """
        due_ms = None if eta is None else to_ms(eta, "eta")
        registered_until = self._registered_until() if due_ms is not None or pace is not None else 0.0
        there: keys.QueueKeys | None = None
        while True:
            offered = offer_unique(
                self.keys,
                claim=claim,
                task_id=message_id,
                turn=turn,
                due_ms=due_ms,
                payload=payload,
                mirrored=self.mirror_list,
                pace=pace,
                tail=tail,
                attempt=attempt,
                there=there,
            ).run(self.writer)
            if offered.outcome != "elsewhere":
                break
            if offered.broker_list:
                there = keys.QueueKeys.of(offered.broker_list)
            else:
                self.writer.execute_command("HDEL", self.keys.holds, claim.unique)
        if offered.alone and time.monotonic() >= registered_until:
            self.register(again=True)  # see `offer`
        return offered

    def offer_throttled(
        self,
        payload: bytes,
        pace: Pace,
        *,
        eta: Time | None,
        message_id: str,
        tail: bytes = b"",
        attempt: Attempt | None = None,
    ) -> datetime | None:
        """Store a message that is due at the next turn of a throttled key. One atomic script.

        Args:
            payload: the message.
            pace: the key.
            eta: when it should be due, see `offer`; None for now.
            message_id: see `offer`.
            tail: for a message that says when it is due, which is not known before. If there is a tail, the message is
                the payload, its due time in ms in decimal digits, and the tail.
            attempt: see `offer`.

        Returns:
            When it is due; None if an earlier attempt stored it, and it waits no longer.
        """
        registered_until = self._registered_until()
        due_ms, alone = offer_throttled(
            self.keys,
            pace=pace,
            due_ms=None if eta is None else to_ms(eta, "eta"),
            message_key=codec.message_key(message_id),
            payload=payload,
            mirrored=self.mirror_list,
            tail=tail,
            attempt=attempt,
        ).run(self.writer)
        if alone and time.monotonic() >= registered_until:
            self.register(again=True)  # see `offer`
        return to_datetime(due_ms) if due_ms else None

    def publish(self, message: bytes, attempt: Attempt) -> bool:
        """Put a message to the back of the list at once. One atomic script.

        Args:
            message: opaque bytes.
            attempt: with the same one, the call may be repeated if its reply was lost.

        Returns:
            False if an earlier attempt has stored it.
        """
        return scripts.publish(self.keys, message=message, attempt=attempt).run(self.writer)

    def offer_fetched(
        self,
        message: bytes,
        payload: bytes,
        *,
        consumer: str,
        eta: Time | None = None,
        countdown: Span | None = None,
        message_id: str,
        holder: Holder | None = None,
        client: redis.Redis | None = None,
    ) -> bool:
        """Move a message that a consumer has fetched from the list to the delayed queue. One atomic script.

        Args:
            message: the message as it was fetched.
            payload: the message to store instead.
            consumer: id of the consumer that has it in flight.
            eta: see `offer`.
            countdown: see `offer`.
            message_id: `cancel` finds the message by this id.
            holder: if its task holds a unique key. It holds it while the message waits, as a delayed task does.
            client: to use instead of that of the queue.

        Returns:
            Whether it was in flight. If not, nothing was stored.
        """
        due_ms, delay_ms = _due(eta, countdown)
        self.register()
        moved, alone = scripts.offer_fetched(
            self.keys,
            consumer=consumer,
            message=message,
            due_ms=delay_ms if due_ms is None else due_ms,
            is_from_now=due_ms is None,
            message_key=codec.message_key(message_id),
            payload=payload,
            mirrored=self.mirror_list,
            holder=holder,
        ).run(client or self.client)
        if moved and alone:
            # See `offer`. If this fails, the message is stored anyway, and the consumer's own loop knows the list.
            with suppress(redis.ResponseError):
                self.register(again=True)
        return moved

    def move(self, entry: Entry, payload: bytes, there: DelayedQueue) -> bool:
        """Move a waiting message to the delayed queue of another list of its queue, with a new payload.

        One atomic script. It keeps its due time, its message id and its unique key.

        Args:
            entry: an entry that this package offered, as it was read.
            payload: the new payload.
            there: the other one. On a cluster, both lists are in one hash slot.

        Returns:
            False if the entry has changed or no longer waits.
        """
        there.register()
        call = move(self.keys, there=there.keys, due_ms=entry.score, entry=entry.raw, payload=payload)
        moved, alone = call.run(self.writer)
        if moved and alone:
            with suppress(redis.ResponseError):  # see `offer`; it was moved anyway
                there.register(again=True)
        return moved

    def register(self, *, again: bool = False) -> bool:
        """Make sure that transfer loops know this queue. Sends at most one command a minute, unless `again` is true.

        The registry has its own hash slot, so the script that offers cannot write it. It is written first. A new queue
        is announced on the channel of the same name. If the registry key has another type, that is logged, and no error
        is raised; nor is one on a cluster while the registry's node is away, see `Registry.add`.

        Returns:
            Whether a command was sent.
        """
        now = time.monotonic()
        if now < self._register_again_at and not again:
            return False
        is_registered = self._registry.add(self.name)
        self._register_again_at = now + (REGISTERED_FOR_S if is_registered else _REGISTER_SOON_S)
        return True

    def _registered_until(self) -> float:
        """Register this queue, see `register`; return until when nothing else has to, monotonic time, 0 if unknown."""
        begun = time.monotonic()
        return begun + REGISTERED_FOR_S if self.register() else 0.0

    def transfer(
        self, limit: int = BATCH_SIZE, *, transferrer: str = "", grace: Span = 0, lead: Span = 0
    ) -> Transferred:
        """Move messages that are due, by the server's clock, to the list, earliest first. One atomic script.

        Args:
            limit: maximum number of messages to move, 1 to 1,000. A call may move fewer although more are due.
            transferrer: id of a loop. Only the punctual loop of a queue moves messages as soon as they are due. Without
                an id, the call moves due messages at once and has no effect on which loop is punctual.
            grace: how long other loops leave due messages to the punctual loop: a timedelta, or seconds.
            lead: also move messages that are due within this time, a timedelta or seconds, for consumers that wait for
                the rest themselves.

        Raises:
            TypeError: `grace` or `lead` is neither a timedelta nor a number.
            ValueError: `limit` is out of range, or `grace` or `lead` is infinite or NaN.
        """
        if not 1 <= limit <= MAX_BATCH_SIZE:
            raise ValueError(f"limit must be 1 to {MAX_BATCH_SIZE}, not {limit!r}")
        grace_ms, lead_ms = round(span_s(grace, "grace") * 1000), round(span_s(lead, "lead") * 1000)
        return scripts.transfer(
            self.keys, limit=limit, transferrer=transferrer, grace_ms=grace_ms, lead_ms=lead_ms
        ).run(self.client)

    def resign(self, transferrer: str) -> bool:
        """Stop being the punctual loop of this queue. Returns whether `transferrer` was."""
        return scripts.resign(self.keys, transferrer=transferrer).run(self.client)

    def take(self, timeout: Span | None = None) -> bytes | None:
        """Wait for a message and remove it from the list. Transfers messages that become due in the meantime.

        As with RBlockingQueue.take, a taken message is lost if its taker dies.

        The call wakes up when the earliest message becomes due. If another process offers an earlier message during
        the wait, it is noticed within a second, or at once if a transfer loop runs.

        Args:
            timeout: how long to wait: a timedelta, or seconds. None waits without a limit; 0 does not wait.

        Returns:
            The payload, or None after the timeout.

        Raises:
            TypeError: `timeout` is neither a timedelta nor a number.
            ValueError: `timeout` is infinite or NaN.
        """
        deadline = None if timeout is None else time.monotonic() + span_s(timeout, "timeout")
        while True:
            seen = self.transfer()
            payload: bytes | None = self.client.execute_command("RPOP", self.name, **{NEVER_DECODE: True})
            if payload is not None:
                return payload
            wait_s = self._take_slice_s
            if seen.head_due is not None:
                wait_s = min(wait_s, (seen.head_due - seen.now).total_seconds())
            if deadline is not None:
                wait_s = min(wait_s, deadline - time.monotonic())
                if wait_s <= 0 and time.monotonic() >= deadline:
                    return None
            # For BRPOP, 0 means "for ever", and Redis 6.2 rounds 0.001 down to 0.
            popped = self.client.execute_command(
                "BRPOP", self.name, max(round(wait_s, 3), 0.002), **{NEVER_DECODE: True}
            )
            if popped:
                return bytes(popped[1])


def _due(eta: Time | None, countdown: Span | None) -> tuple[int | None, int]:
    """Return an eta as unix time in ms; or None, and a countdown in ms. The errors are those of `due_at`."""
    if eta is not None and countdown is None:
        return to_ms(eta, "eta"), 0
    now_ms = time.time_ns() // 1_000_000  # it cancels out: the server adds the countdown to its own time
    return None, max(0, to_ms(due_at(now_ms, countdown=countdown, eta=eta), "countdown") - now_ms)


def database_of(client: redis.Redis) -> int:
    """Return the number of the database that a client uses."""
    return int(client.get_connection_kwargs().get("db") or 0)

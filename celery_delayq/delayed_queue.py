"""DelayedQueue: Redisson's RDelayedQueue in Python, for any bytes and any Redis client, without Celery.

All Redis structures of the package are created and read here; the transport, the transfer loop and the commands
are callers.
"""

from __future__ import annotations

import operator
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import redis
from redis.client import NEVER_DECODE

from celery_delayq import codec, keys, scripts
from celery_delayq.entry import Entry, Position, entries_of, entry_of, in_batches, pairs
from celery_delayq.registry import REGISTERED_FOR_S, Registry
from celery_delayq.scripts import MAX_BATCH_SIZE, Transferred

#: Messages one call of `transfer` moves at most, unless told otherwise.
BATCH_SIZE = 100

#: Above all due times that datetime knows, and with any delay added still exact in Lua's and Redis' doubles.
_END_OF_TIME_MS = 2**52

#: Longest single wait of `take` on the server, in seconds; then it looks whether the head has changed.
_TAKE_SLICE_S = 1.0


class DelayedQueue:
    """The delayed queue in front of one Redis list.

    A message that is offered waits in a ZSET until it is due; a transfer then moves it to the list, from whose right
    end consumers take. Layout and notifications are Redisson's, so Java's RDelayedQueue can share it.

    Safe to share between threads if the client is. It holds no connection and needs no closing. Every method raises
    `redis.RedisError` when the server is away or refuses.

    Nothing is retried here. A client of your own may do so: `redis.Redis()` does by default since redis-py 6, and may
    then offer a message twice, or lose one that it takes, if the connection breaks before the reply. Give it
    `retry=Retry(NoBackoff(), 0)` where that matters.

    Args:
        client: any `redis.Redis`; what it decodes does not matter.
        name: full name of the destination list.
        mirror_list: write Redisson's delay list too, for the methods of RDelayedQueue that read it (`size`,
            `contains`, `remove`, `poll`, iteration). Costs memory, and time that grows with the number of pending
            messages.
        keyprefix: prefix of the registry of queues, kombu's `global_keyprefix`.
    """

    def __init__(self, client: redis.Redis, name: str, *, mirror_list: bool = False, keyprefix: str = "") -> None:
        if not isinstance(name, str) or not name:
            raise TypeError(f"the name of a list must be a str, not {name!r}")
        self.client = client
        self.name = name
        self.mirror_list = mirror_list
        self.keys = keys.QueueKeys.of(name, database_of(client))
        self._registry = Registry(client, keyprefix)
        self._register_again_at = 0.0
        # A client that stops listening before the server answers would lose what it answers.
        reply_timeout_s = client.get_connection_kwargs().get("socket_timeout")
        self._take_slice_s = min(_TAKE_SLICE_S, reply_timeout_s / 2) if reply_timeout_s else _TAKE_SLICE_S

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    def offer(
        self,
        payload: bytes,
        *,
        due_ms: int | None = None,
        delay_s: float | None = None,
        message_id: str | None = None,
    ) -> str:
        """Store a message until it is due. One atomic script.

        Args:
            payload: the message, opaque bytes.
            due_ms: when it is due, unix time in ms; or
            delay_s: in how many seconds, by the server's clock.
            message_id: by which `cancel` finds it; any text. A random one if not given. An id that is in use already
                gets one more entry.

        Returns:
            The message id.

        Raises:
            ValueError: not exactly one of `due_ms` and `delay_s`, or a negative or absurdly large one.
            TypeError: `due_ms` is no whole number, `payload` is not bytes, or `message_id` not text.
        """
        if (due_ms is None) == (delay_s is None):
            raise ValueError("offer() takes either due_ms or delay_s")
        given_ms = operator.index(due_ms) if due_ms is not None else (delay_s or 0) * 1000
        if not 0 <= given_ms < _END_OF_TIME_MS:
            raise ValueError(f"cannot offer a message for the past, or beyond the year 9999: {due_ms=}, {delay_s=}")
        if not isinstance(payload, bytes):
            raise TypeError(f"a payload must be bytes, not {type(payload).__name__}")
        message_id = str(uuid.uuid4()) if message_id is None else message_id
        begun = time.monotonic()
        just_registered = self.register()
        _, alone = scripts.offer(
            self.client,
            self.keys,
            due_ms=due_ms,
            delay_ms=round(delay_s * 1000) if delay_s is not None else 0,
            message_key=codec.message_key(message_id),
            payload=payload,
            mirrored=self.mirror_list,
        )
        if alone and not (just_registered and time.monotonic() < begun + REGISTERED_FOR_S):
            # The queue was empty: its name may have left the registry, or the server has lost its data.
            self.register(again=True)
        return message_id

    def offer_fetched(self, message: bytes, payload: bytes, *, consumer: str, due_ms: int, message_id: str) -> bool:
        """Move a message that a consumer has fetched from the list to the delayed queue. One atomic script.

        Args:
            message: as it was fetched.
            payload: what to store instead.
            consumer: who has it in flight.
            due_ms: when it is due, unix time in ms.
            message_id: by which `cancel` finds it.

        Returns:
            Whether it was in flight; if not, nothing was stored.
        """
        self.register()
        moved, alone = scripts.offer_fetched(
            self.client,
            self.keys,
            consumer=consumer,
            message=message,
            due_ms=due_ms,
            message_key=codec.message_key(message_id),
            payload=payload,
            mirrored=self.mirror_list,
        )
        if moved and alone:
            # See `offer`. The message is stored, whatever becomes of this, and the consumer's own loop knows the list.
            with suppress(redis.ResponseError):
                self.register(again=True)
        return moved

    def register(self, *, again: bool = False) -> bool:
        """Make sure that transfer loops know this queue; at most one command a minute unless `again` is true.

        The registry is in a hash slot of its own, hence not part of the script that offers: it comes first, and a
        queue that stays empty leaves it again. A new queue is announced on the channel of the same name. A registry of
        another type is logged, and no error.

        Returns:
            Whether a command was sent.
        """
        now = time.monotonic()
        if now < self._register_again_at and not again:
            return False
        self._registry.add(self.name)
        self._register_again_at = now + REGISTERED_FOR_S
        return True

    def cancel(self, message_id: str) -> int:
        """Remove all entries of a message id that still wait.

        Atomic against a transfer: an entry is either removed or delivered. O(log N) an entry.

        Returns:
            How many were removed; 0 if the message is not, or no longer, waiting.
        """
        message_key = codec.message_key(message_id)
        removed, left = scripts.cancel(self.client, self.keys, message_key=message_key)
        while left:
            more, left = scripts.cancel(self.client, self.keys, message_key=message_key)
            removed += more
        return removed

    def peek(self, count: int = 1) -> list[Entry]:
        """Return the next `count` messages in due order without touching them; corrupt entries are left out.

        Raises:
            ValueError: `count` is less than 1.
        """
        if count < 1:
            raise ValueError(f"count must be 1 or more, not {count!r}")
        found = self.client.execute_command(
            "ZRANGE", self.keys.timeout_set, 0, count - 1, "WITHSCORES", **{NEVER_DECODE: True}
        )
        return list(entries_of(pairs(found)))

    def find(self, message_id: str) -> list[Entry]:
        """Return the entries of a message id that wait, in the order of their offers. O(log N) an entry.

        One bounded call for a hundred. What is offered or moved meanwhile may be missed, nothing that waits all the
        time is.
        """
        message_key = codec.message_key(message_id)
        found, after = scripts.find(self.client, self.keys, message_key=message_key)
        while after:
            more, after = scripts.find(self.client, self.keys, message_key=message_key, after=after)
            found += more
        entries = entries_of((raw, due_ms) for due_ms, raw in found)
        return sorted(entries, key=lambda entry: entry.id)

    def page(
        self,
        after: Entry | Position | None = None,
        *,
        due_from_ms: int | None = None,
        due_to_ms: int | None = None,
        limit: int = 100,
    ) -> list[Entry]:
        """Return what waits in due order, a page at a time; corrupt entries are left out.

        One bounded call; O(log N) to find the place. What is offered or moved meanwhile may be missed, nothing that
        waits all the time is.

        Args:
            after: the last entry of the page before, or its position; it need not wait any more.
            due_from_ms: only what is due then or later, unix time in ms; of no effect with `after`.
            due_to_ms: only what is due then or earlier.
            limit: entries at most, 1 to 1,000; large ones count for several. Only an empty page is the last one.

        Raises:
            ValueError: `limit` out of range.
        """
        pages = self.pages(after, due_from_ms=due_from_ms, due_to_ms=due_to_ms, limit=limit)
        return next(pages, [])

    def pages(
        self,
        after: Entry | Position | None = None,
        *,
        due_from_ms: int | None = None,
        due_to_ms: int | None = None,
        limit: int = 100,
    ) -> Iterator[list[Entry]]:
        """Yield page after page, see `page`."""
        for _, entries in self.search((), after, due_from_ms=due_from_ms, due_to_ms=due_to_ms, limit=limit):
            if entries:
                yield entries

    def search(
        self,
        marks: Sequence[bytes],
        after: Entry | Position | None = None,
        *,
        due_from_ms: int | None = None,
        due_to_ms: int | None = None,
        limit: int = 100,
    ) -> Iterator[tuple[int, list[Entry]]]:
        """Yield what waits and holds one of these byte strings, in due order. The server searches, in bounded calls.

        As in `page`, nothing that waits all the time is missed.

        Args:
            marks: the byte strings; none: everything is found.
            after: see `page`; so are the following.
            due_from_ms: unix time in ms.
            due_to_ms: unix time in ms.
            limit: entries that one call reads at most, 1 to 1,000.

        Yields:
            For each call how many entries it read, corrupt ones as well, and those that it found; these end with the
            last one that it read, since that says how far the search is. Corrupt ones are left out.

        Raises:
            ValueError: `limit` out of range.
        """
        if not 1 <= limit <= scripts.MAX_PAGE:
            raise ValueError(f"limit must be 1 to {scripts.MAX_PAGE}, not {limit!r}")
        begin: dict[str, Any] = {"due_ms": due_from_ms}
        if after is not None:
            begin = _behind(after.position if isinstance(after, Entry) else after)
        while True:
            read, found = scripts.page(self.client, self.keys, last_due_ms=due_to_ms, limit=limit, marks=marks, **begin)
            if not found:
                return
            yield read, list(entries_of(found))
            raw, score = found[-1]
            last = entry_of(raw, score)
            corrupt = {"due_ms": scripts.score_to_ms(score), "skip": "entry", "after": raw}
            begin = corrupt if last is None else _behind(last.position)

    def count(self, *, due_from_ms: int | None = None, due_to_ms: int | None = None) -> int:
        """Return how many entries are due in a span of time, both ends included; corrupt ones as well. O(log N)."""
        low: int | str = "-inf" if due_from_ms is None else due_from_ms
        high: int | str = "+inf" if due_to_ms is None else due_to_ms
        return int(self.client.zcount(self.keys.timeout_set, low, high))

    def amend(self, entry: Entry, payload: bytes, *, due_ms: int | None = None) -> int | None:
        """Give a message that waits another due time and payload. One atomic script.

        Args:
            entry: one that this package offered, as it was read.
            payload: what to store instead.
            due_ms: unix time in ms; now by default.

        Returns:
            The due time, or None if the entry does not wait any more as it was read.

        Raises:
            ValueError: Redisson offered it, so that it has no message id.
        """
        if codec.OfferId.from_bytes(entry.id) is None:
            raise ValueError("only entries that this package offered can be amended")
        return scripts.amend(self.client, self.keys, entry=entry.raw, due_ms=due_ms, payload=payload)

    def remove(self, entries: Sequence[Entry]) -> list[bool]:
        """Remove messages, each if it still waits as it was read; returns which were. One atomic script a hundred."""
        return in_batches(
            [(entry.raw,) for entry in entries],
            lambda batch: scripts.remove(self.client, self.keys, entries=[raw for (raw,) in batch]),
        )

    def release(self, messages: Sequence[tuple[Entry, bytes]]) -> list[bool]:
        """Move messages to the back of the list before they are due; returns which were. One atomic script a hundred.

        Args:
            messages: entries as they were read, in the order in which they are to be consumed, each with the message
                to write. One that does not wait any more as it was read is not moved.
        """
        return in_batches(
            [(entry.raw, message) for entry, message in messages],
            lambda batch: scripts.release(self.client, self.keys, messages=batch),
        )

    def size(self) -> int:
        """Return how many messages wait, due ones that no one has transferred yet included."""
        return int(self.client.zcard(self.keys.timeout_set))

    def transfer(
        self, limit: int = BATCH_SIZE, *, transferrer: str = "", grace_ms: int = 0, lead_ms: int = 0
    ) -> Transferred:
        """Move messages that are due by the server's clock to the list, the earliest first. One atomic script.

        Args:
            limit: messages to move at most, 1 to 1,000. A call may move fewer although more are due.
            transferrer: id of a loop; only the punctual loop of a queue moves messages as soon as they are due. By
                default the call moves what is due and takes no part in that.
            grace_ms: how long another loop leaves due messages to the punctual one, in ms.
            lead_ms: move what is due within so many ms, too; for consumers that wait for the rest themselves.

        Raises:
            ValueError: `limit` out of range.
        """
        if not 1 <= limit <= MAX_BATCH_SIZE:
            raise ValueError(f"limit must be 1 to {MAX_BATCH_SIZE}, not {limit!r}")
        return scripts.transfer(
            self.client, self.keys, limit=limit, transferrer=transferrer, grace_ms=grace_ms, lead_ms=lead_ms
        )

    def resign(self, transferrer: str) -> bool:
        """Stop being the punctual loop of this queue. Returns whether `transferrer` was."""
        return scripts.resign(self.client, self.keys, transferrer=transferrer)

    def take(self, timeout_s: float | None = None) -> bytes | None:
        """Wait for a message and remove it from the list; messages that become due meanwhile are transferred.

        As with RBlockingQueue.take, a message that was taken is gone even if its taker dies.

        It wakes when the earliest message becomes due. While it waits, a message that another process offers to
        become due before that is noticed within a second, or at once where a transfer loop runs.

        Args:
            timeout_s: how long to wait, in seconds; None waits for ever, 0 only looks.

        Returns:
            The payload, or None if the time is over.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            seen = self.transfer()
            payload: bytes | None = self.client.execute_command("RPOP", self.name, **{NEVER_DECODE: True})
            if payload is not None:
                return payload
            wait_s = self._take_slice_s
            if seen.head_due_ms is not None:
                wait_s = min(wait_s, seen.head_due_ms / 1000 - seen.now_us / 1_000_000)
            if deadline is not None:
                wait_s = min(wait_s, deadline - time.monotonic())
                if wait_s <= 0 and time.monotonic() >= deadline:
                    return None
            # BRPOP takes 0 for "for ever", and Redis 6.2 cuts 0.001 down to it.
            popped = self.client.execute_command(
                "BRPOP", self.name, max(round(wait_s, 3), 0.002), **{NEVER_DECODE: True}
            )
            if popped:
                return bytes(popped[1])


def _behind(position: Position) -> dict[str, Any]:
    """Return where a page begins that comes after a position, for `scripts.page`."""
    return {"due_ms": position.due_ms, "skip": "start", "after": position.start}


def database_of(client: redis.Redis) -> int:
    """Return the number of the database a client works on."""
    return int(client.get_connection_kwargs().get("db") or 0)

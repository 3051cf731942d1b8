"""Waiting: the messages that wait in a delayed queue. It finds, counts, changes, removes and releases them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import redis
from redis.client import NEVER_DECODE

from celery_delayq.basics.times import Time, to_ms
from celery_delayq.queue import codec, keys, scripts
from celery_delayq.queue.entry import Entry, Position, entries_of, entry_of, in_batches, pairs


class Waiting:
    """The part of `DelayedQueue` for messages that wait.

    Attributes:
        client: reads.
        writer: changes.
        keys: of the queue.
    """

    client: redis.Redis
    writer: redis.Redis
    keys: keys.QueueKeys

    def cancel(self, message_id: str) -> int:
        """Remove all waiting entries of a message id.

        Atomic with regard to a transfer: an entry is either removed or delivered. O(log N) per entry.

        Returns:
            The number of removed entries; 0 if the message is not waiting.
        """
        message_key = codec.message_key(message_id)
        removed, left = scripts.cancel(self.keys, message_key=message_key).run(self.writer)
        while left:
            more, left = scripts.cancel(self.keys, message_key=message_key).run(self.writer)
            removed += more
        return removed

    def peek(self, count: int = 1) -> list[Entry]:
        """Return the next `count` messages in due order, without changing them. Corrupt entries are skipped.

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
        """Return the waiting entries of a message id, in the order of their offers. O(log N) per entry.

        One bounded call per hundred entries. An entry that waits all the time is always found. Entries that are offered
        or moved in the meantime may be missed.
        """
        message_key = codec.message_key(message_id)
        found, after = scripts.find(self.keys, message_key=message_key).run(self.client)
        while after:
            more, after = scripts.find(self.keys, message_key=message_key, after=after).run(self.client)
            found += more
        entries = entries_of((raw, due_ms) for due_ms, raw in found)
        return sorted(entries, key=lambda entry: entry.id)

    def page(
        self,
        after: Entry | Position | None = None,
        *,
        due_after: Time | None = None,
        due_before: Time | None = None,
        limit: int = 100,
    ) -> list[Entry]:
        """Return a page of waiting entries in due order. Corrupt entries are skipped.

        One bounded call; O(log N) to find the place. Over all pages, an entry that waits all the time is never missed.
        Entries that are offered or moved in the meantime may be missed.

        Args:
            after: the last entry of the previous page, or its position. It need not be waiting any more.
            due_after: only entries due at this time or later; a datetime, or unix time in seconds. Has no effect
                together with `after`.
            due_before: only entries due before this time.
            limit: maximum number of entries, 1 to 1,000. Large entries count as several. Only an empty page is the
                last one.

        Raises:
            TypeError: a time is neither a datetime nor a number.
            ValueError: `limit` or a time is out of range.
        """
        pages = self.pages(after, due_after=due_after, due_before=due_before, limit=limit)
        return next(pages, [])

    def pages(
        self,
        after: Entry | Position | None = None,
        *,
        due_after: Time | None = None,
        due_before: Time | None = None,
        limit: int = 100,
    ) -> Iterator[list[Entry]]:
        """Yield page after page; see `page`."""
        lowest, highest = _scores(due_after, due_before)
        for _, entries in self.search((), after, lowest=lowest, highest=highest, limit=limit):
            if entries:
                yield entries

    def search(
        self,
        marks: Sequence[Sequence[bytes]],
        after: Entry | Position | None = None,
        *,
        lowest: int | None = None,
        highest: int | None = None,
        limit: int = 100,
    ) -> Iterator[tuple[int, list[Entry]]]:
        """Yield waiting entries that contain certain byte strings, in due order. The server does the search.

        All calls are bounded. As in `page`, an entry that waits all the time is never missed.

        Args:
            marks: groups of byte strings. An entry must contain one of each group. Without any, all entries are found.
            after: see `page`.
            lowest: only entries with this score or a higher one, see `Entry`. Has no effect together with `after`.
            highest: only entries with this score or a lower one.
            limit: maximum number of entries that one call reads, 1 to 1,000.

        Yields:
            For each call, the number of entries that it read, including corrupt ones; and the entries that it found,
            without corrupt ones. The last entry that it read is always among them, because it shows how far the search
            is.

        Raises:
            ValueError: `limit` is out of range.
        """
        if not 1 <= limit <= scripts.MAX_PAGE:
            raise ValueError(f"limit must be 1 to {scripts.MAX_PAGE}, not {limit!r}")
        begin: dict[str, Any] = {"due_ms": lowest}
        if after is not None:
            begin = _behind(after.position if isinstance(after, Entry) else after)
        while True:
            call = scripts.page(self.keys, last_due_ms=highest, limit=limit, marks=marks, **begin)
            read, found = call.run(self.client)
            if not found:
                return
            yield read, list(entries_of(found))
            raw, score = found[-1]
            last = entry_of(raw, score)
            corrupt = {"due_ms": scripts.score_to_ms(score), "skip": "entry", "after": raw}
            begin = corrupt if last is None else _behind(last.position)

    def count(self, *, due_after: Time | None = None, due_before: Time | None = None) -> int:
        """Count the entries due in a time span, see `page`. Corrupt entries count too. O(log N)."""
        return int(self.client.zcount(self.keys.timeout_set, *scores_of(*_scores(due_after, due_before))))

    def amend(self, entry: Entry, payload: bytes, *, eta: Time | None = None) -> bool:
        """Give a waiting message a new payload, and perhaps a new due time. One atomic script.

        Args:
            entry: an entry that this package offered, as it was read.
            payload: the new payload.
            eta: the new due time: a datetime, or unix time in seconds. By default it stays the same.

        Returns:
            False if the entry has changed or no longer waits.

        Raises:
            TypeError: `eta` is neither a datetime nor a number.
            ValueError: Redisson offered the entry, so it has no message id; or `eta` is after the year 9999.
        """
        if not codec.OfferId.is_one(entry.id):
            raise ValueError("cannot amend an entry that another program offered")
        due_ms = entry.score if eta is None else to_ms(eta, "eta")
        (amended,) = scripts.amend(self.keys, due_ms=due_ms, messages=[(entry.raw, payload)]).run(self.writer)
        return amended

    def amend_many(self, messages: Sequence[tuple[Entry, bytes]], *, eta: Time) -> list[bool]:
        """Give waiting messages one new due time, and each its new payload; see `amend`. One atomic script per 25.

        Args:
            messages: entries that this package offered, as they were read, each with the new payload.
            eta: the new due time: a datetime, or unix time in seconds.

        Returns:
            For each entry, whether it was changed; it was not if it has changed or no longer waits.

        Raises:
            TypeError: `eta` is neither a datetime nor a number.
            ValueError: another program offered one of the entries, or `eta` is after the year 9999. Then
                nothing was changed.
        """
        due_ms = to_ms(eta, "eta")
        if not all(codec.OfferId.is_one(entry.id) for entry, _ in messages):
            raise ValueError("cannot amend an entry that another program offered")
        return in_batches(
            [(entry.raw, payload) for entry, payload in messages],
            lambda batch: scripts.amend(self.keys, due_ms=due_ms, messages=batch).run(self.writer),
        )

    def remove(self, entries: Sequence[Entry]) -> list[bool]:
        """Remove messages that have not changed. Returns which were removed. One atomic script per hundred."""
        return in_batches(
            [(entry.raw,) for entry in entries],
            lambda batch: scripts.remove(self.keys, entries=[raw for (raw,) in batch]).run(self.writer),
        )

    def release(self, messages: Sequence[tuple[Entry, bytes]]) -> list[bool]:
        """Move messages to the back of the list before they are due. One atomic script per hundred.

        Args:
            messages: entries as they were read, in the order in which consumers should get them, each with the message
                to write. An entry that has changed or no longer waits is not moved.

        Returns:
            For each entry, whether it was moved.
        """
        return in_batches(
            [(entry.raw, message) for entry, message in messages],
            lambda batch: scripts.release(self.keys, messages=batch).run(self.writer),
        )

    def size(self) -> int:
        """Return the number of waiting messages, including due ones that are not transferred yet."""
        return int(self.client.zcard(self.keys.timeout_set))


def scores_of(lowest: int | None, highest: int | None) -> tuple[int | str, int | str]:
    """Return a range of scores, both ends included, for commands like ZCOUNT; None is no limit."""
    return "-inf" if lowest is None else lowest, "+inf" if highest is None else highest


def _scores(due_after: Time | None, due_before: Time | None) -> tuple[int | None, int | None]:
    """Return the lowest and the highest score of a time span; its end is not included."""
    lowest = None if due_after is None else to_ms(due_after, "due_after")
    return lowest, None if due_before is None else to_ms(due_before, "due_before") - 1


def _behind(position: Position) -> dict[str, Any]:
    """Return the start of the page after a position, as arguments of `scripts.page`."""
    return {"due_ms": position.score, "skip": "start", "after": position.start}

"""Dead letters: messages of a broker list that were set aside, with the reason. Knows only Redis."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import redis
from redis.client import NEVER_DECODE

from celery_delayq.queue import cursors, keys, scripts
from celery_delayq.queue.connections import as_text
from celery_delayq.queue.dead_letter import (
    DELIVERY_LIMIT,
    INVALID_TASK,
    NOT_A_MESSAGE,
    NOT_AN_ENTRY,
    REASONS,
    DeadLetter,
    pack,
    reason_of,
    unpack,
)

__all__ = [
    "DELIVERY_LIMIT",
    "INVALID_TASK",
    "NOT_AN_ENTRY",
    "NOT_A_MESSAGE",
    "REASONS",
    "DeadChunk",
    "DeadLetter",
    "DeadLetters",
    "DeadPage",
    "pack",
    "reason_of",
    "unpack",
]

#: Maximum number of letters of a page, or of a chunk.
MAX_LETTERS = 1000

#: Number of letters that one command reads.
_READ = 100

#: An id, as `lua/lib/bury.lua` makes it.
_ID = re.compile("[0-9a-f]{16}")

#: The time (ms) and the id of a letter. Letters are sorted by these.
Mark: TypeAlias = tuple[int, str]


@dataclass(frozen=True)
class DeadPage:
    """Some dead letters of a list, oldest first.

    Attributes:
        letters: the letters.
        cursor: where the next page starts; None after the last page. It stays useful when letters are removed.
    """

    letters: tuple[DeadLetter, ...]
    cursor: str | None

    def __iter__(self) -> Iterator[DeadLetter]:
        return iter(self.letters)

    def __len__(self) -> int:
        return len(self.letters)


@dataclass(frozen=True)
class DeadChunk:
    """What became of some dead letters that were requeued or purged.

    Attributes:
        changed: how many were requeued or purged.
        refused: how many cannot be requeued, because they are not messages. They stay.
        cursor: where the next chunk starts; None after the last one.
    """

    changed: int
    refused: int
    cursor: str | None


class DeadLetters:
    """The dead letters of a broker list. Safe to share between threads if the client is.

    Every method raises `redis.RedisError` if the server is away or refuses a command.

    Args:
        client: any `redis.Redis`.
        name: full name of the broker list.
        writer: executes `requeue` and `requeue_some`; by default `client`. See `DelayedQueue`.
    """

    def __init__(self, client: redis.Redis, name: str, *, writer: redis.Redis | None = None) -> None:
        self.client = client
        self.writer = client if writer is None else writer
        self.name = name
        self.keys = keys.QueueKeys.of(name)

    def __len__(self) -> int:
        return int(self.client.zcard(self.keys.dead))

    def __iter__(self) -> Iterator[DeadLetter]:
        """Yield the letters that are there at the beginning, oldest first.

        They may be requeued and purged meanwhile, these or others. None is missed and none comes twice.
        """
        last, after = self._last(), None
        while last and (marks := self._marks(after, last, _READ)):
            yield from self._letters(marks)
            after = marks[-1]

    def page(self, cursor: str | None = None, limit: int = 100) -> DeadPage:
        """Return a page of letters, oldest first. It takes no longer if there are many.

        Letters may be requeued and purged between two pages: none of the others is missed or shown twice.

        Args:
            cursor: the cursor of the previous page; None for the first.
            limit: maximum number of letters, 1 to 1,000.

        Raises:
            TypeError: `limit` is not a whole number, or `cursor` is not a string.
            ValueError: `limit` is out of range, or `cursor` is not the cursor of a page.
        """
        check_limit(limit)
        after, _ = _read(cursor)
        letters: list[DeadLetter] = []
        while wanted := min(_READ, limit - len(letters)):
            marks = self._marks(after, None, wanted + 1)
            letters += self._letters(marks[:wanted])
            if len(marks) <= wanted:
                return DeadPage(tuple(letters), None)
            after = marks[wanted - 1]
        return DeadPage(tuple(letters), _cursor(after))

    def find(self, letter_id: str) -> DeadLetter | None:
        """Return a letter by its id, or None."""
        return next(iter(self.find_many([letter_id])), None)

    def find_many(self, letter_ids: Collection[str]) -> list[DeadLetter]:
        """Return the letters with these ids that are there."""
        ids = [letter_id for letter_id in letter_ids if _ID.fullmatch(letter_id)]
        scores = self.client.zmscore(self.keys.dead, ids) if ids else []
        there = [(letter_id, score) for letter_id, score in zip(ids, scores, strict=True) if score is not None]
        marks = [(scripts.score_to_ms(score) or 0, letter_id) for letter_id, score in there]
        return [letter for at in range(0, len(marks), _READ) for letter in self._letters(marks[at : at + _READ])]

    def requeue(self, letter: DeadLetter, message: bytes | None = None) -> bool:
        """Move a message to the back of its broker list. Atomic.

        Args:
            letter: the letter.
            message: replaces the letter's message.

        Returns:
            False if the letter is no longer there.

        Raises:
            ValueError: the letter is not a message, so no worker could process it.
        """
        if letter.reason == NOT_AN_ENTRY:
            raise ValueError(f"cannot requeue dead letter {letter.id}: it is not a message. To delete it, use purge()")
        letters = [(letter.id, letter.message if message is None else message)]
        return bool(scripts.requeue_dead(self.keys, letters=letters).run(self.writer))

    def purge(self, letter: DeadLetter | None = None) -> int:
        """Remove one letter, or all. Returns how many were removed. Atomic."""
        if letter is not None:
            return self._purge([letter.id])
        with self.client.pipeline(transaction=True) as pipe:
            pipe.zcard(self.keys.dead)
            pipe.unlink(self.keys.dead)
            pipe.unlink(self.keys.records)
            return int(pipe.execute()[0])

    def requeue_some(
        self, limit: int = 1000, cursor: str | None = None, *, revive: Callable[[bytes], bytes]
    ) -> DeadChunk:
        """Move messages to the back of their broker list, oldest first. Each call moves 50 at most, and is atomic.

        The chunks together handle the letters that are there at the first chunk. So a message that becomes a dead
        letter again meanwhile is not requeued for ever.

        Args:
            limit: maximum number of letters to handle, 1 to 1,000.
            cursor: the cursor of the previous chunk, or of a page; None for the first letter.
            revive: returns the message to requeue for the message of a letter.

        Raises:
            TypeError: `limit` is not a whole number, or `cursor` is not a string.
            ValueError: `limit` is out of range, or `cursor` is not the cursor of a chunk or page.
        """

        def requeue(marks: Sequence[Mark]) -> tuple[int, int]:
            letters = self._letters(marks)
            messages = [(one.id, revive(one.message)) for one in letters if one.reason != NOT_AN_ENTRY]
            changed = scripts.requeue_dead(self.keys, letters=messages).run(self.writer) if messages else 0
            return changed, len(letters) - len(messages)

        return self._change(limit, cursor, requeue)

    def purge_some(self, limit: int = 1000, cursor: str | None = None) -> DeadChunk:
        """Remove letters, oldest first; see `requeue_some`. None is refused."""
        return self._change(limit, cursor, lambda marks: (self._purge([letter_id for _, letter_id in marks]), 0))

    def _change(self, limit: int, cursor: str | None, change: Callable[[Sequence[Mark]], tuple[int, int]]) -> DeadChunk:
        check_limit(limit)
        after, last = _read(cursor)
        last = last or self._last()
        changed = refused = 0
        while last and (wanted := min(scripts.MAX_REQUEUED, limit - changed - refused)):
            marks = self._marks(after, last, wanted)
            if marks:
                counts = change(marks)
                changed, refused = changed + counts[0], refused + counts[1]
                after = marks[-1]
            if len(marks) < wanted or after == last:
                return DeadChunk(changed, refused, None)
        return DeadChunk(changed, refused, _cursor(after, last) if last else None)

    def _purge(self, letter_ids: Sequence[str]) -> int:
        with self.client.pipeline(transaction=True) as pipe:
            pipe.zrem(self.keys.dead, *letter_ids)
            pipe.hdel(self.keys.records, *letter_ids)
            return int(pipe.execute()[0])

    def _last(self) -> Mark | None:
        """Return the mark of the newest letter; None if there is none."""
        found: Any = self.client.zrange(self.keys.dead, -1, -1, withscores=True)
        return next(((scripts.score_to_ms(score) or 0, as_text(letter_id)) for letter_id, score in found), None)

    def _marks(self, after: Mark | None, last: Mark | None, count: int) -> list[Mark]:
        """Return the marks of the letters behind one, up to another one."""
        found = scripts.page_dead(self.keys, after=after, last_ms=last and last[0], limit=count).run(self.client)
        return [mark for mark in found if last is None or mark <= last]

    def _letters(self, marks: Sequence[Mark]) -> list[DeadLetter]:
        """Return those of the letters with these marks that are still there."""
        if not marks:
            return []
        ids = [letter_id for _, letter_id in marks]
        records = self.client.execute_command("HMGET", self.keys.records, *ids, **{NEVER_DECODE: True})
        return [
            unpack(letter_id, at_ms, record)
            for (at_ms, letter_id), record in zip(marks, records, strict=True)
            if record is not None
        ]


def check_limit(limit: int) -> None:
    """Check the limit of a page or a chunk.

    Raises:
        TypeError: it is not a whole number.
        ValueError: it is out of range.
    """
    if type(limit) is not int:
        raise TypeError(f"limit must be a whole number, not {limit!r}")
    if not 1 <= limit <= MAX_LETTERS:
        raise ValueError(f"limit must be 1 to {MAX_LETTERS}, not {limit!r}")


def check_cursor(cursor: str | None) -> None:
    """Check the cursor of a page or a chunk.

    Raises:
        TypeError: it is not a string.
        ValueError: it is not a cursor.
    """
    _read(cursor)


def _cursor(*marks: Mark | None) -> str:
    return cursors.encode(marks)


def _read(cursor: str | None) -> tuple[Mark | None, Mark | None]:
    """Return behind which letter to begin, and at which to end."""
    return (None, None) if cursor is None else cursors.decode(cursor, _marks_of)


def _marks_of(after: Any, last: Any = None) -> tuple[Mark | None, Mark | None]:
    return _mark_of(after), None if last is None else _mark_of(last)


def _mark_of(value: Any) -> Mark:
    at_ms, letter_id = value
    if type(at_ms) is not int or not 0 <= at_ms < 2**53 or not _ID.fullmatch(letter_id):
        raise ValueError("a mark must be a time and an id")
    return at_ms, letter_id

"""Dead letters: messages of broker lists that were set aside, with the reason. Knows only Redis.

The record of a letter is a line of JSON with what is known of it, a newline, and the message. Readers ignore further
fields.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from types import NoneType
from typing import Any, TypeAlias

import redis
from redis.client import NEVER_DECODE

from celery_delayq.queue import cursors, scripts
from celery_delayq.queue.keys import QueueKeys

#: Reasons.
DELIVERY_LIMIT = "delivery-limit"
NOT_A_MESSAGE = "not-a-message"
NOT_AN_ENTRY = "not-an-entry"
INVALID_TASK = "invalid-task"

#: All of them.
REASONS = (DELIVERY_LIMIT, NOT_A_MESSAGE, NOT_AN_ENTRY, INVALID_TASK)

#: Maximum number of letters of a page, or of a chunk.
MAX_LETTERS = 1000

#: Number of letters that one command reads.
_READ = 100

#: An id, as `lua/lib/bury.lua` makes it.
_ID = re.compile("[0-9a-f]{16}")

#: Where a letter is among those of several broker lists: its list, its time (ms), its id.
Mark: TypeAlias = tuple[str, int, str]


@dataclass(frozen=True)
class DeadLetter:
    """A message that was set aside.

    Attributes:
        list_name: full name of its broker list.
        at_ms: when it was set aside, unix time in ms, by the server's clock.
        id: identifies it in its list; the server chose it.
        reason: `delivery-limit`, `not-a-message` (not a kombu message), `invalid-task` (no Celery worker can process
            it), or `not-an-entry` (not an entry of a delayed queue, or its record is damaged).
        message: bytes of the message.
        deliveries: how many times it was delivered without an acknowledgement; None if unknown.
        error: what is wrong with an invalid task; None for other reasons.
    """

    list_name: str
    at_ms: int
    id: str
    reason: str
    message: bytes
    deliveries: int | None = None
    error: str | None = None


def pack(message: bytes, *, reason: str, deliveries: int | None = None, error: str | None = None) -> bytes:
    """Return the record of a message. When it is written, the server adds its id and its time."""
    head = {"reason": reason, "deliveries": deliveries, "error": error}
    return json.dumps({name: value for name, value in head.items() if value is not None}).encode() + b"\n" + message


def unpack(list_name: str, at_ms: int, letter_id: str, record: bytes) -> DeadLetter:
    """Return the letter with this record."""
    first, _, message = record.partition(b"\n")
    try:
        head: Any = json.loads(first)
        reason, deliveries, error = head["reason"], head.get("deliveries"), head.get("error")
        if type(reason) is str and type(deliveries) in (int, NoneType) and type(error) in (str, NoneType):
            return DeadLetter(list_name, at_ms, letter_id, reason, message, deliveries, error)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    return DeadLetter(list_name, at_ms, letter_id, NOT_AN_ENTRY, record)


def reason_of(record: bytes) -> str:
    """Return the reason that a record states."""
    return unpack("", 0, "", record).reason


@dataclass(frozen=True)
class DeadPage:
    """Some dead letters.

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
    """The dead letters of a broker list, or of several. Safe to share between threads if the client is.

    Every method raises `redis.RedisError` if the server is away or refuses a command.

    Args:
        client: any `redis.Redis`.
        names: full names of the broker lists. Letters come list by list, in each the oldest first.
        writer: executes `requeue` and `requeue_some`; by default `client`. See `DelayedQueue`.
    """

    def __init__(self, client: redis.Redis, *names: str, writer: redis.Redis | None = None) -> None:
        self.client = client
        self.writer = client if writer is None else writer
        self._lists = {name: QueueKeys.of(name) for name in sorted(names)}

    def __len__(self) -> int:
        with self.client.pipeline(transaction=False) as pipe:
            for keys in self._lists.values():
                pipe.zcard(keys.dead)
            return sum(pipe.execute())

    def __iter__(self) -> Iterator[DeadLetter]:
        """Yield the letters that are there at the beginning.

        They may be requeued and purged meanwhile, these or others. None is missed and none comes twice.
        """
        until_ms, after = self._newest_ms(), None
        while marks := self._marks(after, until_ms, _READ):
            yield from self._letters(marks)
            after = marks[-1]

    def page(self, cursor: str | None = None, limit: int = 100) -> DeadPage:
        """Return a page of letters. It takes no longer if there are many.

        Letters may be requeued and purged between two pages: none of the others is missed or shown twice.

        Args:
            cursor: the cursor of the previous page; None for the first.
            limit: maximum number of letters, 1 to 1,000.

        Raises:
            TypeError: `limit` is not a whole number, or `cursor` is not a string.
            ValueError: `limit` is out of range, or `cursor` is not the cursor of a page.
        """
        after, _ = _read(cursor, limit)
        letters: list[DeadLetter] = []
        while wanted := min(_READ, limit - len(letters)):
            marks = self._marks(after, None, wanted + 1)
            letters += self._letters(marks[:wanted])
            if len(marks) <= wanted:
                return DeadPage(tuple(letters), None)
            after = marks[wanted - 1]
        return DeadPage(tuple(letters), cursors.encode([after]))

    def find(self, letter_id: str) -> DeadLetter | None:
        """Return a letter by its id, or None."""
        return self.find_many([letter_id]).get(letter_id)

    def find_many(self, letter_ids: Iterable[str]) -> dict[str, DeadLetter]:
        """Return the letters with these ids that are there, by id."""
        ids = [letter_id for letter_id in letter_ids if _ID.fullmatch(letter_id)]
        if not ids:
            return {}
        with self.client.pipeline(transaction=False) as pipe:
            for keys in self._lists.values():
                pipe.zmscore(keys.dead, ids)
            scores = zip(self._lists, pipe.execute(), strict=True)
        marks = [
            (name, scripts.score_to_ms(score) or 0, letter_id)
            for name, of_list in scores
            for letter_id, score in zip(ids, of_list, strict=True)
            if score is not None
        ]
        return {letter.id: letter for letter in self._letters(marks)}

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
        return bool(scripts.requeue_dead(self._lists[letter.list_name], letters=letters).run(self.writer))

    def purge(self, letter: DeadLetter | None = None) -> int:
        """Remove one letter, or all. Returns how many were removed. Atomic, for each broker list."""
        if letter is not None:
            return self._purge(letter.list_name, [letter.id])
        total = 0
        for keys in self._lists.values():
            with self.client.pipeline(transaction=True) as pipe:
                pipe.zcard(keys.dead)
                pipe.unlink(keys.dead)
                pipe.unlink(keys.records)
                total += pipe.execute()[0]
        return total

    def requeue_some(
        self, limit: int = 1000, cursor: str | None = None, *, revive: Callable[[bytes], bytes]
    ) -> DeadChunk:
        """Move messages to the back of their broker lists. Each call moves 50 at most, and is atomic.

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

        def requeue(name: str, marks: Sequence[Mark]) -> tuple[int, int]:
            letters = self._letters(marks)
            messages = [(one.id, revive(one.message)) for one in letters if one.reason != NOT_AN_ENTRY]
            changed = scripts.requeue_dead(self._lists[name], letters=messages).run(self.writer) if messages else 0
            return changed, len(letters) - len(messages)

        return self._change(limit, cursor, requeue)

    def purge_some(self, limit: int = 1000, cursor: str | None = None) -> DeadChunk:
        """Remove letters; see `requeue_some`. None is refused."""
        return self._change(limit, cursor, lambda name, marks: (self._purge(name, [mark[2] for mark in marks]), 0))

    def _change(
        self, limit: int, cursor: str | None, change: Callable[[str, Sequence[Mark]], tuple[int, int]]
    ) -> DeadChunk:
        after, until_ms = _read(cursor, limit)
        if until_ms is None:
            until_ms = self._newest_ms()
        changed = refused = 0
        while wanted := min(scripts.MAX_REQUEUED, limit - changed - refused):
            marks = self._marks(after, until_ms, wanted + 1)
            for name, of_list in groupby(marks[:wanted], key=itemgetter(0)):
                counts = change(name, list(of_list))
                changed, refused = changed + counts[0], refused + counts[1]
            if len(marks) <= wanted:
                return DeadChunk(changed, refused, None)
            after = marks[wanted - 1]
        return DeadChunk(changed, refused, cursors.encode([after, until_ms]))

    def _purge(self, name: str, letter_ids: Sequence[str]) -> int:
        with self.client.pipeline(transaction=True) as pipe:
            pipe.zrem(self._lists[name].dead, *letter_ids)
            pipe.hdel(self._lists[name].records, *letter_ids)
            return int(pipe.execute()[0])

    def _newest_ms(self) -> int:
        """Return the time of the newest letter; 0 if there is none."""
        with self.client.pipeline(transaction=False) as pipe:
            for keys in self._lists.values():
                pipe.zrange(keys.dead, -1, -1, withscores=True)
            return max((scripts.score_to_ms(score) or 0 for found in pipe.execute() for _, score in found), default=0)

    def _marks(self, after: Mark | None, until_ms: int | None, count: int) -> list[Mark]:
        """Return the marks of the letters behind one, without those that are newer."""
        marks: list[Mark] = []
        for name, keys in self._lists.items():
            if len(marks) < count and (after is None or after[0] <= name):
                inner = after[1:] if after and after[0] == name else None
                call = scripts.page_dead(keys, after=inner, until_ms=until_ms, limit=count - len(marks))
                marks += [(name, at_ms, letter_id) for at_ms, letter_id in call.run(self.client)]
        return marks

    def _letters(self, marks: Sequence[Mark]) -> list[DeadLetter]:
        """Return those of the letters with these marks that are still there."""
        letters = []
        for at in range(0, len(marks), _READ):
            for name, of_list in groupby(marks[at : at + _READ], key=itemgetter(0)):
                some = list(of_list)
                ids = [letter_id for _, _, letter_id in some]
                records = self.client.execute_command("HMGET", self._lists[name].records, *ids, **{NEVER_DECODE: True})
                found = zip(some, records, strict=True)
                letters += [unpack(*mark, record) for mark, record in found if record is not None]
        return letters


def _read(cursor: str | None, limit: int) -> tuple[Mark | None, int | None]:
    """Return behind which letter to begin, and the time of the newest one that is meant. Checks the limit, too."""
    if type(limit) is not int:
        raise TypeError(f"limit must be a whole number, not {limit!r}")
    if not 1 <= limit <= MAX_LETTERS:
        raise ValueError(f"limit must be 1 to {MAX_LETTERS}, not {limit!r}")
    return (None, None) if cursor is None else cursors.decode(cursor, _place)


def _place(after: Any, until_ms: Any = None) -> tuple[Mark, int | None]:
    name, at_ms, letter_id = after
    times = [at_ms] if until_ms is None else [at_ms, until_ms]
    if not all(type(ms) is int and 0 <= ms < 2**53 for ms in times) or not _ID.fullmatch(letter_id):
        raise ValueError("a letter must have a time and an id")
    if not isinstance(name, str):
        raise TypeError("a name must be a string")
    return (name, at_ms, letter_id), until_ms

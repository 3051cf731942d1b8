"""Dead letters: messages of broker lists that were set aside, with the reason, and failed tasks. Knows only Redis.

Failed tasks have keys of their own, since the oldest of them are dropped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, TypeAlias, overload

import redis
from redis.client import NEVER_DECODE

from celery_delayq.basics.text import plural
from celery_delayq.queue import cursors, scripts, set_aside
from celery_delayq.queue.dead_letter import NOT_AN_ENTRY, DeadLetter, unpack
from celery_delayq.queue.keys import QueueKeys

#: Maximum number of letters of a page, or of a chunk.
MAX_LETTERS = 1000

#: Number of letters that one command reads.
_READ = 100

#: An id, as `lua/lib/bury.lua` makes it.
_ID = re.compile("[0-9a-f]{16}")

#: Where a letter is among those of several broker lists: the label of its store, its time (ms), its id.
Mark: TypeAlias = tuple[str, int, str]

#: Whether a letter is wanted.
Wanted: TypeAlias = "Callable[[DeadLetter], bool]"


@dataclass(frozen=True)
class DeadPage:
    """Some dead letters.

    Attributes:
        letters: the letters. There may be fewer than the limit although more follow: only `cursor` tells.
        cursor: where the next page starts; None after the last page. It stays useful when letters are removed.
    """

    letters: tuple[DeadLetter, ...]
    cursor: str | None

    @overload
    def __getitem__(self, at: int) -> DeadLetter: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[DeadLetter, ...]: ...
    def __getitem__(self, at: int | slice) -> DeadLetter | tuple[DeadLetter, ...]:
        return self.letters[at]

    def __repr__(self) -> str:
        rest = "the last one" if self.cursor is None else "more follow"
        return f"<DeadPage of {plural(len(self.letters), 'dead letter')}, {rest}>"

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


class _Store(NamedTuple):
    """The dead letters of a broker list, or its failed tasks."""

    keys: QueueKeys
    failed: bool

    @property
    def label(self) -> str:
        """What it is called in a cursor."""
        return f"{'failed' if self.failed else 'dead'}:{self.keys.queue}"

    @property
    def letters(self) -> str:
        """The key of letters and their times."""
        return self.keys.failed if self.failed else self.keys.dead

    @property
    def records(self) -> str:
        """The key of their records."""
        return self.keys.failed_records if self.failed else self.keys.records


class DeadLetters:
    """The dead letters of a broker list, or of several, and the failed tasks. Safe for threads if the client is.

    Every method raises `redis.RedisError` if the server is away or refuses a command.

    Args:
        client: any `redis.Redis`.
        names: full names of the broker lists. Letters come list by list, then the failed tasks of each; the oldest
            first.
        writer: executes `requeue` and `requeue_some`; by default `client`. See `DelayedQueue`.
    """

    def __init__(self, client: redis.Redis, *names: str, writer: redis.Redis | None = None) -> None:
        self.client = client
        self.writer = client if writer is None else writer
        stores = [_Store(QueueKeys.of(name), failed=failed) for name in names for failed in (False, True)]
        #: Label -> store, sorted.
        self._stores = {store.label: store for store in sorted(stores, key=attrgetter("label"))}

    def __len__(self) -> int:
        with self.client.pipeline(transaction=False) as pipe:
            for store in self._stores.values():
                pipe.zcard(store.letters)
            return sum(pipe.execute())

    def __iter__(self) -> Iterator[DeadLetter]:
        """Yield the letters that are there at the beginning.

        They may be requeued and purged meanwhile, these or others. None is missed and none comes twice.
        """
        until_ms, after = self._newest_ms(), None
        while marks := self._marks(after, until_ms, _READ):
            yield from self._letters(marks)
            after = marks[-1]

    def page(self, cursor: str | None = None, limit: int = 100, wanted: Wanted = bool) -> DeadPage:
        """Return a page of letters. It takes no longer if there are many: it examines 1,000 at most.

        Letters may be requeued and purged between two pages: none of the others is missed or shown twice.

        Args:
            cursor: the cursor of the previous page; None for the first.
            limit: maximum number of letters, 1 to 1,000.
            wanted: says which letters to return; by default, all.

        Raises:
            TypeError: `limit` is not a whole number, or `cursor` is not a string.
            ValueError: `limit` is out of range, or `cursor` is not the cursor of a page.
        """
        after, _ = _read(cursor, limit)
        letters: list[DeadLetter] = []
        examined = 0
        while (few := min(_READ, limit - len(letters))) and examined < MAX_LETTERS:
            marks = self._marks(after, None, few + 1)
            letters += filter(wanted, self._letters(marks[:few]))
            if len(marks) <= few:
                return DeadPage(tuple(letters), None)
            after = marks[few - 1]
            examined += few
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
            for store in self._stores.values():
                pipe.zmscore(store.letters, ids)
            scores = zip(self._stores, pipe.execute(), strict=True)
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
        return bool(self._requeue(self._store_of(letter), letters))

    def purge(self, letter: DeadLetter | None = None) -> int:
        """Remove one letter, or all. Returns how many were removed. Atomic, for each broker list."""
        if letter is not None:
            return self._purge(self._store_of(letter), [letter.id])
        total = 0
        for store in self._stores.values():
            with self.client.pipeline(transaction=True) as pipe:
                pipe.zcard(store.letters)
                pipe.unlink(store.letters)
                pipe.unlink(store.records)
                total += pipe.execute()[0]
        return total

    def requeue_some(
        self,
        limit: int = 1000,
        cursor: str | None = None,
        *,
        revive: Callable[[bytes], bytes],
        wanted: Wanted = bool,
    ) -> DeadChunk:
        """Move messages to the back of their broker lists. Each call moves 50 at most, and is atomic.

        The chunks together handle the letters that are there at the first chunk. So a message that becomes a dead
        letter again meanwhile is not requeued without end.

        Args:
            limit: maximum number of letters to examine, 1 to 1,000.
            cursor: the cursor of the previous chunk, or of a page; None for the first letter.
            revive: returns the message to requeue for the message of a letter.
            wanted: says which letters to requeue; by default, all.

        Raises:
            TypeError: `limit` is not a whole number, or `cursor` is not a string.
            ValueError: `limit` is out of range, or `cursor` is not the cursor of a chunk or page.
        """

        def requeue(store: _Store, marks: Sequence[Mark]) -> tuple[int, int]:
            letters = [*filter(wanted, self._letters(marks))]
            messages = [(one.id, revive(one.message)) for one in letters if one.reason != NOT_AN_ENTRY]
            changed = self._requeue(store, messages) if messages else 0
            return changed, len(letters) - len(messages)

        return self._change(limit, cursor, requeue)

    def purge_some(self, limit: int = 1000, cursor: str | None = None, *, wanted: Wanted | None = None) -> DeadChunk:
        """Remove letters; see `requeue_some`. None is refused."""

        def purge(store: _Store, marks: Sequence[Mark]) -> tuple[int, int]:
            ids = [mark[2] for mark in marks]
            if wanted is not None:
                ids = [letter.id for letter in filter(wanted, self._letters(marks))]
            return self._purge(store, ids) if ids else 0, 0

        return self._change(limit, cursor, purge)

    def _change(
        self, limit: int, cursor: str | None, change: Callable[[_Store, Sequence[Mark]], tuple[int, int]]
    ) -> DeadChunk:
        after, until_ms = _read(cursor, limit)
        if until_ms is None:
            until_ms = self._newest_ms()
        changed = refused = examined = 0
        while few := min(set_aside.MAX_REQUEUED, limit - examined):
            marks = self._marks(after, until_ms, few + 1)
            for label, of_store in groupby(marks[:few], key=itemgetter(0)):
                counts = change(self._stores[label], list(of_store))
                changed, refused = changed + counts[0], refused + counts[1]
            if len(marks) <= few:
                return DeadChunk(changed, refused, None)
            after = marks[few - 1]
            examined += few
        return DeadChunk(changed, refused, cursors.encode([after, until_ms]))

    def _requeue(self, store: _Store, messages: Sequence[tuple[str, bytes]]) -> int:
        return set_aside.requeue_dead(store.keys, letters=messages, failed=store.failed).run(self.writer)

    def _purge(self, store: _Store, letter_ids: Sequence[str]) -> int:
        with self.client.pipeline(transaction=True) as pipe:
            pipe.zrem(store.letters, *letter_ids)
            pipe.hdel(store.records, *letter_ids)
            return int(pipe.execute()[0])

    def _store_of(self, letter: DeadLetter) -> _Store:
        return _Store(QueueKeys.of(letter.list_name), failed=letter.is_failure)

    def _newest_ms(self) -> int:
        """Return the time of the newest letter; 0 if there is none."""
        with self.client.pipeline(transaction=False) as pipe:
            for store in self._stores.values():
                pipe.zrange(store.letters, -1, -1, withscores=True)
            return max((scripts.score_to_ms(score) or 0 for found in pipe.execute() for _, score in found), default=0)

    def _marks(self, after: Mark | None, until_ms: int | None, count: int) -> list[Mark]:
        """Return the marks of the letters behind one, without those that are newer."""
        marks: list[Mark] = []
        for label, store in self._stores.items():
            if len(marks) < count and (after is None or after[0] <= label):
                inner, rest = after[1:] if after and after[0] == label else None, count - len(marks)
                call = set_aside.page_dead(store.keys, after=inner, until_ms=until_ms, limit=rest, failed=store.failed)
                marks += [(label, at_ms, letter_id) for at_ms, letter_id in call.run(self.client)]
        return marks

    def _letters(self, marks: Sequence[Mark]) -> list[DeadLetter]:
        """Return those of the letters with these marks that are still there."""
        letters = []
        for at in range(0, len(marks), _READ):
            for label, of_store in groupby(marks[at : at + _READ], key=itemgetter(0)):
                some, store = list(of_store), self._stores[label]
                ids = [letter_id for _, _, letter_id in some]
                records = self.client.execute_command("HMGET", store.records, *ids, **{NEVER_DECODE: True})
                letters += [
                    unpack(store.keys.queue, at_ms, letter_id, record, is_failure=store.failed)
                    for (_, at_ms, letter_id), record in zip(some, records, strict=True)
                    if record is not None
                ]
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

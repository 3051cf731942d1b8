"""Dead letters: messages of a broker list that were set aside, with the reason. Knows only Redis."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from typing import TypeAlias

import redis

from celery_delayq.queue import keys, scripts
from celery_delayq.queue.dead_letter import (
    DELIVERY_LIMIT,
    INVALID_TASK,
    NOT_A_MESSAGE,
    NOT_AN_ENTRY,
    REASONS,
    DeadLetter,
    id_of,
    pack,
    reason_of,
    unpack,
)
from celery_delayq.queue.dead_pages import READ, WINDOW, DeadChunk, DeadPage, Place, Walk, check_limit, elements

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

#: How far around a position one call looks at first, in letters.
_AROUND = 50

#: Number of letters that one call searches for a single one: on the server, and here.
_SEARCHED, _FOUND = 500, 200

#: Takes letters that lie between two positions out of a dead list. Returns for each whether it was there.
_Take: TypeAlias = Callable[[int, int, Sequence[DeadLetter]], list[bool]]


class DeadLetters:
    """The dead list of a broker list. Safe to share between threads if the client is.

    Every method raises `redis.RedisError` if the server is away or refuses a command. Letters with the same bytes have
    the same id, and are taken for each other.

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
        return int(self.client.llen(self.keys.dead))

    def __iter__(self) -> Iterator[DeadLetter]:
        """Yield the letters, oldest first: as many as there are at the beginning.

        They may be requeued and purged meanwhile, these or others. None is missed and none comes twice, unless others
        remove more than 1,000 letters while 100 are yielded.
        """
        left = len(self)
        walk = Walk(self.client, self.keys.dead, Place())
        while left > 0 and walk.more:
            letters = walk.read(min(READ, left))
            walk.go_past(letters)
            left -= len(letters)
            yield from letters

    def page(self, cursor: str | None = None, limit: int = 100) -> DeadPage:
        """Return a page of letters, oldest first. It takes no longer if there are many.

        Letters may be requeued and purged between two pages. The cursor names the last letter of the page and some
        before it, and the next page starts behind the last of these that is still there. It looks for them at their
        position and up to 1,000 letters before it. If all of them are gone, the next page starts 1,000 letters before
        that position, so letters may be shown twice. Letters are missed only if more than 1,000 letters before the
        cursor were removed.

        Args:
            cursor: the cursor of the previous page; None for the first.
            limit: maximum number of letters, 1 to 1,000.

        Raises:
            TypeError: `limit` is not a whole number, or `cursor` is not a string.
            ValueError: `limit` is out of range, or `cursor` is not the cursor of a page.
        """
        check_limit(limit)
        walk = Walk(self.client, self.keys.dead, Place.at(cursor))
        letters: list[DeadLetter] = []
        while walk.more and len(letters) < limit:
            found = walk.read(min(READ, limit - len(letters)))
            walk.go_past(found)
            letters += found
        return DeadPage(tuple(letters), walk.place(len(letters)).cursor if walk.more else None)

    def find(self, letter_id: str, near: int | None = None) -> DeadLetter | None:
        """Return a letter by its id, or None. Each call to Redis is bounded.

        Args:
            letter_id: the id.
            near: where it was, see `DeadLetter.position`. This place and 1,000 letters before it are searched first.
        """
        letter = None if near is None else self.find_near(letter_id, near)
        return letter or self._find(letter_id, self._everywhere(_FOUND))

    def find_near(self, letter_id: str, near: int) -> DeadLetter | None:
        """Return a letter by its id if it is about a position, or up to 1,000 letters before it; otherwise None."""
        return self._find(letter_id, _about(near, _FOUND))

    def _find(self, letter_id: str, spans: Iterable[tuple[int, int]]) -> DeadLetter | None:
        for first, last in spans:
            found = elements(self.client, self.keys.dead, first, last)
            for position, raw in reversed(list(enumerate(found, first))):
                if id_of(raw) == letter_id:
                    return unpack(raw, position)
        return None

    def find_many(self, letter_ids: Collection[str]) -> list[DeadLetter]:
        """Return the letters with these ids that are there: one pass at most. Each call to Redis is bounded."""
        wanted, found = set(letter_ids), []
        for first, last in self._everywhere(_FOUND) if wanted else ():
            for position, raw in enumerate(elements(self.client, self.keys.dead, first, last), first):
                if (letter_id := id_of(raw)) in wanted:
                    wanted.remove(letter_id)
                    found.append(unpack(raw, position))
            if not wanted:
                break
        return found

    def requeue(self, letter: DeadLetter, message: bytes | None = None) -> bool:
        """Move a message to the back of its broker list. Atomic. It is fast if the letter's position is about right.

        Args:
            letter: the letter.
            message: replaces the letter's message.

        Returns:
            False if the letter is no longer in the dead list.

        Raises:
            ValueError: the letter is not a message, so no worker could process it.
        """
        if letter.reason == NOT_AN_ENTRY:
            raise ValueError(f"cannot requeue dead letter {letter.id}: it is not a message. To delete it, use purge()")
        letters = [(letter.raw, message or letter.message)]
        return any(
            any(scripts.requeue_dead(self.keys, first=first, last=last, letters=letters).run(self.writer))
            for first, last in self._spans(letter.position)
        )

    def purge(self, letter: DeadLetter | None = None) -> int:
        """Remove one letter, or all. Returns how many were removed. Atomic."""
        if letter is not None:
            return int(
                any(
                    any(scripts.purge_dead(self.keys, first=first, last=last, letters=[letter.raw]).run(self.client))
                    for first, last in self._spans(letter.position)
                )
            )
        with self.client.pipeline(transaction=True) as pipe:
            pipe.llen(self.keys.dead)
            pipe.unlink(self.keys.dead)
            return int(pipe.execute()[0])

    def requeue_some(
        self, limit: int = 1000, cursor: str | None = None, *, revive: Callable[[bytes], bytes]
    ) -> DeadChunk:
        """Move messages to the back of their broker list, oldest first. Each call moves 50 at most, and is atomic.

        The chunks together handle as many letters as there are at the first chunk. So a message that becomes a dead
        letter again meanwhile is not requeued for ever. Letters before the cursor are never changed. If others remove
        all the letters that the cursor names, letters behind it may be left out; they stay in the list.

        Args:
            limit: maximum number of letters to handle, 1 to 1,000.
            cursor: the cursor of the previous chunk, or of a page; None for the first letter.
            revive: returns the message to requeue for the message of a letter.

        Raises:
            TypeError: `limit` is not a whole number, or `cursor` is not a string.
            ValueError: `limit` is out of range, or `cursor` is not the cursor of a chunk or page.
        """

        def requeue(first: int, last: int, letters: Sequence[DeadLetter]) -> list[bool]:
            messages = [(letter.raw, revive(letter.message)) for letter in letters]
            return scripts.requeue_dead(self.keys, first=first, last=last, letters=messages).run(self.writer)

        return self._change(limit, cursor, requeue, frozenset({NOT_AN_ENTRY}))

    def purge_some(self, limit: int = 1000, cursor: str | None = None) -> DeadChunk:
        """Remove letters, oldest first; see `requeue_some`. None is refused."""

        def purge(first: int, last: int, letters: Sequence[DeadLetter]) -> list[bool]:
            raws = [letter.raw for letter in letters]
            return scripts.purge_dead(self.keys, first=first, last=last, letters=raws).run(self.client)

        return self._change(limit, cursor, purge, frozenset())

    def _change(self, limit: int, cursor: str | None, take: _Take, refused_reasons: Set[str]) -> DeadChunk:
        check_limit(limit)
        place = Place.at(cursor)
        walk = Walk(self.client, self.keys.dead, place, goes_back=False)  # nothing before it is to be changed
        left = place.left
        if left is None:
            if cursor is not None:
                walk.read(0)  # finds out where the walk begins
            left = max(0, len(self) - walk.next)
        changed, refused = 0, 0
        while left > 0 and (wanted := min(scripts.MAX_TAKEN, left, limit - changed - refused)):
            letters = walk.read(wanted)
            kept = [letter for letter in letters if letter.reason in refused_reasons]
            accepted = [letter for letter in letters if letter.reason not in refused_reasons]
            first = max(0, walk.next - _AROUND)
            taken = take(first, walk.next + len(letters) - 1, accepted) if accepted else []
            changed += sum(taken)
            left -= sum(taken)
            if not all(taken):  # others took letters meanwhile: read again what is there now
                continue
            walk.go_past(kept)
            refused += len(kept)
            left = left - len(kept) if walk.more else 0
        return DeadChunk(changed, refused, walk.place(0, left).cursor if left > 0 else None)

    def _spans(self, near: int | None) -> Iterator[tuple[int, int]]:
        """Yield the parts of the list in which the server searches for one letter."""
        if near is not None:
            yield from _about(near, _SEARCHED)
        yield from self._everywhere(_SEARCHED)

    def _everywhere(self, size: int) -> Iterator[tuple[int, int]]:
        """Yield the first and last positions of parts of the list, the newest letters first.

        A letter that moves meanwhile, because others before it are removed, moves to where is still to be searched.
        """
        yield from _parts(0, len(self) - 1, size)


def _about(near: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the first and last positions of parts of a list about a position, and of what is before it."""
    near = max(0, near)
    first = max(0, near - _AROUND)
    yield first, near + _AROUND
    yield from _parts(max(0, near - WINDOW), first - 1, size)


def _parts(first: int, last: int, size: int) -> Iterator[tuple[int, int]]:
    while last >= first:
        yield max(first, last - size + 1), last
        last -= size

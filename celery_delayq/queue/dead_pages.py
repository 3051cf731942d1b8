"""Pages of a dead list from which others take letters meanwhile, and cursors that stay useful.

New letters are appended, and none is ever inserted. So a letter moves only to lower positions: when letters before it
are requeued or purged. A cursor names the position of the last letter that was seen, and the letter itself. Whoever
continues looks for it at that position, and then before it.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import redis
from redis.client import NEVER_DECODE

from celery_delayq.queue import cursors
from celery_delayq.queue.dead_letter import DeadLetter, id_of, unpack

#: Maximum number of letters of a page, or of a chunk.
MAX_LETTERS = 1000

#: How far before its position a letter is looked for, in letters.
WINDOW = 1000

#: Number of letters that one command reads.
READ = 100

#: Which letters a cursor names: the last one, and others before it in case that the last ones are gone.
_NAMED = (0, 1, 8)

_ID = re.compile("[0-9a-f]{16}")


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


@dataclass(frozen=True)
class Place:
    """A place between two letters.

    Attributes:
        next: position of the letter behind it.
        marks: positions and ids of letters before it, the nearest first.
        left: how many of the letters behind it are meant, for chunks; None for all.
    """

    next: int = 0
    marks: tuple[tuple[int, str], ...] = ()
    left: int | None = None

    @property
    def cursor(self) -> str:
        """The place as a word; see `at`."""
        return cursors.encode([self.next, self.left, *(part for mark in self.marks for part in mark)])

    @classmethod
    def of(cls, next: int, left: int | None, *marks: Any) -> Place:
        """Return the place with these values.

        Raises:
            TypeError, ValueError: they are wrong.
        """
        positions, ids = marks[::2], marks[1::2]
        numbers = [next, *positions, *([] if left is None else [left])]
        if not all(type(number) is int and 0 <= number < 2**53 for number in numbers):
            raise ValueError("a position must be a whole number")
        if not all(_ID.fullmatch(letter_id) for letter_id in ids):
            raise ValueError("an id must have 16 hexadecimal digits")
        return cls(next, tuple(zip(positions, ids, strict=True)), left)

    @classmethod
    def at(cls, cursor: str | None) -> Place:
        """Return the place of a cursor; None is the beginning.

        Raises:
            TypeError: the cursor is not a string.
            ValueError: it is not the cursor of a page.
        """
        return cls() if cursor is None else cursors.decode(cursor, cls.of)


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


def elements(client: redis.Redis, key: str, first: int, last: int) -> list[bytes]:
    """Return the elements of a list from one position to another, both included."""
    found: list[bytes] = client.execute_command("LRANGE", key, first, last, **{NEVER_DECODE: True})
    return found


class Walk:
    """Goes through a dead list, although others take letters out of it.

    It remembers up to 1,000 letters that it has passed. If some of these are gone, it goes on behind the last one that
    is still there. If it finds none of them within the 1,000 letters before its position, it goes on that far before
    its position.

    Args:
        client: any `redis.Redis`.
        key: the dead list.
        place: where to start.
        goes_back: whether it goes back if it finds none of them; otherwise it goes on at its position, which may leave
            out letters.

    Attributes:
        next: position of the next letter.
        more: whether letters follow those that were read last.
    """

    def __init__(self, client: redis.Redis, key: str, place: Place, *, goes_back: bool = True) -> None:
        self.next = place.next
        self.more = True
        self._client = client
        self._key = key
        self._goes_back = goes_back
        self._marks = deque(place.marks, maxlen=WINDOW + 1)  # with the one before the largest page

    def read(self, count: int) -> list[DeadLetter]:
        """Return the next letters, at most `count`. The walk stays where it is; see `go_past`."""
        while True:
            before = 1 if self._marks else 0
            found = elements(self._client, self._key, self.next - before, self.next + count)  # one more than wanted
            if not before or (found and id_of(found[0]) == self._marks[0][1]):
                break
            self._return()
        self.more = len(found) > before + count
        wanted = found[before : before + count]
        return [unpack(raw, position) for position, raw in enumerate(wanted, self.next)]

    def go_past(self, letters: Sequence[DeadLetter]) -> None:
        """Go behind letters that stay in the list."""
        for letter in letters:
            self._marks.appendleft((self.next, letter.id))
            self.next += 1

    def place(self, seen: int, left: int | None = None) -> Place:
        """Return where the walk is; it has passed so many letters since it began. See `Place` for `left`."""
        named = [mark for number, mark in enumerate(self._marks) if number in (*_NAMED, seen)]
        return Place(self.next, tuple(named), left)

    def _return(self) -> None:
        """Go back behind the last letter that was passed and is still there."""
        end = top = min(self.next, int(self._client.llen(self._key)))
        bottom = max(0, top - WINDOW)
        # Later positions are overwritten by those of letters that were passed later.
        highest = {letter_id: position for position, letter_id in reversed(self._marks)}
        while top > bottom:
            first = max(bottom, top - READ)
            found = elements(self._client, self._key, first, top - 1)
            for position, raw in reversed(list(enumerate(found, first))):
                letter_id = id_of(raw)
                if position <= highest.get(letter_id, -1):
                    self._stand_behind(position, letter_id)
                    return
            top = first
        self.next = bottom if self._goes_back else end
        self._marks.clear()

    def _stand_behind(self, position: int, letter_id: str) -> None:
        while self._marks and self._marks.popleft()[1] != letter_id:
            pass
        self.next = position + 1
        self._marks.appendleft((position, letter_id))

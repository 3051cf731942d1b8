"""Entries of a delayed queue, as they are read from a timeout set and passed to scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from celery_delayq.basics.errors import InvalidEntry
from celery_delayq.basics.times import to_datetime
from celery_delayq.queue import codec, scripts

#: Maximum size in bytes of the entries in one script call. A single larger entry is still passed.
_MAX_BATCH_BYTES = 1_048_576

Batched = TypeVar("Batched", bound="tuple[bytes, ...]")


@dataclass(frozen=True)
class Entry:
    """A waiting message.

    Attributes:
        score: its score in the timeout set: when it is due, exactly, even after the year 9999. Whole ms of unix time.
        payload: the message.
        id: the entry's id as stored; eight random bytes if Redisson offered it.
        raw: the entry as stored.
    """

    score: int
    payload: bytes
    id: bytes
    raw: bytes

    def __repr__(self) -> str:
        return f"<Entry {self.id.hex()} due {self.due.isoformat()}, {len(self.payload):,} B>"

    @property
    def due(self) -> datetime:
        """When it is due: aware, in UTC; `datetime.max` if it is due later than that."""
        return to_datetime(self.score)

    @property
    def position(self) -> Position:
        """Its position among the entries."""
        return Position(self.score, self.raw[: len(self.raw) - len(self.payload)])


@dataclass(frozen=True)
class Position:
    """A position among the entries, short enough for a cursor. It stays valid if its entry is gone.

    Attributes:
        score: of the entry, see `Entry`.
        start: the entry without its payload; practically unique among entries with the same due time.
    """

    score: int
    start: bytes


def pairs(found: list[Any]) -> Iterable[tuple[bytes, Any]]:
    """Return members and scores: RESP2 answers with a flat list, RESP3 with pairs."""
    flat = not found or isinstance(found[0], bytes)
    return zip(found[::2], found[1::2], strict=True) if flat else found


def entry_of(raw: bytes, score: Any) -> Entry | None:
    """Return the entry that is stored as a member with a score; None if it is corrupt."""
    try:
        entry_id, payload = codec.unpack(raw)
    except InvalidEntry:
        return None
    return Entry(scripts.score_to_ms(score) or 0, payload, entry_id, raw)


def entries_of(found: Iterable[tuple[bytes, Any]]) -> Iterator[Entry]:
    """Yield the entries for members and scores of a timeout set. Corrupt entries are skipped."""
    entries = (entry_of(raw, score) for raw, score in found)
    return (entry for entry in entries if entry is not None)


def in_batches(items: list[Batched], run: Callable[[list[Batched]], list[bool]]) -> list[bool]:
    """Pass items to a script that processes only the first ones of each call. Return its result for each item."""
    answers: list[bool] = []
    while len(answers) < len(items):
        batch: list[Batched] = []
        size = 0
        for item in items[len(answers) : len(answers) + scripts.MAX_REMOVED]:
            size += sum(map(len, item))
            if batch and size > _MAX_BATCH_BYTES:
                break
            batch.append(item)
        answers += run(batch)
    return answers

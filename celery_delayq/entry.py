"""Entries: what waits in a delayed queue, as it is read from a timeout set and handed to scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from celery_delayq import codec, scripts
from celery_delayq.errors import InvalidEntry

#: Entries that one call of a script takes have at most so many bytes, unless a single one has more.
_MAX_BATCH_BYTES = 1_048_576

Batched = TypeVar("Batched", bound="tuple[bytes, ...]")


@dataclass(frozen=True)
class Entry:
    """A message that waits.

    Attributes:
        due_ms: when it may run, unix time in ms.
        payload: the message.
        id: the entry's id as stored; eight random bytes where Redisson offered it.
        raw: the entry as stored.
    """

    due_ms: int
    payload: bytes
    id: bytes
    raw: bytes

    @property
    def position(self) -> Position:
        """Where it is among the entries."""
        return Position(self.due_ms, self.raw[: len(self.raw) - len(self.payload)])


@dataclass(frozen=True)
class Position:
    """A position among what waits, short enough to be handed around; no entry need be there any more.

    Attributes:
        due_ms: due time of the entry, unix time in ms.
        start: all of the entry but its payload, which is as good as unique among those of one due time.
    """

    due_ms: int
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
    """Yield the entries among members and scores of a timeout set; corrupt ones are left out."""
    entries = (entry_of(raw, score) for raw, score in found)
    return (entry for entry in entries if entry is not None)


def in_batches(items: list[Batched], run: Callable[[list[Batched]], list[bool]]) -> list[bool]:
    """Give items to a script that takes as many of the first ones as it likes; return what it says of each."""
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

"""Dead letters of a queue: of its dead lists one after the other, one list for each priority."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from celery_delayq.inspector.broker_lists import BrokerLists
from celery_delayq.queue import cursors
from celery_delayq.queue.dead_letters import DeadChunk, DeadLetter, DeadLetters, check_cursor, check_limit
from celery_delayq.transport.redelivery import revived


@dataclass(frozen=True)
class DeadLettersPage:
    """Some dead letters of a queue: list by list, in each list oldest first.

    Attributes:
        letters: the letters, each with its dead list.
        cursor: where the next page starts; None after the last page. It stays useful when letters are removed.
        total: number of dead letters of the queue.
    """

    letters: tuple[tuple[DeadLetters, DeadLetter], ...]
    cursor: str | None
    total: int

    def __iter__(self) -> Iterator[tuple[DeadLetters, DeadLetter]]:
        return iter(self.letters)

    def __len__(self) -> int:
        return len(self.letters)


def dead_lists(lists: BrokerLists, queue: str) -> list[DeadLetters]:
    """Return the dead lists of a queue, sorted by name. The queue need not be known."""
    known, _ = lists.known(queue)
    names = {found.name for found in known}
    names.update(lists.channel.broker_lists(queue))
    return [DeadLetters(lists.client, name, writer=lists.channel.writer) for name in sorted(names)]


def sizes_of(found: Sequence[DeadLetters]) -> dict[DeadLetters, int]:
    """Return how many letters each dead list has, without those that are empty."""
    if not found:
        return {}
    with found[0].client.pipeline(transaction=False) as pipe:
        for letters in found:
            pipe.zcard(letters.keys.dead)
        return {letters: int(size) for letters, size in zip(found, pipe.execute(), strict=True) if size}


def page(lists: BrokerLists, queue: str, limit: int, cursor: str | None) -> DeadLettersPage:
    """Return a page of dead letters; see `DeadLetters.page`. It takes no longer if there are many.

    Raises:
        TypeError: `limit` is not a whole number, or `cursor` is not a string.
        ValueError: `limit` is out of range, or `cursor` is not the cursor of a page.
    """
    check_limit(limit)
    sizes = sizes_of(dead_lists(lists, queue))
    seen: list[tuple[DeadLetters, DeadLetter]] = []
    after = None
    for letters, inner in _from(sizes, cursor):
        if len(seen) == limit:
            after = _cursor(letters.name, inner)
            break
        part = letters.page(inner, limit - len(seen))
        seen += ((letters, letter) for letter in part)
        if part.cursor is not None:
            after = _cursor(letters.name, part.cursor)
            break
    return DeadLettersPage(tuple(seen), after, sum(sizes.values()))


def find(lists: BrokerLists, queue: str, letter_ids: Sequence[str]) -> dict[str, tuple[DeadLetters, DeadLetter]]:
    """Return those of the letters that are there, each with its dead list, by id."""
    return {
        letter.id: (letters, letter) for letters in dead_lists(lists, queue) for letter in letters.find_many(letter_ids)
    }


def requeue_some(lists: BrokerLists, queue: str, limit: int, cursor: str | None) -> DeadChunk:
    """Requeue dead letters, with new delivery counts; see `DeadLetters.requeue_some`."""
    return _some(
        lists, queue, limit, cursor, lambda letters, most, inner: letters.requeue_some(most, inner, revive=revived)
    )


def purge_some(lists: BrokerLists, queue: str, limit: int, cursor: str | None) -> DeadChunk:
    """Remove dead letters; see `DeadLetters.purge_some`."""
    return _some(lists, queue, limit, cursor, lambda letters, most, inner: letters.purge_some(most, inner))


def _some(
    lists: BrokerLists,
    queue: str,
    limit: int,
    cursor: str | None,
    change: Callable[[DeadLetters, int, str | None], DeadChunk],
) -> DeadChunk:
    check_limit(limit)
    changed, refused, after = 0, 0, None
    for letters, inner in _from(sizes_of(dead_lists(lists, queue)), cursor):
        if changed + refused == limit:
            after = _cursor(letters.name, inner)
            break
        part = change(letters, limit - changed - refused, inner)
        changed += part.changed
        refused += part.refused
        if part.cursor is not None:
            after = _cursor(letters.name, part.cursor)
            break
    return DeadChunk(changed, refused, after)


def _from(found: Iterable[DeadLetters], cursor: str | None) -> Iterator[tuple[DeadLetters, str | None]]:
    """Yield the lists from a cursor on, each with the cursor where to start in it.

    Raises:
        TypeError, ValueError: see `page`.
    """
    name, inner = ("", None) if cursor is None else cursors.decode(cursor, _parts)
    for letters in found:
        if letters.name >= name:
            yield letters, inner if letters.name == name else None


def _cursor(name: str, inner: str | None) -> str:
    return cursors.encode([name, inner])


def _parts(name: Any, inner: Any) -> tuple[str, str | None]:
    if not isinstance(name, str) or not isinstance(inner, (str, type(None))):
        raise TypeError("a name must be a string, and so must a cursor")
    check_cursor(inner)
    return name, inner

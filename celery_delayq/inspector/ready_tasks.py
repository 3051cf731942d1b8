"""Tasks that are in their queues, and that no worker has fetched: find them, show them, take them back.

A search from the newest message on misses none that stays in the list, see `Ready.ready`. So whatever takes messages
back reads in this order. Pages show the oldest first; there, a cursor knows the last message by its hash, and finds it
again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from celery_delayq.inspector.away import Lost, NodesAway, is_away
from celery_delayq.inspector.broker_lists import BrokerList, BrokerLists
from celery_delayq.inspector.task import ScheduledTask, ready_task
from celery_delayq.queue import cursors
from celery_delayq.queue.connections import CONNECTION_ERRORS
from celery_delayq.queue.delayed_queue import DelayedQueue
from celery_delayq.queue.entry import Entry
from celery_delayq.queue.holds import Holder
from celery_delayq.queue.ready import START, Place
from celery_delayq.transport.keyed import UNIQUE_PROPERTY, holder_of
from celery_delayq.transport.messages import (
    CANCELLED_PROPERTY,
    cancelled,
    decode,
    headers_of,
    is_cancelled,
    marks_within,
)

if TYPE_CHECKING:
    from celery_delayq.inspector.pages import Criteria

#: Number of messages that one call reads, and that one call searches for a few marks. More would block the server for
#: longer than a millisecond.
_READ, SEARCHED = 100, 400

#: So many ids are searched for by the server. If there are more, it is faster to read the messages.
_MOST_MARKED = 50

#: What a message contains that holds a unique key.
_UNIQUE = UNIQUE_PROPERTY.encode()

#: What a message contains that has taken the place of another one.
_CANCELLED = CANCELLED_PROPERTY.encode()

#: How many messages in front of its former place the last one of a page may be: workers have put others back.
_PUT_BACK = 100


@dataclass(frozen=True)
class Step:
    """A part of a search.

    Attributes:
        read: how many messages were read.
        matching: those that match; if they were to be taken back, those that were.
        missed: how many were there, and then taken by a worker.
        place: where the search goes on; None at the end.
    """

    read: int
    matching: list[bytes]
    missed: int
    place: Place | None


def search(
    queue: DelayedQueue,
    marks: Sequence[Sequence[bytes]],
    matches: Callable[[bytes], bool],
    *,
    take_back: bool,
    place: Place = START,
    limit: int = SEARCHED,
) -> Iterator[Step]:
    """Search a list from its newest message on, and take back what matches. All calls are bounded.

    Args:
        queue: of the list.
        marks: see `Waiting.search`.
        matches: whether a message is wanted.
        take_back: whether to take it back.
        place: where to begin.
        limit: maximum number of messages that a step reads.
    """
    left: set[bytes] = set()
    while True:
        part = queue.ready(place, limit=limit, marks=marks)
        wanted = [(number, message) for number, message in part.found if _is_there(message) and matches(message)]
        answers = [True] * len(wanted)
        if take_back:
            found = [message for _, message in wanted]
            answers = queue.take_back(wanted, list(map(_holder_of, found)), list(map(cancelled, found)))
        done = [message for (_, message), is_done in zip(wanted, answers, strict=True) if is_done]
        kept = [one for one, is_done in zip(wanted, answers, strict=True) if not is_done]
        # What was there and is not, a worker has taken, or others have come before it. So it is read again.
        place = Place(kept[0][0], part.taken) if kept else part.place
        missed = len(left - {message for _, message in wanted})
        left = {message for _, message in kept}
        is_end = not part.left and not kept
        yield Step(part.read, done, missed, None if is_end else place)
        if is_end:
            return


def _is_there(raw: bytes) -> bool:
    """Return whether a message has not been cancelled."""
    message = decode(raw) if _CANCELLED in raw else None
    return message is None or not is_cancelled(message)


def _holder_of(raw: bytes) -> Holder | None:
    message = decode(raw) if _UNIQUE in raw else None
    return None if message is None else holder_of(message)


# -- by id


def get(lists: BrokerLists, task_ids: Iterable[str]) -> tuple[dict[str, ScheduledTask], Exception | None]:
    """Return the ready tasks with these ids; and the error of a list that could not be read."""
    wanted, now_ms = set(task_ids), lists.now_ms()
    found: dict[str, ScheduledTask] = {}

    def look(broker_list: BrokerList, queue: DelayedQueue) -> None:
        missing = wanted - found.keys()
        for step in _search_ids(queue, missing, take_back=False) if missing else ():
            found.update((_id_of(raw), ready_task(raw, broker_list, now_ms)) for raw in step.matching)
            if len(found) == len(wanted):
                return

    return found, _each(lists, look)


def cancel(lists: BrokerLists, task_ids: Iterable[str]) -> tuple[set[str], Exception | None]:
    """Take back all ready tasks with these ids; return which there were, and the error of a list that was not read."""
    wanted, cancelled = set(task_ids), set[str]()

    def look(broker_list: BrokerList, queue: DelayedQueue) -> None:
        for step in _search_ids(queue, wanted, take_back=True):
            cancelled.update(map(_id_of, step.matching))

    return cancelled, _each(lists, look)


def _search_ids(queue: DelayedQueue, wanted: set[str], *, take_back: bool) -> Iterator[Step]:
    marks = {mark for task_id in wanted for mark in marks_within(task_id)} if len(wanted) <= _MOST_MARKED else set()
    # Each mark takes its time for each message.
    limit = 4 * SEARCHED // max(4, len(marks)) if marks else _READ
    return search(queue, [tuple(marks)], lambda raw: _id_of(raw) in wanted, take_back=take_back, limit=limit)


def _id_of(message: bytes) -> Any:
    task_id = headers_of(decode(message) or {}).get("id")
    return task_id if isinstance(task_id, str) else None


def _each(lists: BrokerLists, look: Callable[[BrokerList, DelayedQueue], None]) -> Exception | None:
    """Call a function for each list with messages. Returns the error of a list that could not be read."""
    sizes, lost = lists.ready()
    refused: Exception | None = None
    for broker_list, size in sizes.items():
        try:
            if isinstance(size, Exception):
                raise size
            if size:
                look(broker_list, lists.delayed_queue(broker_list))
        except ResponseError as exc:
            if is_away(lists.client, exc):
                lost |= Lost((lists.lose(broker_list, exc),))
            refused = exc
        except CONNECTION_ERRORS as exc:
            lost |= Lost((lists.lose(broker_list, exc),))
    return NodesAway(lost) if lost else refused


# -- by criteria


def sizes_of(lists: BrokerLists, criteria: Criteria, *, partial: bool) -> tuple[dict[BrokerList, int], Lost]:
    """Return the lists with messages, queue by queue in the order of their priorities; and what is lost.

    Raises:
        NodesAway: nodes of a cluster are away, and `partial` is False.
    """
    sizes, lost = lists.complete(*lists.ready(*criteria.queues), partial=partial)
    return {found: size for found, size in sorted(sizes.items(), key=lambda item: _order(item[0])) if size}, lost


def _order(broker_list: BrokerList) -> tuple[str, int, str]:
    return broker_list.queue, broker_list.priority, broker_list.name


def _matching(criteria: Criteria, broker_list: BrokerList, now_ms: int) -> Callable[[bytes], bool]:
    start_ms, end_ms = criteria.due_from_ms, criteria.due_to_ms
    if not criteria.is_search and start_ms is None and end_ms is None:
        return lambda message: True

    def matches(message: bytes) -> bool:
        task = ready_task(message, broker_list, now_ms)
        is_due = (start_ms is None or task.entry.score >= start_ms) and (end_ms is None or task.entry.score <= end_ms)
        return is_due and criteria.matches(task)

    return matches


def change(
    lists: BrokerLists,
    criteria: Criteria,
    *,
    take_back: bool,
    cursor: str | None = None,
    limit: int = SEARCHED,
    partial: bool = False,
) -> Iterator[tuple[Step, str | None, Lost]]:
    """Search all lists for ready tasks that match, and take them back; see `search`.

    Args:
        lists: the lists.
        criteria: which tasks.
        take_back: whether to take them back.
        cursor: where to begin.
        limit: maximum number of messages that a step reads.
        partial: whether to do without nodes of a cluster that are away.

    Yields:
        A step; where the next one begins; and what is lost so far.

    Raises:
        NodesAway: nodes of a cluster are away, and `partial` is False. If it is so at the beginning, nothing is taken
            back.
    """
    sizes, lost = sizes_of(lists, criteria, partial=partial)
    now_ms, place, todo = lists.now_ms(), START, list(sizes)
    if cursor is not None:
        name, place = cursors.decode(cursor, _read_place)
        first = lists.parse(name)
        todo = [found for found in todo if _order(found) >= _order(first)]
        place = place if todo[:1] == [first] else START
    if not todo:
        yield Step(0, [], 0, None), None, lost
    for at, broker_list in enumerate(todo, 1):
        matches = _matching(criteria, broker_list, now_ms)
        queue = lists.delayed_queue(broker_list)
        behind = cursors.encode([todo[at].name, 0, None]) if at < len(todo) else None
        try:
            for step in search(queue, criteria.marks, matches, take_back=take_back, place=place, limit=limit):
                here = step.place and cursors.encode([broker_list.name, step.place.skip, step.place.taken])
                yield step, here or behind, lost
        except CONNECTION_ERRORS as exc:
            lost |= Lost((lists.lose(broker_list, exc),))
            if not partial:
                lost.check()
            yield Step(0, [], 0, None), behind, lost
        place = START


def _read_place(name: str, skip: int, taken: int | None) -> tuple[str, Place]:
    if not isinstance(name, str) or not _is_number(skip) or not (taken is None or _is_number(taken)):
        raise TypeError("a place must be a name and whole numbers")
    return name, Place(skip, taken)


# -- pages


def entries(
    lists: BrokerLists,
    criteria: Criteria,
    limit: int,
    cursor: str | None,
    most_examined: int,
    most_bytes: int,
    *,
    partial: bool,
) -> tuple[list[tuple[BrokerList, Entry]], str | None, int, Lost]:
    """Return the messages of a page, the oldest of each list first, as entries; see `pages.entries`."""
    last = None if cursor is None else cursors.decode(cursor, _read_last)
    sizes, lost = sizes_of(lists, criteria, partial=partial)
    now_ms = lists.now_ms()
    read = min(most_examined, SEARCHED) if criteria.is_search else min(limit + 1, _READ)
    found: list[tuple[BrokerList, Entry]] = []
    examined = size = 0
    for broker_list in sizes:
        order = _order(broker_list)
        if last is not None and order < _order(lists.parse(last[0])):
            continue
        queue = lists.delayed_queue(broker_list)
        matches = _matching(criteria, broker_list, now_ms)
        try:
            skip = _behind(queue, *last[1:]) if last is not None and last[0] == broker_list.name else 0
            while True:
                part = queue.oldest_ready(skip, limit=read, marks=criteria.marks)
                for number, message in part.found:
                    if last is not None and (len(found) == limit or examined >= most_examined or size >= most_bytes):
                        return found, cursors.encode(last), examined, lost
                    examined += number + 1 - skip
                    skip = number + 1
                    last = (broker_list.name, skip, _hash_of(message))
                    if _is_there(message) and matches(message):
                        found.append((broker_list, Entry(now_ms, message, b"", message)))
                        size += len(message)
                if not part.left:
                    break
        except CONNECTION_ERRORS as exc:
            lost |= Lost((lists.lose(broker_list, exc),))
            if not partial:
                lost.check()
    return found, None, examined, lost


def _behind(queue: DelayedQueue, skip: int, last: str) -> int:
    """Return how many of the oldest messages of a list were on earlier pages; what consumers took is not among them.

    If the last message was taken, those before it were, too: then it is all of the list.
    """
    stop = skip + _PUT_BACK
    while stop > 0:
        at = start = max(0, stop - _READ - _PUT_BACK)
        while at < stop:
            part = queue.oldest_ready(at, limit=stop - at)
            for number, message in part.found:
                if _hash_of(message) == last:
                    return number + 1
            if not part.left:
                break
            at += part.read
        stop = start
    return 0


def _hash_of(message: bytes) -> str:
    return hashlib.blake2b(message, digest_size=8).hexdigest()


def _read_last(name: str, skip: int, last: str) -> tuple[str, int, str]:
    if not isinstance(name, str) or not _is_number(skip) or not isinstance(last, str):
        raise TypeError("a place must be a name, a number and a hash")
    return name, skip, last


def _is_number(found: object) -> bool:
    """Return whether a value of a cursor can be a number of messages; larger ones are none to a script."""
    return type(found) is int and 0 <= found < 2**53

"""Pages of waiting tasks, in due order across all queues, and the filters that select tasks."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, get_args, overload

from celery_delayq.basics.text import plural
from celery_delayq.basics.times import Time, to_ms
from celery_delayq.inspector import ready_tasks
from celery_delayq.inspector.away import Lost, LostQueue
from celery_delayq.inspector.broker_lists import BrokerList, BrokerLists
from celery_delayq.inspector.task import ScheduledTask, State, ready_task, scheduled_task
from celery_delayq.queue import cursors
from celery_delayq.queue.connections import CONNECTION_ERRORS
from celery_delayq.queue.entry import Entry, Position
from celery_delayq.queue.scripts import MAX_PAGE
from celery_delayq.transport.messages import marks_of, marks_within
from celery_delayq.transport.named import Named, name_of

#: Maximum number of tasks that one page examines. If nothing matches, the page ends there, with a cursor to continue.
MOST_EXAMINED = 10_000

#: A page ends when the messages of its tasks have so many bytes. It holds them all in memory.
_MOST_BYTES = 32 * 1024 * 1024

#: Number of entries that one call reads, and that one call searches. More would block the server for longer than a
#: millisecond.
_READ, _SEARCHED = 100, 200

#: One call reads at least so many, however many lists a page has to be collected from.
_LEAST_READ = 20


@dataclass(frozen=True)
class Criteria:
    """Selects tasks. Without any criterion, selects all tasks.

    Attributes:
        queues: only tasks of these queues; empty for all.
        task: only tasks of this name.
        due_from_ms: only tasks due at this time or later, unix time in ms.
        due_to_ms: only tasks due at this time or earlier, unix time in ms.
        text: only tasks whose arguments contain this text, as `args_text` and `kwargs_text` show them.
        not_due_ms: only tasks that are not due at this very time, unix time in ms. It may be most of them that are, so
            these are not even examined.
        state: only tasks that wait, or only those that are in their queues.
        task_part: only tasks whose name contains this text.
    """

    queues: tuple[str, ...] = ()
    task: str | None = None
    due_from_ms: int | None = None
    due_to_ms: int | None = None
    text: str | None = None
    not_due_ms: int | None = None
    state: State = "delayed"
    task_part: str | None = None

    @classmethod
    def of(
        cls,
        *,
        queue: str | None = None,
        task: Named | None = None,
        due_after: Time | None = None,
        due_before: Time | None = None,
        text: str | None = None,
        state: State = "delayed",
    ) -> Criteria:
        """Return the criteria for public arguments. `due_after` itself is included, `due_before` is not.

        Raises:
            TypeError: an argument has the wrong type.
            ValueError: a time is out of range, the text is empty, there is no such state, or the task is a
                signature with arguments.
        """
        if state not in get_args(State):
            raise ValueError(f"state must be one of {', '.join(map(repr, get_args(State)))}, not {state!r}")
        if text is not None and not isinstance(text, str):
            raise TypeError(f"text must be a str, not {text!r}")
        if text == "":
            raise ValueError("text must not be empty")
        if queue is not None and not isinstance(queue, str):
            raise TypeError(f"queue must be a name as a str, not {queue!r}")
        return cls(
            () if queue is None else (queue,),
            None if task is None else name_of(task),
            None if due_after is None else to_ms(due_after, "due_after"),
            None if due_before is None else to_ms(due_before, "due_before") - 1,
            text,
            state=state,
        )

    def check_wanted(self, everything: bool) -> None:
        """Check that somebody who selects all tasks has said so.

        Raises:
            ValueError: all tasks are selected, and `everything` is False.
        """
        if self == Criteria(state=self.state) and not everything:
            raise ValueError("give a queue, a task, a time or a text, or pass everything=True")

    @property
    def is_search(self) -> bool:
        """Whether matching tasks are found only by looking into the messages."""
        return any(one is not None for one in (self.task, self.task_part, self.text))

    @property
    def marks(self) -> tuple[tuple[bytes, ...], ...]:
        """Groups of byte strings: each matching message contains at least one of each. Without any, any may match."""
        groups = (
            () if self.task is None else marks_of(self.task),
            *(marks_within(part) for part in (self.task_part, self.text) if part is not None),
        )
        return tuple(group for group in groups if group)

    @property
    def span(self) -> dict[str, Any]:
        """The limits of the due time, as arguments for `BrokerLists.waiting`."""
        return {"due_from_ms": self.due_from_ms, "due_to_ms": self.due_to_ms}

    @property
    def spans(self) -> list[tuple[int | None, int | None]]:
        """The same in parts without `not_due_ms`, each from one time to another one; None is no limit."""
        start_ms, end_ms = self.due_from_ms, self.due_to_ms
        if self.not_due_ms is None:
            return [(start_ms, end_ms)]
        before_ms, behind_ms = self.not_due_ms - 1, self.not_due_ms + 1
        return [
            (start_ms, before_ms if end_ms is None else min(end_ms, before_ms)),
            (behind_ms if start_ms is None else max(start_ms, behind_ms), end_ms),
        ]

    def matches(self, task: ScheduledTask) -> bool:
        """Return whether a task has the right name and arguments. Arguments that are no text in its headers are not."""
        if self.task not in (None, task.name):
            return False
        if self.task_part is not None and not _has(task.headers.get("task"), self.task_part):
            return False
        shown = (task.headers.get("argsrepr"), task.headers.get("kwargsrepr"))
        return self.text is None or any(_has(one, self.text) for one in shown)


def _has(header: Any, text: str) -> bool:
    """Return whether a header is a text that contains another one."""
    return isinstance(header, str) and text in header


@dataclass(frozen=True)
class Page:
    """Some waiting tasks, in due order; or some ready ones.

    Attributes:
        tasks: the tasks. There may be fewer than the limit, or none, although more follow: only `cursor` tells.
        cursor: where the next page starts; None after the last page. It stays valid when tasks change.
        examined: number of tasks that were examined to find these.
        lost: what is not on the page because nodes of a cluster are away. Later pages have of a lost queue only what is
            due after the last task of this page.
    """

    tasks: tuple[ScheduledTask, ...]
    cursor: str | None
    examined: int = 0
    lost: Lost = field(default_factory=Lost)

    def __repr__(self) -> str:
        return f"<Page of {plural(len(self.tasks))}, {'the last one' if self.cursor is None else 'more follow'}>"

    def __iter__(self) -> Iterator[ScheduledTask]:
        return iter(self.tasks)

    def __len__(self) -> int:
        return len(self.tasks)

    @overload
    def __getitem__(self, at: int) -> ScheduledTask: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[ScheduledTask, ...]: ...
    def __getitem__(self, at: int | slice) -> ScheduledTask | tuple[ScheduledTask, ...]:
        return self.tasks[at]


@dataclass(frozen=True)
class _Cursor:
    """The last task that was seen. Tasks that are due at the same time are ordered by the names of their lists."""

    broker_list: str
    position: Position

    def encode(self) -> str:
        return cursors.encode([self.position.score, self.broker_list, self.position.start.hex()])

    @classmethod
    def decode(cls, text: str) -> _Cursor:
        def read(due_ms: int, broker_list: str, start: str) -> _Cursor:
            if type(due_ms) is not int or not isinstance(broker_list, str):
                raise TypeError("a due time must be a whole number, and a name a string")
            return cls(broker_list, Position(due_ms, bytes.fromhex(start)))

        return cursors.decode(text, read)


def page(
    lists: BrokerLists,
    criteria: Criteria,
    limit: int = 100,
    cursor: str | None = None,
    most_examined: int = MOST_EXAMINED,
    *,
    partial: bool = False,
) -> Page:
    """Return a page of waiting tasks; see `DelayQ.scheduled`. All calls are bounded: O(log N), a few hundred entries.

    It ends when it has examined about `most_examined` tasks: up to one read more. A page of long messages ends after
    32 MiB, with a cursor.
    """
    now_ms = lists.now_ms()
    found, more, examined, lost = entries(lists, criteria, limit, cursor, most_examined, partial=partial)
    if criteria.state == "ready":
        tasks = tuple(ready_task(entry.payload, one, now_ms) for one, entry in found)
    else:
        tasks = tuple(scheduled_task(entry, one, now_ms) for one, entry in found)
    return Page(tasks, more, examined, lost)


def entries(
    lists: BrokerLists,
    criteria: Criteria,
    limit: int,
    cursor: str | None,
    most_examined: int = MOST_EXAMINED,
    *,
    partial: bool,
) -> tuple[list[tuple[BrokerList, Entry]], str | None, int, Lost]:
    """Return the entries of a page, see `page`. Messages are decoded only if the criteria ask for it.

    Returns:
        The entries, each with its list; and `cursor`, `examined` and `lost` of the page, see `Page`.
    """
    if type(limit) is not int:
        raise TypeError(f"limit must be a whole number, not {limit!r}")
    if not 1 <= limit <= MAX_PAGE:
        raise ValueError(f"limit must be 1 to {MAX_PAGE}, not {limit!r}")
    if criteria.state == "ready":
        return ready_tasks.entries(lists, criteria, limit, cursor, most_examined, _MOST_BYTES, partial=partial)
    last = None if cursor is None else _Cursor.decode(cursor)
    waiting, lost = lists.waiting(*criteria.queues, **criteria.span)
    share = max(limit // max(1, len(waiting)), _LEAST_READ)  # each list has about so many of them
    read = min(most_examined, _SEARCHED) if criteria.is_search else min(limit + 1, share + 1, _READ)
    if not partial:
        lost.check()
    losses: list[LostQueue] = []
    streams = [_steps(one, _reads(lists, one, criteria, last, read, losses)) for one in waiting]
    found: list[tuple[BrokerList, Entry]] = []
    examined = size = 0
    for broker_list, entry, number in heapq.merge(*streams, key=lambda step: (step[1].score, step[0].name)):
        if last is not None and (len(found) == limit or examined >= most_examined or size >= _MOST_BYTES):
            more = last.encode()
            break
        examined += number
        last = _Cursor(broker_list.name, entry.position)
        if not criteria.is_search or criteria.matches(scheduled_task(entry, broker_list, 0)):
            found.append((broker_list, entry))
            size += len(entry.payload)
    else:
        more = None
    lost |= Lost(tuple(losses))
    if not partial:
        lost.check()
    return found, more, examined, lost


def _steps(
    broker_list: BrokerList, reads: Iterable[tuple[int, list[Entry]]]
) -> Iterator[tuple[BrokerList, Entry, int]]:
    """Yield steps of a page: the list; an entry that may match, or the last entry of a read; how many were examined.

    The server does not say where the others were: they count as if they were evenly between those that may match.
    """
    for read, entries in reads:
        for at, entry in enumerate(entries):
            number = len(entries)
            yield broker_list, entry, read * (at + 1) // number - read * at // number


def _reads(
    lists: BrokerLists,
    broker_list: BrokerList,
    criteria: Criteria,
    last: _Cursor | None,
    limit: int,
    losses: list[LostQueue],
) -> Iterator[tuple[int, list[Entry]]]:
    """Yield the entries of one list that may match and come after the last task; see `DelayedQueue.search`.

    If its node of a cluster is away, its queue is added to `losses`.
    """
    queue = lists.delayed_queue(broker_list)
    is_own = last is not None and last.broker_list == broker_list.name
    try:
        for start_ms, end_ms in criteria.spans:
            after: Position | None = None
            if last is not None:
                reached_ms = last.position.score + (broker_list.name < last.broker_list)
                after = last.position if is_own and (start_ms is None or reached_ms >= start_ms) else None
                start_ms = max(reached_ms, start_ms or 0)
            if start_ms is None or end_ms is None or start_ms <= end_ms:
                yield from queue.search(criteria.marks, after, lowest=start_ms, highest=end_ms, limit=limit)
    except CONNECTION_ERRORS as exc:
        losses.append(lists.lose(broker_list, exc))


#: Called from time to time with the number of examined entries and the total.
OnProgress = Callable[[int, int], None]


def walk(
    lists: BrokerLists, criteria: Criteria, on_progress: OnProgress | None = None
) -> Iterator[tuple[BrokerList, list[ScheduledTask]]]:
    """Yield all matching tasks in bounded batches, list by list, each in due order. Batches may be empty.

    See `DelayQ.scheduled` for tasks that change in the meantime.

    Raises:
        NodesAway: a node of a cluster is away. If it is so at the beginning, nothing is yielded.
    """
    waiting, lost = lists.waiting(*criteria.queues, **criteria.span)
    lost.check()
    total, done, now_ms = sum(waiting.values()), 0, lists.now_ms()
    limit = _SEARCHED if criteria.is_search else _READ
    losses: list[LostQueue] = []
    for found in waiting:
        for read, entries in _reads(lists, found, criteria, None, limit, losses):
            tasks = (scheduled_task(entry, found, now_ms) for entry in entries)
            yield found, [task for task in tasks if criteria.matches(task)]
            done += read
            if on_progress is not None:
                on_progress(done, max(done, total))
        Lost(tuple(losses)).check()


def to_examine(lists: BrokerLists, criteria: Criteria) -> int:
    """Return how many tasks a search examines: all tasks of the queues and the time span; see `BrokerLists.waiting`."""
    if criteria.state == "ready":
        return sum(ready_tasks.sizes_of(lists, criteria, partial=True)[0].values())
    waiting, _ = lists.waiting(*criteria.queues, **criteria.span)
    return sum(waiting.values())

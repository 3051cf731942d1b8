"""Changes of many waiting tasks, a chunk at a time: whoever makes them can show how far they are, and stop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import Literal, get_args

from celery_delayq.inspector.away import Lost
from celery_delayq.inspector.broker_lists import BrokerLists
from celery_delayq.inspector.pages import MOST_EXAMINED, Criteria, Page, cursor_behind, due_of, page
from celery_delayq.inspector.task import ScheduledTask
from celery_delayq.messages import with_eta
from celery_delayq.queue.connections import CONNECTION_ERRORS
from celery_delayq.queue.delayed_queue import DelayedQueue
from celery_delayq.times import Time, aware, to_ms

#: What can be done to many tasks.
Action = Literal["cancel", "reschedule", "run_now"]


@dataclass(frozen=True)
class Chunk:
    """What became of some of the matching tasks.

    Attributes:
        changed: number of tasks that were changed.
        late: number of matching tasks that were delivered, cancelled or changed by somebody else in the meantime.
        examined: number of tasks that were examined to find these.
        cursor: where the next chunk starts; None after the last one.
        lost: queues that were left out because nodes of a cluster are away. If a node was lost in the middle, some of
            their tasks may have been changed.
        refused: number of matching tasks that cannot be rescheduled, because another program offered them.
    """

    changed: int
    late: int
    examined: int
    cursor: str | None
    lost: Lost = field(default_factory=Lost)
    refused: int = 0


def change_some(
    lists: BrokerLists, action: Action, criteria: Criteria, *, eta: Time | None, limit: int, cursor: str | None
) -> Chunk:
    """Change some matching tasks; see `DelayQ.change_some`. Atomic for each task; all calls are bounded.

    Raises:
        TypeError: `eta` is missing or not wanted, or an argument has the wrong type.
        ValueError: there is no such action, `limit` or `eta` is out of range, or `cursor` is not that of a chunk.
    """
    if action not in get_args(Action):
        raise ValueError(f"action must be one of {', '.join(map(repr, get_args(Action)))}, not {action!r}")
    if (action == "reschedule") != (eta is not None):
        raise TypeError("give an eta to reschedule" if eta is None else f"{action} takes no eta")
    change = _cancel if action == "cancel" else partial(_release, eta=None)
    if eta is None:
        found = page(lists, criteria, limit, cursor, partial=True)
    else:
        due_ms, text = to_ms(eta, "eta"), aware(eta, "eta").isoformat()
        found = _not_due_at(due_ms, lists, criteria, limit, cursor)
        is_over = due_ms <= lists.now_ms()
        change = partial(_release, eta=text) if is_over else partial(_amend, eta=text, due_ms=due_ms)
    changed = late = refused = 0
    lost = found.lost
    tasks_by_list = groupby(sorted(found, key=lambda task: task.broker_list), key=lambda task: task.broker_list)
    for name, group in tasks_by_list:
        tasks = list(group)
        broker_list = lists.parse(name)
        try:
            done = change(lists.delayed_queue(broker_list), tasks)
        except CONNECTION_ERRORS as exc:
            lost |= Lost((lists.lose(broker_list, exc),))
            continue
        changed += sum(done)
        late += len(done) - sum(done)
        refused += len(tasks) - len(done)
    return Chunk(changed, late, found.examined, found.cursor, lost, refused)


def _not_due_at(due_ms: int, lists: BrokerLists, criteria: Criteria, limit: int, cursor: str | None) -> Page:
    """Return a page without the tasks that are due at a time, without examining them: they may be all that waits."""
    if criteria.due_to_ms is not None and criteria.due_to_ms < due_ms:
        return page(lists, criteria, limit, cursor, partial=True)
    found = Page((), None)
    last_ms = None if cursor is None else due_of(cursor)
    if last_ms is None or last_ms < due_ms:
        found = page(lists, replace(criteria, due_to_ms=due_ms - 1), limit, cursor, partial=True)
        if found.cursor is not None:
            return found
    behind = cursor if last_ms is not None and last_ms > due_ms else cursor_behind(due_ms)
    if len(found) == limit or found.examined >= MOST_EXAMINED:
        return replace(found, cursor=behind)
    rest = page(lists, criteria, limit - len(found), behind, MOST_EXAMINED - found.examined, partial=True)
    return Page((*found, *rest), rest.cursor, found.examined + rest.examined, found.lost | rest.lost)


def _cancel(queue: DelayedQueue, tasks: Sequence[ScheduledTask]) -> list[bool]:
    return queue.remove([task.entry for task in tasks])


def _release(queue: DelayedQueue, tasks: Sequence[ScheduledTask], *, eta: str | None) -> list[bool]:
    return queue.release([(task.entry, with_eta(task.entry.payload, eta, None)) for task in tasks])


def _amend(queue: DelayedQueue, tasks: Sequence[ScheduledTask], *, eta: str, due_ms: int) -> list[bool]:
    """Return an answer for each task that can be amended."""
    ours = [task.entry for task in tasks if task.offered is not None]
    return queue.amend_many([(entry, with_eta(entry.payload, eta, due_ms)) for entry in ours], due_ms=due_ms)

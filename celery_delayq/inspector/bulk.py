"""Changes of many waiting tasks: of all that match, or a chunk at a time, so that one can stop and go on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Literal, TypeAlias, get_args

from celery_delayq.basics.times import Time, aware, to_datetime, to_ms
from celery_delayq.inspector import ready_tasks
from celery_delayq.inspector.away import Lost
from celery_delayq.inspector.broker_lists import BrokerLists
from celery_delayq.inspector.pages import MOST_EXAMINED, Criteria, OnProgress, entries, to_examine, walk
from celery_delayq.queue.codec import OfferId
from celery_delayq.queue.connections import CONNECTION_ERRORS
from celery_delayq.queue.delayed_queue import DelayedQueue
from celery_delayq.queue.entry import Entry
from celery_delayq.transport.messages import with_eta

#: What can be done to many tasks.
Action = Literal["cancel", "reschedule", "run_now"]

#: Changes entries of a list, and returns for each of those that it can change whether it did.
Change: TypeAlias = Callable[[DelayedQueue, Sequence[Entry]], list[bool]]

_LIST = itemgetter(0)


@dataclass(frozen=True)
class Chunk:
    """What became of some of the matching tasks, or of all.

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
    lists: BrokerLists,
    action: Action,
    criteria: Criteria,
    *,
    eta: Time | None = None,
    limit: int = 1000,
    cursor: str | None = None,
) -> Chunk:
    """Change some matching tasks; see `DelayQ.change_some`. Atomic for each task; all calls are bounded.

    Without criteria, it changes all tasks.
    """
    change, criteria = _change_of(lists, action, criteria, eta)
    if criteria.state == "ready":
        if action != "cancel":
            raise ValueError(f"ready tasks can be cancelled, not {action!r}")
        return _cancel_ready(lists, criteria, limit, cursor)
    found, more, examined, lost = entries(lists, criteria, limit, cursor, partial=True)
    changed = late = refused = 0
    for broker_list, group in groupby(sorted(found, key=_LIST), key=_LIST):
        waiting = [entry for _, entry in group]
        try:
            done = change(lists.delayed_queue(broker_list), waiting)
        except CONNECTION_ERRORS as exc:
            lost |= Lost((lists.lose(broker_list, exc),))
            continue
        changed += sum(done)
        late += len(done) - sum(done)
        refused += len(waiting) - len(done)
    return Chunk(changed, late, examined, more, lost, refused)


def _cancel_ready(lists: BrokerLists, criteria: Criteria, limit: int, cursor: str | None) -> Chunk:
    a_step = min(limit, ready_tasks.SEARCHED)
    chunk = Chunk(0, 0, 0, None)
    for step, more, lost in ready_tasks.change(
        lists, criteria, take_back=True, cursor=cursor, limit=a_step, partial=True
    ):
        changed, late = chunk.changed + len(step.matching), chunk.late + step.missed
        chunk = Chunk(changed, late, chunk.examined + step.read, more, lost)
        if changed + late > limit - a_step or chunk.examined >= MOST_EXAMINED:
            break
    return chunk


def change_all(
    lists: BrokerLists,
    action: Action,
    criteria: Criteria,
    *,
    eta: Time | None = None,
    dry_run: bool = False,
    ready: bool = False,
    on_progress: OnProgress | None = None,
) -> Chunk:
    """Change all matching tasks, list by list; see `DelayQ.cancel_all`. Atomic for each task; all calls are bounded.

    With `dry_run`, it changes none, and counts those that match as changed. With `ready`, it also cancels ready tasks.
    Without criteria, it changes all tasks.

    Raises:
        NodesAway: a node of a cluster is away. If it is so at the beginning, nothing is changed.
    """
    change, criteria = _change_of(lists, action, criteria, eta)
    changed = late = refused = 0
    for broker_list, tasks in walk(lists, criteria, on_progress):
        waiting = [task.entry for task in tasks]
        done = [True] * len(waiting) if dry_run else change(lists.delayed_queue(broker_list), waiting)
        changed += sum(done)
        late += len(done) - sum(done)
        refused += len(waiting) - len(done)
    if ready:
        examined, total = 0, to_examine(lists, replace(criteria, state="ready"))
        for step, _, _ in ready_tasks.change(lists, criteria, take_back=not dry_run):
            changed, examined = changed + len(step.matching), examined + step.read
            late += step.missed
            if on_progress is not None:
                on_progress(examined, max(examined, total))
    return Chunk(changed, late, 0, None, refused=refused)


def _change_of(lists: BrokerLists, action: Action, criteria: Criteria, eta: Time | None) -> tuple[Change, Criteria]:
    """Return what an action does to entries of a list, and the criteria without what it would not change."""
    if action not in get_args(Action):
        raise ValueError(f"action must be one of {', '.join(map(repr, get_args(Action)))}, not {action!r}")
    if (action == "reschedule") != (eta is not None):
        raise TypeError("give an eta to reschedule" if eta is None else f"{action} takes no eta")
    if eta is None:
        return DelayedQueue.remove if action == "cancel" else partial(_release, eta=None), criteria
    due_ms, text = to_ms(eta, "eta"), aware(eta, "eta").isoformat()
    is_over = due_ms <= lists.now_ms()
    change = partial(_release, eta=text) if is_over else partial(_amend, eta=text, due_ms=due_ms)
    return change, replace(criteria, not_due_ms=due_ms)


def _release(queue: DelayedQueue, waiting: Sequence[Entry], *, eta: str | None) -> list[bool]:
    return queue.release([(entry, with_eta(entry.payload, eta, None)) for entry in waiting])


def _amend(queue: DelayedQueue, waiting: Sequence[Entry], *, eta: str, due_ms: int) -> list[bool]:
    """Return an answer for each entry that can be amended."""
    ours = [entry for entry in waiting if OfferId.is_one(entry.id)]
    return queue.amend_many([(entry, with_eta(entry.payload, eta, due_ms)) for entry in ours], eta=to_datetime(due_ms))

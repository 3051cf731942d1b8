"""Changes of many waiting tasks, a chunk at a time: whoever makes them can show how far they are, and stop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import Literal, TypeAlias, get_args

from celery_delayq.basics.times import Time, aware, to_ms
from celery_delayq.inspector.away import Lost
from celery_delayq.inspector.broker_lists import BrokerList, BrokerLists
from celery_delayq.inspector.pages import MOST_EXAMINED, Criteria, Part, cursor_behind, due_of, entries
from celery_delayq.queue.codec import OfferId
from celery_delayq.queue.connections import CONNECTION_ERRORS
from celery_delayq.queue.delayed_queue import DelayedQueue
from celery_delayq.queue.entry import Entry
from celery_delayq.transport.messages import with_eta

#: What can be done to many tasks.
Action = Literal["cancel", "reschedule", "run_now"]

#: An entry, and the list that it waits for.
Waiting: TypeAlias = tuple[BrokerList, Entry]


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
        part = entries(lists, criteria, limit, cursor)
    else:
        due_ms, text = to_ms(eta, "eta"), aware(eta, "eta").isoformat()
        part = _not_due_at(due_ms, lists, criteria, limit, cursor)
        is_over = due_ms <= lists.now_ms()
        change = partial(_release, eta=text) if is_over else partial(_amend, eta=text, due_ms=due_ms)
    changed = late = refused = 0
    lost = part.lost
    found = sorted(part.found, key=lambda one: one[0].name)
    for broker_list, group in groupby(found, key=lambda one: one[0]):
        waiting = [entry for _, entry in group]
        try:
            done = change(lists.delayed_queue(broker_list), waiting)
        except CONNECTION_ERRORS as exc:
            lost |= Lost((lists.lose(broker_list, exc),))
            continue
        changed += sum(done)
        late += len(done) - sum(done)
        refused += len(waiting) - len(done)
    return Chunk(changed, late, part.examined, part.cursor, lost, refused)


def _not_due_at(due_ms: int, lists: BrokerLists, criteria: Criteria, limit: int, cursor: str | None) -> Part[Waiting]:
    """Return a page without what is due at a time, without examining that: it may be all that waits."""
    if criteria.due_to_ms is not None and criteria.due_to_ms < due_ms:
        return entries(lists, criteria, limit, cursor)
    part: Part[Waiting] = Part((), None)
    last_ms = None if cursor is None else due_of(cursor)
    if last_ms is None or last_ms < due_ms:
        part = entries(lists, replace(criteria, due_to_ms=due_ms - 1), limit, cursor)
        if part.cursor is not None:
            return part
    behind = cursor if last_ms is not None and last_ms > due_ms else cursor_behind(due_ms)
    if len(part.found) == limit or part.examined >= MOST_EXAMINED:
        return replace(part, cursor=behind)
    rest = entries(lists, criteria, limit - len(part.found), behind, MOST_EXAMINED - part.examined)
    return Part((*part.found, *rest.found), rest.cursor, part.examined + rest.examined, part.lost | rest.lost)


def _cancel(queue: DelayedQueue, waiting: Sequence[Entry]) -> list[bool]:
    return queue.remove(waiting)


def _release(queue: DelayedQueue, waiting: Sequence[Entry], *, eta: str | None) -> list[bool]:
    return queue.release([(entry, with_eta(entry.payload, eta, None)) for entry in waiting])


def _amend(queue: DelayedQueue, waiting: Sequence[Entry], *, eta: str, due_ms: int) -> list[bool]:
    """Return an answer for each entry that can be amended."""
    ours = [entry for entry in waiting if OfferId.is_one(entry.id)]
    return queue.amend_many([(entry, with_eta(entry.payload, eta, due_ms)) for entry in ours], due_ms=due_ms)

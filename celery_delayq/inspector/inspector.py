"""Inspector: see and change what waits. `DelayQ`, the commands and remote control are skins over it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from redis.exceptions import ResponseError

from celery_delayq.dead_letters import DeadLetters
from celery_delayq.delayed_queue import DelayedQueue
from celery_delayq.inspector.broker_lists import BrokerLists
from celery_delayq.inspector.counts import Counts, count
from celery_delayq.inspector.message import with_eta
from celery_delayq.inspector.pages import Criteria, OnProgress, Page, page, to_examine, walk
from celery_delayq.inspector.task import ScheduledTask, scheduled_task
from celery_delayq.times import Time, due_at, to_ms

T = TypeVar("T")


class Inspector:
    """What waits in the delayed queues of a broker. No worker needs to run for any of it.

    As its channel, for one thread at a time. Every method raises `redis.RedisError` when the server is away or
    refuses. A list that the server refuses (of another type, or by ACL) shields no task in others from the calls by id;
    what is asked of all lists fails with an error that names the key.

    Args:
        channel: a channel of our transport.
        queues: names of the app's queues; those for which something waits are known without.
    """

    def __init__(self, channel: Any, queues: Iterable[str] = ()) -> None:
        self.lists = BrokerLists(channel, queues)

    def queues(self) -> list[str]:
        """Return the names of the app's queues, and of those for which something may wait."""
        return sorted({found.queue for found in self.lists.all()})

    def has_queue(self, queue: str) -> bool:
        """Return whether there is a queue of this name, see `BrokerLists.exists`."""
        return self.lists.exists(queue)

    def get(self, task_ids: Sequence[str]) -> dict[str, ScheduledTask | None]:
        """Return the tasks that wait, the one that is due first where an id waits several times."""
        now_ms = self.lists.now_ms()

        def first(queue: DelayedQueue, task_id: str) -> ScheduledTask | None:
            entries = queue.find(task_id)
            if not entries:
                return None
            entry = min(entries, key=lambda entry: entry.due_ms)
            return scheduled_task(entry, self.lists.parse(queue.name), now_ms)

        found = self._each(task_ids, first)
        return {task_id: min(tasks, key=lambda task: task.due_ms, default=None) for task_id, tasks in found.items()}

    def scheduled(self, criteria: Criteria, *, limit: int = 100, cursor: str | None = None) -> Page:
        """Return a page of what waits, in due order over all queues, see `pages.page`."""
        return page(self.lists, criteria, limit, cursor)

    def to_examine(self, criteria: Criteria) -> int:
        """Return how many tasks must be looked at to find those that match, see `pages.to_examine`."""
        return to_examine(self.lists, criteria)

    def cancel(self, task_ids: Sequence[str]) -> dict[str, bool]:
        """Remove tasks that wait; returns which did. Atomic for each entry."""
        return _answers(self._each(task_ids, lambda queue, task_id: queue.cancel(task_id)))

    def cancel_all(
        self,
        criteria: Criteria,
        *,
        everything: bool = False,
        dry_run: bool = False,
        on_progress: OnProgress | None = None,
    ) -> int:
        """Remove all tasks that match; returns how many. Atomic for each entry, in bounded calls.

        Raises:
            ValueError: no criterion, and not `everything`.
        """
        if criteria.is_everything and not everything:
            raise ValueError("name a queue, a task or a time, or say everything=True")
        cancelled = 0
        for broker_list, tasks in walk(self.lists, criteria, on_progress):
            if dry_run:
                cancelled += len(tasks)
            else:
                queue = self.lists.delayed_queue(broker_list)
                cancelled += sum(queue.remove([task.entry for task in tasks]))
        return cancelled

    def reschedule(
        self, task_ids: Sequence[str], *, countdown: float | None = None, eta: Time | None = None
    ) -> dict[str, bool]:
        """Give tasks that wait another due time; returns which did. Atomic for each entry.

        What is due by then, by the server's clock, is moved to its broker list at once.

        Raises:
            TypeError, ValueError: see `times.due_at`.
        """
        now_ms = self.lists.now_ms()
        due = due_at(now_ms, countdown=countdown, eta=eta)
        due_ms, text = to_ms(due, "eta"), due.isoformat()
        if due_ms <= now_ms:
            return self._move(task_ids, text)
        return _answers(self._each(task_ids, lambda queue, task_id: _amend(queue, task_id, text, due_ms)))

    def run_now(self, task_ids: Sequence[str]) -> dict[str, bool]:
        """Move tasks that wait to their broker lists, as if they had no eta; returns which did. Atomic an entry."""
        return self._move(task_ids, None)

    def counts(self, *, span: float = 3600, buckets: int = 60) -> Counts:
        """Count what is where, see `counts.count`."""
        return count(self.lists, span=span, buckets=buckets)

    def dead_letters(self, queue: str) -> list[DeadLetters]:
        """Return the dead lists of a queue, of all its priorities; whether the queue is known does not matter."""
        names = {found.name for found in self.lists.all(queue)}
        names.update(self.lists.channel.broker_lists(queue))
        return [DeadLetters(self.lists.client, name) for name in sorted(names)]

    def _move(self, task_ids: Sequence[str], eta: str | None) -> dict[str, bool]:
        return _answers(self._each(task_ids, lambda queue, task_id: _release(queue, task_id, eta)))

    def _each(self, task_ids: Sequence[str], act: Callable[[DelayedQueue, str], T | None]) -> dict[str, list[T]]:
        """Do something with each id in each queue that knows it; return what is true of the results.

        Raises:
            ResponseError: a list refused, and there is an id that no other list has.
        """
        holders, refused = self.lists.holding(task_ids)
        results: dict[str, list[T]] = {task_id: [] for task_id in holders}
        for task_id, queues in holders.items():
            for queue in queues:
                try:
                    result = act(queue, task_id)
                except ResponseError as exc:
                    refused = exc
                    continue
                if result:
                    results[task_id].append(result)
        if refused is not None and not all(results.values()):
            raise refused
        return results


def _answers(results: dict[str, list[Any]]) -> dict[str, bool]:
    return {task_id: bool(found) for task_id, found in results.items()}


def _amend(queue: DelayedQueue, task_id: str, eta: str, due_ms: int) -> bool:
    """Give all entries of an id another due time; again those that someone else changed meanwhile."""
    waits = False
    while True:
        todo = []
        for entry in queue.find(task_id):
            message = with_eta(entry.payload, eta, due_ms)
            if (entry.due_ms, entry.payload) == (due_ms, message):
                waits = True
            else:
                todo.append((entry, message))
        if not todo:
            return waits
        for entry, message in todo:
            waits = queue.amend(entry, message, due_ms=due_ms) is not None or waits


def _release(queue: DelayedQueue, task_id: str, eta: str | None) -> bool:
    """Move all entries of an id to the broker list; again those that someone else changed meanwhile."""
    moved = False
    while entries := queue.find(task_id):
        entries.sort(key=lambda entry: entry.due_ms)
        moved = any(queue.release([(entry, with_eta(entry.payload, eta, None)) for entry in entries])) or moved
    return moved

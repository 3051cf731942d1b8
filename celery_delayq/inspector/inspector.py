"""Inspector: read and change waiting tasks. `DelayQ`, the commands and remote control are thin layers over it."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from redis.exceptions import ResponseError

from celery_delayq.errors import UnknownQueue
from celery_delayq.inspector import dead, holders
from celery_delayq.inspector.broker_lists import BrokerLists
from celery_delayq.inspector.bulk import Action, Chunk, change_some
from celery_delayq.inspector.consumers import Consumers, consumers
from celery_delayq.inspector.counts import Counts, count
from celery_delayq.inspector.histogram import Histogram, histogram
from celery_delayq.inspector.pages import MOST_EXAMINED, Criteria, OnProgress, Page, page, to_examine, walk
from celery_delayq.inspector.task import ScheduledTask, scheduled_task
from celery_delayq.messages import with_eta
from celery_delayq.queue.dead_letters import DeadChunk, DeadLetter, DeadLetters
from celery_delayq.queue.delayed_queue import DelayedQueue
from celery_delayq.times import Time, due_at, to_ms

T = TypeVar("T")


class Inspector:
    """Reads and changes the tasks that wait in the delayed queues of a broker. No worker needs to run.

    The methods with the names of `DelayQ` methods do the same; `DelayQ` documents them in full.

    Like its channel, it is for one thread at a time. Every method raises `redis.RedisError` if the server is away or
    refuses a command. The server may refuse a single list (wrong type, or ACL). Calls by id still find tasks in the
    other lists; calls for all lists fail with an error that names the key.

    The same holds for nodes of a Redis Cluster that are away. Calls by id find tasks at the other nodes. Calls for all
    lists raise `NodesAway`, which names the nodes and their queues, before they change anything; `counts`,
    `consumers`, `histogram` and `scheduled` do without those queues if `partial` is true. A node may take 2 s to
    answer. While the node that has the names of all delayed queues is away, only those of the app's queues and that of
    the caller are known.

    Args:
        channel: a channel of our transport.
        queues: names of the app's queues. Queues with waiting tasks are found without this.
    """

    def __init__(self, channel: Any, queues: Iterable[str] = ()) -> None:
        self.lists = BrokerLists(channel, queues)

    def queues(self) -> list[str]:
        """Return the names of the app's queues, and of queues that may have waiting tasks."""
        known, _ = self.lists.known()
        return sorted({found.queue for found in known})

    def check_queue(self, queue: str | None) -> None:
        """Check that there is a queue of this name; see `BrokerLists.exists`. None passes.

        Raises:
            UnknownQueue: there is none. The message suggests similar names.
        """
        if queue is None or self.lists.exists(queue):
            return
        names = self.queues()
        near = difflib.get_close_matches(queue, names)
        advice = f"did you mean {' or '.join(map(repr, near))}?" if near else f"known queues are {', '.join(names)}"
        raise UnknownQueue(f"unknown queue {queue!r}: {advice}")

    def get(self, task_ids: Sequence[str]) -> dict[str, ScheduledTask | None]:
        """Return waiting tasks; see `DelayQ.get`."""
        now_ms = self.lists.now_ms()

        def first(queue: DelayedQueue, task_id: str) -> ScheduledTask | None:
            entries = queue.find(task_id)
            if not entries:
                return None
            entry = min(entries, key=lambda entry: entry.due_ms)
            return scheduled_task(entry, self.lists.parse(queue.name), now_ms)

        found = self._each(task_ids, first)
        return {task_id: min(tasks, key=lambda task: task.due_ms, default=None) for task_id, tasks in found.items()}

    def waiting(self, key: str) -> ScheduledTask | None:
        """Return the waiting task that holds a unique key; see `DelayQ.waiting`."""
        return holders.waiting(self.lists, key)

    def forget(self, key: str) -> bool:
        """Give up a unique key; see `DelayQ.forget`."""
        return holders.give_up(self.lists, key)

    def scheduled(
        self,
        criteria: Criteria,
        *,
        limit: int = 100,
        cursor: str | None = None,
        partial: bool = False,
        most_examined: int = MOST_EXAMINED,
    ) -> Page:
        """Return a page of waiting tasks; see `DelayQ.scheduled`.

        Args:
            criteria: which tasks.
            limit: maximum number of tasks, 1 to 1,000.
            cursor: cursor of the previous page.
            partial: leave out queues whose nodes of a cluster are away.
            most_examined: the page ends when it has examined about so many tasks: up to one read more.
        """
        return page(self.lists, criteria, limit, cursor, most_examined, partial=partial)

    def to_examine(self, criteria: Criteria) -> int:
        """Return how many tasks a search examines; see `pages.to_examine`."""
        return to_examine(self.lists, criteria)

    def cancel(self, task_ids: Sequence[str]) -> dict[str, bool]:
        """Remove waiting tasks; see `DelayQ.cancel`. Atomic for each entry."""
        return _answers(self._each(task_ids, lambda queue, task_id: queue.cancel(task_id)))

    def cancel_all(
        self,
        criteria: Criteria,
        *,
        everything: bool = False,
        dry_run: bool = False,
        on_progress: OnProgress | None = None,
    ) -> int:
        """Remove all matching tasks; see `DelayQ.cancel_all`."""
        criteria.check_wanted(everything)
        cancelled = 0
        for broker_list, tasks in walk(self.lists, criteria, on_progress):
            if dry_run:
                cancelled += len(tasks)
            else:
                queue = self.lists.delayed_queue(broker_list)
                cancelled += sum(queue.remove([task.entry for task in tasks]))
        return cancelled

    def change_some(
        self,
        action: Action,
        criteria: Criteria,
        *,
        eta: Time | None = None,
        limit: int = 1000,
        cursor: str | None = None,
    ) -> Chunk:
        """Change some matching tasks; see `DelayQ.change_some`. Without criteria, it changes all tasks."""
        return change_some(self.lists, action, criteria, eta=eta, limit=limit, cursor=cursor)

    def reschedule(
        self, task_ids: Sequence[str], *, countdown: float | timedelta | None = None, eta: Time | None = None
    ) -> dict[str, bool]:
        """Give waiting tasks a new due time; see `DelayQ.reschedule`. Atomic for each entry."""
        now_ms = self.lists.now_ms()
        due = due_at(now_ms, countdown=countdown, eta=eta)
        due_ms, text = to_ms(due, "eta"), due.isoformat()
        if due_ms <= now_ms:
            return self._move(task_ids, text)
        return _answers(self._each(task_ids, lambda queue, task_id: _amend(queue, task_id, text, due_ms)))

    def run_now(self, task_ids: Sequence[str]) -> dict[str, bool]:
        """Move waiting tasks to their broker lists; see `DelayQ.run_now`. Atomic for each entry."""
        return self._move(task_ids, None)

    def counts(self, *, span: float = 3600, buckets: int = 60, partial: bool = False) -> Counts:
        """Count messages; see `DelayQ.counts`."""
        return count(self.lists, span=span, buckets=buckets, partial=partial)

    def histogram(
        self, start_ms: int, span_s: float, buckets: int, *, queue: str | None = None, partial: bool = False
    ) -> Histogram:
        """Count due times in a window; see `DelayQ.histogram`.

        Args:
            start_ms: where the window starts, unix time in ms.
            span_s: its length, in seconds.
            buckets: number of its parts, 1 to 1,000.
            queue: only tasks of this queue.
            partial: leave out queues whose nodes of a cluster are away.
        """
        return histogram(self.lists, start_ms, span_s, buckets, queue=queue, partial=partial)

    def consumers(self, *, partial: bool = False) -> Consumers:
        """Return who consumes the queues; see `DelayQ.consumers`."""
        return consumers(self.lists, partial=partial)

    def dead_letters(self, queue: str) -> list[DeadLetters]:
        """Return the dead lists of a queue, one for each priority. The queue need not be known."""
        return dead.dead_lists(self.lists, queue)

    def dead_total(self, queue: str) -> int:
        """Return how many dead letters a queue has."""
        return sum(dead.sizes_of(self.dead_letters(queue)).values())

    def dead_page(self, queue: str, limit: int = 100, cursor: str | None = None) -> dead.DeadLettersPage:
        """Return a page of the dead letters of a queue; see `dead.page`."""
        return dead.page(self.lists, queue, limit, cursor)

    def find_dead(self, queue: str, letter_id: str, near: int | None = None) -> tuple[DeadLetters, DeadLetter] | None:
        """Return a dead letter of a queue and its list, or None; see `dead.find`."""
        return dead.find(self.lists, queue, letter_id, near)

    def find_dead_many(
        self, queue: str, places: Sequence[tuple[str, int | None]]
    ) -> dict[str, tuple[DeadLetters, DeadLetter]]:
        """Return those dead letters of a queue that are there, with their lists, by id; see `dead.find_many`."""
        return dead.find_many(self.lists, queue, places)

    def requeue_dead_some(self, queue: str, limit: int = 1000, cursor: str | None = None) -> DeadChunk:
        """Requeue some dead letters of a queue; see `dead.requeue_some`."""
        return dead.requeue_some(self.lists, queue, limit, cursor)

    def purge_dead_some(self, queue: str, limit: int = 1000, cursor: str | None = None) -> DeadChunk:
        """Remove some dead letters of a queue; see `dead.purge_some`."""
        return dead.purge_some(self.lists, queue, limit, cursor)

    def _move(self, task_ids: Sequence[str], eta: str | None) -> dict[str, bool]:
        return _answers(self._each(task_ids, lambda queue, task_id: _release(queue, task_id, eta)))

    def _each(self, task_ids: Sequence[str], act: Callable[[DelayedQueue, str], T | None]) -> dict[str, list[T]]:
        """Call `act` for each id in each queue that holds it, and return the truthy results.

        Raises:
            RedisError: the server refused a list, or its node of a cluster is away, and some id is in no other list.
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
    """Give all entries of an id a new due time. Retry entries that someone else changed in the meantime."""
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
    """Move all entries of an id to the broker list. Retry entries that someone else changed in the meantime."""
    moved = False
    while entries := queue.find(task_id):
        entries.sort(key=lambda entry: entry.due_ms)
        moved = any(queue.release([(entry, with_eta(entry.payload, eta, None)) for entry in entries])) or moved
    return moved

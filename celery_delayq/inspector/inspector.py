"""Inspector: find and change waiting tasks by id or unique key, and dead letters of a queue.

What reads or changes all lists is a function of `Inspector.lists`, in a module of its own.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from redis.exceptions import ResponseError

from celery_delayq.basics.errors import UnknownQueue
from celery_delayq.basics.times import Time, due_at, to_datetime, to_ms
from celery_delayq.inspector import ready_tasks
from celery_delayq.inspector.broker_lists import BrokerLists
from celery_delayq.inspector.task import ScheduledTask, scheduled_task
from celery_delayq.queue import holds, paused
from celery_delayq.queue.codec import OfferId
from celery_delayq.queue.dead_letters import DeadLetters
from celery_delayq.queue.delayed_queue import DelayedQueue, database_of
from celery_delayq.transport.messages import with_eta

T = TypeVar("T")


class Inspector:
    """Reads and changes the tasks that wait in the delayed queues of a broker. No worker needs to run.

    The methods with the names of `DelayQ` methods do the same; `DelayQ` documents them in full.

    Like its channel, it is for one thread at a time. Every method raises `redis.RedisError` if the server is away or
    refuses a command. The server may refuse a single list (wrong type, or ACL). Calls by id still find tasks in the
    other lists; calls for all lists fail with an error that names the key.

    The same holds for nodes of a Redis Cluster that are away. Calls by id find tasks at the other nodes. Calls for all
    lists raise `NodesAway`, which names the nodes and their queues, before they change anything. A node may take 2 s to
    answer. While the node that has the names of all delayed queues is away, only those of the app's queues and that of
    the caller are known.

    Attributes:
        lists: the broker lists, for the functions of the other modules: `pages.page`, `counts.count` and so on. What is
            said above holds for them, too; with `partial`, they leave out queues whose nodes are away.

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
        raise UnknownQueue(f"unknown queue {queue!r}: {advice}", near)

    def pause(self, queue: str) -> bool:
        """Let workers fetch nothing from a queue; see `DelayQ.pause`."""
        self.check_queue(queue)
        return self._change_paused(paused.pause, queue)

    def resume(self, queue: str) -> bool:
        """Let workers fetch from a queue again; see `DelayQ.resume`."""
        if queue not in self.lists.paused():
            self.check_queue(queue)
        return self._change_paused(paused.resume, queue)

    def _change_paused(self, change: Callable[..., bool], queue: str) -> bool:
        client, prefix = self.lists.client, self.lists.channel.global_keyprefix
        return change(client, queue, keyprefix=prefix, db=database_of(client))

    def get(self, task_ids: Sequence[str], *, ready: bool = False) -> dict[str, ScheduledTask | None]:
        """Return waiting tasks; see `DelayQ.get`."""
        now_ms = self.lists.now_ms()

        def first(queue: DelayedQueue, task_id: str) -> ScheduledTask | None:
            entries = queue.find(task_id)
            if not entries:
                return None
            entry = min(entries, key=lambda entry: entry.score)
            return scheduled_task(entry, self.lists.parse(queue.name), now_ms)

        found, refused = self._try_each(task_ids, first)
        gone = [task_id for task_id, tasks in found.items() if not tasks]
        if ready and gone:
            more, refused_ready = ready_tasks.get(self.lists, gone)
            refused = refused or refused_ready
            found.update((task_id, [task]) for task_id, task in more.items())
        tasks = _complete(found, refused)
        return {task_id: min(some, key=_due_ms, default=None) for task_id, some in tasks.items()}

    def holding(self, key: str) -> ScheduledTask | None:
        """Return the waiting task that holds a unique key; see `DelayQ.waiting`.

        If queues have one each, it is the one that is due first.
        """
        now_ms = self.lists.now_ms()
        queues = [self.lists.delayed_queue(found) for found in self.lists.all()]
        tasks: list[ScheduledTask] = []
        for hold in holds.holds_of(self.lists.asking, [queue.keys for queue in queues], key):
            if hold.until == "period" and hold.ends_ms > now_ms:
                tasks += filter(None, self.get([hold.task_id]).values())
            broker_list = self.lists.parse(hold.broker_list)
            for entry in self.lists.delayed_queue(broker_list).find(hold.task_id) if hold.waits else ():
                offer_id = OfferId.from_bytes(entry.id)
                if offer_id is not None and offer_id.unique:
                    tasks.append(scheduled_task(entry, broker_list, now_ms))
        return min(tasks, key=_due_ms, default=None)

    def forget(self, key: str) -> bool:
        """Give up a unique key in all queues; see `DelayQ.forget`."""
        return holds.forget(
            self.lists.client, [self.lists.delayed_queue(found).keys for found in self.lists.all()], key
        )

    def cancel(self, task_ids: Sequence[str], *, ready: bool = False) -> dict[str, bool]:
        """Remove waiting tasks; see `DelayQ.cancel`. Atomic for each entry and message."""
        found, refused = self._try_each(task_ids, lambda queue, task_id: queue.cancel(task_id))
        if ready and found:  # afterwards: a transfer may move a task meanwhile
            cancelled, refused_ready = ready_tasks.cancel(self.lists, found)
            refused = refused or refused_ready
            for task_id in cancelled:
                found[task_id].append(1)
        return _answers(_complete(found, refused))

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

    def update(
        self, task_ids: Sequence[str], change: Callable[[bytes], bytes], priority: int | None = None
    ) -> dict[str, bool]:
        """Give waiting tasks other messages, and perhaps another priority; see `DelayQ.update`. Atomic for each entry.

        Args:
            task_ids: ids.
            change: returns the new message for an old one.
            priority: the priority of the new messages, if it is another one.
        """

        def act(queue: DelayedQueue, task_id: str) -> bool:
            there = queue
            if priority is not None:
                channel = self.lists.channel
                there = channel.delayed_queue(channel.broker_list(self.lists.parse(queue.name).queue, priority))
            return _update(queue, task_id, change, there)

        return _answers(self._each(task_ids, act))

    def dead_letters(self, queue: str | None = None) -> DeadLetters:
        """Return the dead letters of a queue, of all priorities; or of all queues. The queue need not be known."""
        known, lost = self.lists.known(*(() if queue is None else (queue,)))
        lost.check()
        of_queue = set() if queue is None else set(self.lists.channel.broker_lists(queue))
        return self.letters_of(*{found.name for found in known}, *of_queue)

    def letters_of(self, *names: str) -> DeadLetters:
        """Return the dead letters of broker lists, by their full names."""
        return DeadLetters(self.lists.client, *names, writer=self.lists.channel.writer)

    def _move(self, task_ids: Sequence[str], eta: str | None) -> dict[str, bool]:
        return _answers(self._each(task_ids, lambda queue, task_id: _release(queue, task_id, eta)))

    def _each(self, task_ids: Sequence[str], act: Callable[[DelayedQueue, str], T | None]) -> dict[str, list[T]]:
        """Call `act` for each id in each queue that holds it, and return the truthy results.

        Raises:
            RedisError: the server refused a list, or its node of a cluster is away, and some id is in no other list.
        """
        return _complete(*self._try_each(task_ids, act))

    def _try_each(
        self, task_ids: Sequence[str], act: Callable[[DelayedQueue, str], T | None]
    ) -> tuple[dict[str, list[T]], Exception | None]:
        """Do the same, but return the error of a list that was not read."""
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
        return results, refused


def _complete(results: dict[str, list[T]], refused: Exception | None) -> dict[str, list[T]]:
    if refused is not None and not all(results.values()):
        raise refused
    return results


def _due_ms(task: ScheduledTask) -> int:
    return task.entry.score


def _answers(results: dict[str, list[Any]]) -> dict[str, bool]:
    return {task_id: bool(found) for task_id, found in results.items()}


def _amend(queue: DelayedQueue, task_id: str, eta: str, due_ms: int) -> bool:
    """Give all entries of an id a new due time. Retry entries that someone else changed in the meantime."""
    waits = False
    while True:
        todo = []
        for entry in queue.find(task_id):
            message = with_eta(entry.payload, eta, due_ms)
            if (entry.score, entry.payload) == (due_ms, message):
                waits = True
            else:
                todo.append((entry, message))
        if not todo:
            return waits
        for entry, message in todo:
            waits = queue.amend(entry, message, eta=to_datetime(due_ms)) or waits


def _update(queue: DelayedQueue, task_id: str, change: Callable[[bytes], bytes], there: DelayedQueue) -> bool:
    """Change all entries of an id, and move them to another queue. Retry those that someone else changed meanwhile."""
    waits = False
    written = set[bytes]()
    while True:
        changed = []
        for entry in queue.find(task_id):
            if entry.payload in written:
                continue
            message = change(entry.payload)
            written.add(message)
            if there.name == queue.name:
                changed.append(queue.amend(entry, message))
            else:
                changed.append(queue.move(entry, message, there))
        waits = waits or any(changed)
        if all(changed):
            return waits


def _release(queue: DelayedQueue, task_id: str, eta: str | None) -> bool:
    """Move all entries of an id to the broker list. Retry entries that someone else changed in the meantime."""
    moved = False
    while entries := queue.find(task_id):
        entries.sort(key=lambda entry: entry.score)
        moved = any(queue.release([(entry, with_eta(entry.payload, eta, None)) for entry in entries])) or moved
    return moved

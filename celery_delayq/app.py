"""DelayQ: the object through which an app uses this package."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Literal, TypeAlias, TypeVar, overload

from celery import Celery, signals
from celery.canvas import Signature
from celery.result import AsyncResult
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from celery_delayq import bulk, panel
from celery_delayq.beat import warn_of_another
from celery_delayq.bootsteps import Plan, Transfer
from celery_delayq.config import require_transport
from celery_delayq.control import use_control
from celery_delayq.inspector import Inspector, backup
from celery_delayq.inspector.backup import File, Imported, Released
from celery_delayq.inspector.counts import Counts
from celery_delayq.inspector.pages import Criteria, OnProgress, Page
from celery_delayq.inspector.task import ScheduledTask
from celery_delayq.schedule.api import Schedule
from celery_delayq.times import Time
from celery_delayq.transport import register

T = TypeVar("T")

#: A task: its id, or its result.
TaskId: TypeAlias = str | AsyncResult


class DelayQ:
    """Delayed tasks in Redis for a Celery app.

        app = Celery("shop", broker="delayq://localhost:6379/0")
        delayq = DelayQ(app)

    It registers the `delayq` URL schemes with kombu, a bootstep and a `control` with the app, and remote control
    commands and a warning of a second scheduler with Celery; it connects to nothing and reads no configuration, so it
    may come before `app.config_from_object`. Making it twice for an app does no harm. It may be shared by threads, and
    used after a fork.

    What sees and changes waiting tasks works with no worker running. A task is named by its id or its result
    (`result.id`, `result`); several of them at once (a list, a `GroupResult`) get a dict of answers by id. Of a chain,
    the first task is the one that waits: `result.parent.id` and so on. If an id was scheduled several times, all of
    these tasks are meant.

    Times are datetimes, or unix time in seconds. A naive datetime is in UTC, as Celery takes a naive eta. What is
    due, overdue or left is told by the server's clock.

    All these methods raise:
        TypeError: an argument of a wrong type, a task that is neither an id nor a result.
        kombu.exceptions.OperationalError: the server cannot be reached, or refuses. If the connection was lost during
            the call, what it was to do may be done or not; calling again makes sure.
        ConfigurationError: the app's broker is not a `delayq://` one.
    """

    def __init__(self, app: Celery) -> None:
        self.app = app
        register()
        app.steps["consumer"].update((Plan, Transfer))
        use_control(app)
        panel.register()
        signals.beat_init.connect(warn_of_another, dispatch_uid="celery_delayq.warn_of_another")

    @overload
    def get(self, task_id: TaskId) -> ScheduledTask | None: ...
    @overload
    def get(self, task_id: Iterable[TaskId]) -> dict[str, ScheduledTask | None]: ...
    def get(self, task_id: TaskId | Iterable[TaskId]) -> Any:
        """Return a task that waits, or None if it does not: it is due, ran, was cancelled, or never was delayed.

        Of an id that was scheduled several times, the task that is due first. O(log N) for N waiting tasks.
        """
        return self._each(task_id, lambda inspector, ids: inspector.get(ids))

    def scheduled(
        self,
        queue: str | None = None,
        task: str | None = None,
        due_after: Time | None = None,
        due_before: Time | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page:
        """Return a page of what waits, in due order over all queues and priorities.

        No call on the server takes long, whatever waits. A page ends after 10,000 tasks that were examined: where
        few match, it is short or empty, and its cursor tells whether there is more. What waits all the time is on
        exactly one of the pages; what is offered or moved meanwhile, on one or none; what is rescheduled, on any
        number of them.

        Args:
            queue: only tasks of this queue.
            task: only tasks of this name.
            due_after: only tasks due then or later.
            due_before: only tasks due before.
            limit: tasks a page at most, 1 to 1,000.
            cursor: that of the page before.

        Raises:
            ValueError: `limit` or a time out of range, a cursor that is none.
        """
        criteria = Criteria.of(queue=queue, task=task, due_after=due_after, due_before=due_before)
        with self._inspector("cannot tell what waits") as inspector:
            return inspector.scheduled(criteria, limit=limit, cursor=cursor)

    def iter_scheduled(
        self,
        queue: str | None = None,
        task: str | None = None,
        due_after: Time | None = None,
        due_before: Time | None = None,
        *,
        limit: int = 1000,
        cursor: str | None = None,
    ) -> Iterator[ScheduledTask]:
        """Yield all that waits, page after page, see `scheduled`; holds no connection in between."""
        while True:
            page = self.scheduled(queue, task, due_after, due_before, limit, cursor)
            yield from page
            if (cursor := page.cursor) is None:
                return

    @overload
    def cancel(self, task_id: TaskId) -> bool: ...
    @overload
    def cancel(self, task_id: Iterable[TaskId]) -> dict[str, bool]: ...
    def cancel(self, task_id: TaskId | Iterable[TaskId]) -> Any:
        """Remove a task that waits, for good: it will not run.

        Atomic against the transfer: either this call or the worker gets the task. O(log N) for N waiting tasks.

        The result of a cancelled task stays pending, and nobody tells a chord or chain that counts on it. A lock that
        was taken for it, as celery-singleton does, stays as well.

        Returns:
            True if it was still waiting. False if it was moved to its queue because it is due, was cancelled before,
            or never was delayed.
        """
        return self._each(task_id, lambda inspector, ids: inspector.cancel(ids))

    @overload
    def reschedule(self, task_id: TaskId, *, countdown: float | None = ..., eta: Time | None = ...) -> bool: ...
    @overload
    def reschedule(
        self, task_id: Iterable[TaskId], *, countdown: float | None = ..., eta: Time | None = ...
    ) -> dict[str, bool]: ...
    def reschedule(
        self, task_id: TaskId | Iterable[TaskId], *, countdown: float | None = None, eta: Time | None = None
    ) -> Any:
        """Give a task that waits another time. It keeps its id, and its eta header says the new time.

        Atomic against the transfer, and against others who change the task. All but the eta stays as it is, `expires`
        as well: a task whose new time is after that is discarded by its worker, as an expired one.

        Args:
            task_id: which.
            countdown: in seconds from now, by the server's clock; or
            eta: the time. If it is past, or the countdown negative, the task is moved to its queue at once.

        Returns:
            True if it was still waiting.

        Raises:
            TypeError: not exactly one of `countdown` and `eta`.
            ValueError: a time after the year 9999, or that is no number.
        """
        return self._each(task_id, lambda inspector, ids: inspector.reschedule(ids, countdown=countdown, eta=eta))

    @overload
    def run_now(self, task_id: TaskId) -> bool: ...
    @overload
    def run_now(self, task_id: Iterable[TaskId]) -> dict[str, bool]: ...
    def run_now(self, task_id: TaskId | Iterable[TaskId]) -> Any:
        """Move a task that waits to the back of its queue, as if it had been published without eta.

        Atomic, and done when this returns: no transfer is needed for it.

        Returns:
            True if it was still waiting.
        """
        return self._each(task_id, lambda inspector, ids: inspector.run_now(ids))

    def cancel_all(
        self,
        *,
        queue: str | None = None,
        task: str | None = None,
        due_after: Time | None = None,
        due_before: Time | None = None,
        everything: bool = False,
        dry_run: bool = False,
        on_progress: OnProgress | None = None,
    ) -> int:
        """Remove all tasks that match, for good; see `scheduled` for what matches, `cancel` for what that means.

        Each is removed in one step or delivered, in bounded calls. What is offered or rescheduled meanwhile may stay.

        Args:
            queue: only tasks of this queue.
            task: only tasks of this name.
            due_after: only tasks due then or later.
            due_before: only tasks due before.
            everything: must be True if no criterion is given.
            dry_run: only count.
            on_progress: called now and then with how many were examined, and how many there are.

        Returns:
            How many were removed.

        Raises:
            ValueError: no criterion, and not `everything`; a time out of range.
        """
        criteria = Criteria.of(queue=queue, task=task, due_after=due_after, due_before=due_before)
        with self._inspector("cannot cancel all of it") as inspector:
            return inspector.cancel_all(criteria, everything=everything, dry_run=dry_run, on_progress=on_progress)

    def counts(self, *, span: float = 3600, buckets: int = 60) -> Counts:
        """Count what is ready, delayed, overdue, in flight and dead, a queue; and when the rest is due.

        Cheap for the server: commands of O(log N) at most. Not of one moment: a message that moves meanwhile may be
        counted twice or not at all.

        Args:
            span: how far the histogram of due times reaches, in seconds.
            buckets: into how many parts it is divided, 1 to 1,000.

        Raises:
            ValueError: out of range.
        """
        with self._inspector("cannot count") as inspector:
            return inspector.counts(span=span, buckets=buckets)

    def export(self, file: File, *, on_progress: OnProgress | None = None) -> int:
        """Write all that waits to a file of JSON lines; returns how many tasks. See `backup.export`.

        Args:
            file: a path, which gets the file as the last step; or an open file.
            on_progress: called now and then with how many were written, and how many there are.

        Raises:
            OSError: the file cannot be written.
        """
        with self._inspector("cannot export") as inspector:
            return backup.export(inspector.lists, file, on_progress)

    def import_(self, file: File, *, on_progress: OnProgress | None = None) -> Imported:
        """Let what was exported wait again, unless it does already. May be repeated; see `backup.import_`.

        Args:
            file: a path, or an open file.
            on_progress: called now and then with how many were read, and how many there are.

        Raises:
            InvalidExport: the file is cut off, of another version, or garbage. What comes before that was imported.
            OSError: the file cannot be read.
        """
        with self._inspector("cannot import") as inspector:
            return backup.import_(inspector.lists, file, on_progress)

    def release(self, queue: str | None = None, *, on_progress: OnProgress | None = None) -> Released:
        """Move all that waits to the queues, each task with its eta: the way back to stock Celery.

        Stop workers with this package before: they let what they fetch of it wait again, unless the transport option
        `delay_eta_tasks` is off. That does no harm, but nothing is gained. Stock workers hold what they fetch of it in
        memory. Each hundred is moved in one atomic script, in due order within a queue and priority.

        Args:
            queue: only what waits for this queue.
            on_progress: called now and then with how many were examined, and how many there are.
        """
        Criteria.of(queue=queue)
        with self._inspector("cannot release") as inspector:
            return backup.release(inspector.lists, queue, on_progress)

    @overload
    def apply_async_many(
        self, signatures: Iterable[Signature], *, chunk_size: int = ..., results: Literal[True] = ...
    ) -> list[AsyncResult]: ...
    @overload
    def apply_async_many(
        self, signatures: Iterable[Signature], *, chunk_size: int = ..., results: Literal[False]
    ) -> int: ...
    def apply_async_many(
        self, signatures: Iterable[Signature], *, chunk_size: int = bulk.CHUNK_SIZE, results: bool = True
    ) -> Any:
        """Send many tasks in a few round trips; each as its signature's `apply_async()` does, delayed or not.

            delayq.apply_async_many(remind.s(user).set(countdown=3600) for user in users)

        `after_task_publish` is sent when a task is in a chunk, just before the chunk is sent. Messages of one queue and
        priority are sent in the order of their signatures.

        Args:
            signatures: of single tasks; each call makes a new task id for those that have none. Read as they are sent.
            chunk_size: tasks a round trip; fewer if they are large. What has been sent stays sent.
            results: False for millions of tasks: no results are kept, so that memory does not grow with their number.
                Workers store results as ever. A task that sends them does not have them as its children.

        Returns:
            The results in order; without results, how many tasks were sent.

        Raises:
            NotAllSent: the first error ends it, and says what was sent, and what was not. Signatures behind it were
                not read. Its cause is that error, which its message names.
            ConfigurationError: the app's broker is not a `delayq://` one.
            kombu.exceptions.OperationalError: the server cannot be reached; nothing was sent.
        """
        return bulk.apply_async_many(self.app, signatures, chunk_size, results)

    @cached_property
    def schedule(self) -> Schedule:
        """The periodic tasks of the app, see `Schedule`."""
        return Schedule(self.app, self._channel)

    def _each(self, task_id: Any, ask: Callable[[Inspector, list[str]], dict[str, T]]) -> T | dict[str, T]:
        if isinstance(task_id, (str, AsyncResult)):
            one = _id_of(task_id)
            with self._inspector(f"cannot tell whether task {one} waits") as inspector:
                return ask(inspector, [one])[one]
        if isinstance(task_id, bytes) or not isinstance(task_id, Iterable):
            _id_of(task_id)
        ids = [_id_of(each) for each in task_id]
        with self._inspector("cannot tell which of the tasks wait") as inspector:
            return ask(inspector, ids)

    @contextmanager
    def _inspector(self, trouble: str) -> Iterator[Inspector]:
        with self._channel() as channel:
            try:
                yield Inspector(channel, self.app.amqp.queues)
            except RedisError as exc:
                raise OperationalError(f"{trouble}: {exc}") from exc

    @contextmanager
    def _channel(self) -> Iterator[Any]:
        with self.app.connection_or_acquire() as connection:
            require_transport(self.app, connection)
            connection.ensure_connection(max_retries=1)
            yield connection.default_channel


def _id_of(task_id: object) -> str:
    task_id = task_id.id if isinstance(task_id, AsyncResult) else task_id
    if not isinstance(task_id, str):
        raise TypeError(f"a task is named by its id or its result, not by {task_id!r}")
    return task_id

"""DelayQ: the object through which an app uses this package."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, overload

from celery import Celery, signals
from kombu.exceptions import OperationalError
from kombu.utils.imports import symbol_by_name
from redis.exceptions import RedisError

from celery_delayq.basics.times import Time, to_ms
from celery_delayq.options.scheduler import warn_of_another
from celery_delayq.options.settings import add_defaults
from celery_delayq.publishing.control import use_control
from celery_delayq.publishing.naive import warn_of_naive
from celery_delayq.publishing.send_task import key_of, send_unique
from celery_delayq.transport import is_in_memory, register, require_transport
from celery_delayq.transport.wrong_server import refusing_wrong_server

if TYPE_CHECKING:  # what a producer does not need is imported by the method that needs it
    from celery.canvas import Signature
    from celery.result import AsyncResult

    from celery_delayq.inspector import Inspector
    from celery_delayq.inspector.backup import File, Imported, Released
    from celery_delayq.inspector.bulk import Action, Chunk
    from celery_delayq.inspector.consumers import Consumers
    from celery_delayq.inspector.counts import Counts
    from celery_delayq.inspector.histogram import Histogram
    from celery_delayq.inspector.pages import Criteria, OnProgress, Page
    from celery_delayq.inspector.task import ScheduledTask
    from celery_delayq.schedule.api import Schedule

T = TypeVar("T")

#: Names a task: its id, or its result.
TaskId: TypeAlias = "str | AsyncResult"

#: The bootsteps of a worker, which imports them; and what registers its remote control commands.
_STEPS = ("celery_delayq.worker.bootsteps:Plan", "celery_delayq.worker.bootsteps:Transfer")
_COMMANDS = "celery_delayq.worker.commands:register"


class DelayQ:
    """Delayed tasks in Redis for a Celery app.

    Make it beside the app::

        app = Celery("shop", broker="delayq://localhost:6379/0")
        delayq = DelayQ(app)

    DelayQ registers the `delayq` URL schemes with kombu, bootsteps, a `control` and the defaults of our settings with
    the app, and remote control commands and a warning about a second scheduler with Celery. What a producer does not
    need is imported by the methods that need it. It does not connect and does not read the configuration, so you can
    create it before `app.config_from_object`. Creating it twice for one app does no harm.
    Threads may share it, and it works after a fork.

    No worker needs to run for the methods that read or change waiting tasks. They take a task id or a result. If you
    pass several (a list, a `GroupResult`), they return a dict with one answer per id. Only the first task of a chain
    waits: pass `result.parent.id` and so on. If an id was scheduled several times, the methods apply to all of these
    tasks.

    Times are datetimes, or unix time in seconds. Naive datetimes are taken as UTC, like a naive eta in Celery. If local
    time, or that of the app's `timezone`, is another, a naive eta causes a `NaiveEtaWarning`, once in each process. The
    server's clock decides which tasks are due or overdue, and how much time is left.

    While a node of a Redis Cluster is away, methods that take ids find tasks at the other nodes; if an id is not there,
    they raise an error. Methods for all queues raise one, too, that names the node and its queues. `counts`,
    `consumers`, `histogram` and `scheduled` do without these queues if you pass `partial=True`. Methods for one queue
    need only its node. While the node of the registry (`delayq:queues`) is away, only the queues of the app's
    configuration are known.

    In tests with `task_always_eager`, or with a `memory://` broker, nothing waits in Redis, and no server is asked:
    `get` returns None, `cancel` False, `scheduled` an empty page, and so on. Only `import_` and `schedule` need a
    server. See `celery_delayq.testing` for tests in which tasks wait.

    All these methods raise the same errors.

    Raises:
        TypeError: an argument has the wrong type, or a task is neither an id nor a result.
        UnknownQueue: there is no queue of the given name. A queue in which nothing waits is no error.
        kombu.exceptions.OperationalError: the server cannot be reached, or refuses a command. If the connection was
            lost during the call, the change may or may not have happened; repeat the call to be sure.
        ConfigurationError: the app's broker URL is neither a `delayq://` nor a `memory://` URL.
    """

    def __init__(self, app: Celery[Any]) -> None:
        if not isinstance(app, Celery):
            raise TypeError(f"DelayQ() takes a Celery app, not {app!r}")
        self.app = app
        register()
        add_defaults(app)
        app.steps["consumer"].update(_STEPS)
        use_control(app)
        send_unique(app)
        if "celery.worker.control" in sys.modules:  # for `celery inspect`; a worker's bootstep does so, too
            symbol_by_name(_COMMANDS)()
        signals.beat_init.connect(warn_of_another, dispatch_uid="celery_delayq.warn_of_another")

    @overload
    def get(self, task_id: TaskId) -> ScheduledTask | None: ...
    @overload
    def get(self, task_id: Iterable[TaskId]) -> dict[str, ScheduledTask | None]: ...
    def get(self, task_id: TaskId | Iterable[TaskId]) -> Any:
        """Return a waiting task, or None if it is not waiting: it is due, has run, was cancelled, or was never delayed.

        If an id was scheduled several times, return the task that is due first. O(log N) for N waiting tasks.
        """
        return self._each(task_id, lambda inspector, ids: inspector.get(ids))

    def waiting(self, key: str | Signature) -> ScheduledTask | None:
        """Return the task that waits and holds a unique key, or None; see `Unique`.

        Args:
            key: the key; or the signature of a task that has `unique`, as in `waiting(remind.s(42))`.

        Raises:
            ConfigurationError: the task of the signature has no `unique`.
        """
        from celery_delayq.inspector import holders

        with self._inspector("cannot look up a unique key") as inspector:
            return holders.waiting(inspector.lists, self._key_of(key))

    def forget(self, key: str | Signature) -> bool:
        """Give up a unique key, whoever holds it: that task goes on as it is, and another one may hold the key.

        Args:
            key: see `waiting`.

        Returns:
            Whether a task held it.

        Raises:
            ConfigurationError: the task of the signature has no `unique`.
        """
        from celery_delayq.inspector import holders

        with self._inspector("cannot give up a unique key") as inspector:
            return holders.give_up(inspector.lists, self._key_of(key))

    def was_new(self, result: AsyncResult) -> bool:
        """Return whether a task was sent; False if its result is that of the task that holds its unique key."""
        return bool(getattr(result, "was_new", True))

    def scheduled(
        self,
        queue: str | None = None,
        task: str | None = None,
        due_after: Time | None = None,
        due_before: Time | None = None,
        limit: int = 100,
        cursor: str | None = None,
        *,
        text: str | None = None,
        partial: bool = False,
    ) -> Page:
        """Return a page of waiting tasks, in due order across all queues and priorities.

        Each call on the server is short, however many tasks wait. A page ends after 10,000 examined tasks. If few
        tasks match, it may be short or empty; only its cursor tells whether there are more. A task that waits all the
        time is on exactly one page. A task that is offered or moved in the meantime is on one page or none. A task
        that is rescheduled may be on any number of pages.

        Args:
            queue: only tasks of this queue.
            task: only tasks of this name.
            due_after: only tasks due at this time or later.
            due_before: only tasks due before this time.
            limit: maximum number of tasks per page, 1 to 1,000.
            cursor: cursor of the previous page.
            text: only tasks whose arguments contain this text, as `ScheduledTask.args` and `kwargs` show them. Upper
                and lower case differ.
            partial: leave out queues whose nodes of a Redis Cluster are away. `Page.lost` names them.

        Raises:
            ValueError: `limit` or a time is out of range, `cursor` is not a valid cursor, or `text` is empty.
        """
        from celery_delayq.inspector import pages

        criteria = _criteria(queue=queue, task=task, due_after=due_after, due_before=due_before, text=text)
        with self._inspector("cannot list waiting tasks") as inspector:
            page = pages.page(inspector.lists, criteria, limit=limit, cursor=cursor, partial=partial)
            if not (page.examined or cursor):
                inspector.check_queue(queue)
            return page

    def iter_scheduled(
        self,
        queue: str | None = None,
        task: str | None = None,
        due_after: Time | None = None,
        due_before: Time | None = None,
        *,
        text: str | None = None,
        limit: int = 1000,
        cursor: str | None = None,
    ) -> Iterator[ScheduledTask]:
        """Yield all waiting tasks, page by page; see `scheduled`. Holds no connection between pages."""
        while True:
            page = self.scheduled(queue, task, due_after, due_before, limit, cursor, text=text)
            yield from page
            if (cursor := page.cursor) is None:
                return

    @overload
    def cancel(self, task_id: TaskId) -> bool: ...
    @overload
    def cancel(self, task_id: Iterable[TaskId]) -> dict[str, bool]: ...
    def cancel(self, task_id: TaskId | Iterable[TaskId]) -> Any:
        """Remove a waiting task for good: it will not run.

        Atomic with regard to the transfer: either this call or a worker gets the task. O(log N) for N waiting tasks.

        The result of a cancelled task stays pending. A chord or chain that depends on it is not told. A lock that was
        taken for the task, for example by celery-singleton, is not released.

        Returns:
            True if the task was waiting. False if it is due and was moved to its queue, was cancelled before, or was
            never delayed.
        """
        return self._each(task_id, lambda inspector, ids: inspector.cancel(ids))

    @overload
    def reschedule(
        self, task_id: TaskId, *, countdown: float | timedelta | None = ..., eta: Time | None = ...
    ) -> bool: ...
    @overload
    def reschedule(
        self, task_id: Iterable[TaskId], *, countdown: float | timedelta | None = ..., eta: Time | None = ...
    ) -> dict[str, bool]: ...
    def reschedule(
        self, task_id: TaskId | Iterable[TaskId], *, countdown: float | timedelta | None = None, eta: Time | None = None
    ) -> Any:
        """Give a waiting task a new due time. It keeps its id, and its eta header gets the new time.

        Atomic with regard to the transfer and to other changes of the task. Everything else stays as it is, including
        `expires`: if the new time is later than that, the worker discards the task as expired.

        Args:
            task_id: the task or tasks.
            countdown: a timedelta, or seconds: from now, by the server's clock.
            eta: the new time; give either `countdown` or `eta`. If the time is in the past, or the countdown is
                negative, the task moves to its queue at once.

        Returns:
            True if the task was waiting.

        Raises:
            TypeError: not exactly one of `countdown` and `eta` was given.
            ValueError: the time is after the year 9999, or not a number.
        """
        warn_of_naive(eta, self.app)
        return self._each(task_id, lambda inspector, ids: inspector.reschedule(ids, countdown=countdown, eta=eta))

    @overload
    def run_now(self, task_id: TaskId) -> bool: ...
    @overload
    def run_now(self, task_id: Iterable[TaskId]) -> dict[str, bool]: ...
    def run_now(self, task_id: TaskId | Iterable[TaskId]) -> Any:
        """Move a waiting task to the back of its queue, as if it had been published without an eta.

        Atomic. The task is in its queue when this method returns; no transfer is needed.

        Returns:
            True if the task was waiting.
        """
        return self._each(task_id, lambda inspector, ids: inspector.run_now(ids))

    def cancel_all(
        self,
        *,
        queue: str | None = None,
        task: str | None = None,
        due_after: Time | None = None,
        due_before: Time | None = None,
        text: str | None = None,
        everything: bool = False,
        dry_run: bool = False,
        on_progress: OnProgress | None = None,
    ) -> int:
        """Remove all matching tasks for good; see `scheduled` for the criteria and `cancel` for the effect.

        Atomic for each task: it is either removed or delivered. Each call on the server is bounded. Tasks that are
        offered or rescheduled in the meantime may remain.

        Args:
            queue: only tasks of this queue.
            task: only tasks of this name.
            due_after: only tasks due at this time or later.
            due_before: only tasks due before this time.
            text: only tasks whose arguments contain this text.
            everything: must be True if no criterion is given.
            dry_run: count the tasks, but do not remove them.
            on_progress: called from time to time with the number of examined tasks and the total.

        Returns:
            The number of removed tasks.

        Raises:
            ValueError: no criterion was given and `everything` is False, a time is out of range, or `text` is empty.
        """
        criteria = _criteria(queue=queue, task=task, due_after=due_after, due_before=due_before, text=text)
        with self._inspector("cannot cancel all matching tasks") as inspector:
            number = inspector.cancel_all(criteria, everything=everything, dry_run=dry_run, on_progress=on_progress)
            if not number:
                inspector.check_queue(queue)
            return number

    def change_some(
        self,
        action: Action,
        *,
        queue: str | None = None,
        task: str | None = None,
        due_after: Time | None = None,
        due_before: Time | None = None,
        text: str | None = None,
        everything: bool = False,
        eta: Time | None = None,
        limit: int = 1000,
        cursor: str | None = None,
    ) -> Chunk:
        """Cancel, reschedule or run some of the matching tasks, and return a cursor for the next ones.

        So whoever changes very many tasks can show how far this is, and stop::

            chunk = delayq.change_some("reschedule", task="shop.remind", eta=tomorrow)
            while chunk.cursor:
                chunk = delayq.change_some("reschedule", task="shop.remind", eta=tomorrow, cursor=chunk.cursor)

        Atomic for each task: it is changed, or somebody else was faster. Each call on the server is bounded. A chunk
        ends after `limit` matching tasks, or 10,000 examined ones; it may have changed none, and only its cursor tells
        whether there are more. Tasks that are offered or rescheduled in the meantime may be left out. Tasks that are
        due at `eta` already are left as they are, and not counted.

        While a node of a Redis Cluster is away, the tasks of all other queues are changed; `Chunk.lost` names the rest.

        Args:
            action: `"cancel"`, `"reschedule"` or `"run_now"`; see the methods of these names for what they do.
            queue: only tasks of this queue.
            task: only tasks of this name.
            due_after: only tasks due at this time or later.
            due_before: only tasks due before this time.
            text: only tasks whose arguments contain this text.
            everything: must be True if no criterion is given.
            eta: the new time, only to reschedule. If it is in the past, the tasks move to their queues at once.
            limit: maximum number of matching tasks, 1 to 1,000.
            cursor: cursor of the previous chunk. Give the same criteria and the same `eta`.

        Raises:
            TypeError: `eta` is missing, or given for another action.
            ValueError: no criterion was given and `everything` is False, there is no such action, `limit` or a time is
                out of range, `text` is empty, or `cursor` is not a valid cursor.
        """
        criteria = _criteria(queue=queue, task=task, due_after=due_after, due_before=due_before, text=text)
        from celery_delayq.inspector.bulk import change_some

        criteria.check_wanted(everything)
        warn_of_naive(eta, self.app)
        with self._inspector("cannot change the matching tasks") as inspector:
            chunk = change_some(inspector.lists, action, criteria, eta=eta, limit=limit, cursor=cursor)
            if not (chunk.examined or cursor):
                inspector.check_queue(queue)
            return chunk

    def counts(self, *, span: float = 3600, buckets: int = 60, partial: bool = False) -> Counts:
        """Count ready, delayed, overdue, in-flight and dead messages for each queue, with a histogram of due times.

        Cheap for the server: commands of O(log N) at most. The counts are not a snapshot: a message that moves in the
        meantime may be counted twice or not at all.

        Args:
            span: how far ahead the histogram of due times reaches, in seconds.
            buckets: number of parts of the histogram, 1 to 1,000.
            partial: leave out queues whose nodes of a Redis Cluster are away. `Counts.lost` names them.

        Raises:
            ValueError: an argument is out of range.
        """
        from celery_delayq.inspector.counts import count

        with self._inspector("cannot count messages") as inspector:
            return count(inspector.lists, span=span, buckets=buckets, partial=partial)

    def histogram(
        self, start: Time, span: float, buckets: int, queue: str | None = None, partial: bool = False
    ) -> Histogram:
        """Count the waiting tasks that are due in each part of a window of time, before it, and after it.

        Cheap for the server: commands of O(log N). The counts are not a snapshot: a task that is rescheduled in the
        meantime may be counted twice or not at all.

        Args:
            start: where the window starts; it may be in the past, where overdue tasks are.
            span: length of the window, in seconds.
            buckets: number of its parts, 1 to 1,000.
            queue: only tasks of this queue; by default, of all.
            partial: leave out queues whose nodes of a Redis Cluster are away. `Histogram.lost` names them.

        Raises:
            ValueError: an argument is out of range.
        """
        from celery_delayq.inspector.histogram import histogram

        start_ms = to_ms(start, "start")
        with self._inspector("cannot count due times") as inspector:
            counted = histogram(inspector.lists, start_ms, span, buckets, queue=queue, partial=partial)
            if not (counted.before or counted.after or any(bucket.count for bucket in counted.buckets)):
                inspector.check_queue(queue)
            return counted

    def consumers(self, partial: bool = False) -> Consumers:
        """Return the consumers of all queues: the connections of workers, with their leases and how much they hold.

        Workers with kombu's own transport, and queues that nobody consumes with acknowledgements, have no leases. Cheap
        for the server: commands of O(log N) at most, and 1,000 consumers of each list.

        Args:
            partial: leave out queues whose nodes of a Redis Cluster are away. `Consumers.lost` names them.
        """
        from celery_delayq.inspector.consumers import consumers

        with self._inspector("cannot read who consumes the queues") as inspector:
            return consumers(inspector.lists, partial=partial)

    def export(self, file: File, *, queues: Iterable[str] = (), on_progress: OnProgress | None = None) -> int:
        """Write all waiting tasks to a file of JSON lines, and return how many there were. See `backup.export`.

        Args:
            file: a path or an open file. A file at a path appears only when it is complete.
            queues: only tasks of these queues; by default, all tasks.
            on_progress: called from time to time with the number of written tasks and the total.

        Raises:
            OSError: the file cannot be written.
        """
        from celery_delayq.inspector import backup

        if isinstance(queues, str):
            raise TypeError(f"queues must be several names, not {queues!r}")
        with self._inspector("cannot export waiting tasks") as inspector:
            wanted = tuple(queues)
            for queue in wanted:
                inspector.check_queue(queue)
            return backup.export(inspector.lists, file, on_progress, queues=wanted)

    def import_(self, file: File, *, on_progress: OnProgress | None = None) -> Imported:
        """Store exported tasks, so that they wait again. Tasks that wait already are skipped; see `backup.import_`.

        Args:
            file: a path or an open file.
            on_progress: called from time to time with the number of read tasks and the total.

        Raises:
            InvalidExport: the file is cut off, has an unknown version, or is garbage. Tasks before that point were
                imported; you can import the file again.
            OSError: the file cannot be read.
        """
        from celery_delayq.inspector import backup

        with self._inspector("cannot import tasks", stores=True) as inspector:
            return backup.import_(inspector.lists, file, on_progress)

    def release(self, queue: str | None = None, *, on_progress: OnProgress | None = None) -> Released:
        """Move all waiting tasks to their queues, with their etas: the way back to stock Celery.

        First stop the workers that use this package. They would delay the released tasks again, unless the transport
        option `delay_eta_tasks` is off; that does no harm, but it undoes the release. Stock workers hold the released
        tasks in memory until they are due. One atomic script moves a hundred tasks, in due order within a queue and
        priority.

        Args:
            queue: only tasks of this queue.
            on_progress: called from time to time with the number of examined tasks and the total.
        """
        from celery_delayq.inspector import backup

        _criteria(queue=queue)
        with self._inspector("cannot release waiting tasks") as inspector:
            inspector.check_queue(queue)
            return backup.release(inspector.lists, queue, on_progress)

    @overload
    def apply_async_many(
        self, signatures: Iterable[Signature], *, chunk_size: int = ..., results: Literal[True] = ...
    ) -> list[AsyncResult]: ...
    @overload
    def apply_async_many(
        self, signatures: Iterable[Signature], *, chunk_size: int = ..., results: Literal[False]
    ) -> int: ...
    def apply_async_many(self, signatures: Iterable[Signature], *, chunk_size: int = 1000, results: bool = True) -> Any:
        """Send many tasks in a few round trips. Each task, delayed or not, is sent as by its `apply_async()`.

        For example::

            delayq.apply_async_many(remind.s(user).set(countdown=3600) for user in users)

        The signal `after_task_publish` is sent when a task joins a chunk, just before the chunk is sent. Messages of
        one queue and priority are sent in the order of their signatures.

        Args:
            signatures: signatures of single tasks, read while sending. A signature without a task id gets a new one in
                each call.
            chunk_size: tasks per round trip; fewer if they are large. Chunks that were sent stay sent.
            results: pass False for millions of tasks. Then no results are kept, so memory does not grow with the number
                of tasks. Workers still store results. The tasks do not become children of a task that sends them.

        Returns:
            The results in order; without results, the number of tasks that were sent.

        Raises:
            NotAllSent: sending stopped at the first error. It tells which tasks were sent and which were not; later
                signatures were not read. Its message names the first error, which is also its cause.
            ConfigurationError: the app's broker URL is not a `delayq://` URL.
            kombu.exceptions.OperationalError: the server cannot be reached; nothing was sent.
        """
        from celery_delayq.publishing import bulk

        return bulk.apply_async_many(self.app, signatures, chunk_size, results)

    @cached_property
    def schedule(self) -> Schedule:
        """The periodic tasks of the app, see `Schedule`."""
        from celery_delayq.schedule.api import Schedule

        return Schedule(self.app, self._channel)

    def _each(self, task_id: Any, ask: Callable[[Inspector, list[str]], dict[str, T]]) -> T | dict[str, T]:
        from celery.result import AsyncResult

        if isinstance(task_id, (str, AsyncResult)):
            one = _id_of(task_id)
            with self._inspector(f"cannot look up task {one}") as inspector:
                return ask(inspector, [one])[one]
        if isinstance(task_id, bytes) or not isinstance(task_id, Iterable):
            _id_of(task_id)
        ids = [_id_of(each) for each in task_id]
        with self._inspector("cannot look up the tasks") as inspector:
            return ask(inspector, ids)

    def _key_of(self, key: str | Signature) -> str:
        return key if isinstance(key, str) else key_of(self.app, key)

    @contextmanager
    def _inspector(self, trouble: str, *, stores: bool = False) -> Iterator[Inspector]:
        from celery_delayq.inspector import Inspector
        from celery_delayq.inspector.nothing import NothingWaits

        if not stores and self._nothing_waits():
            yield NothingWaits()
            return
        with self._channel() as channel:
            try:
                yield Inspector(channel, self.app.amqp.queues)
            except RedisError as exc:
                raise OperationalError(f"{trouble}: {exc}") from exc

    def _nothing_waits(self) -> bool:
        """Return whether the app is set up for tests in which nothing reaches Redis."""
        return bool(self.app.conf.task_always_eager) or is_in_memory(self.app)

    @contextmanager
    def _channel(self) -> Iterator[Any]:
        with self.app.connection_or_acquire() as connection:
            require_transport(self.app, connection)
            connection.ensure_connection(max_retries=1)
            channel = connection.default_channel
            with refusing_wrong_server(channel.plain_client):
                yield channel


def _id_of(task_id: object) -> str:
    from celery.result import AsyncResult

    task_id = task_id.id if isinstance(task_id, AsyncResult) else task_id
    if not isinstance(task_id, str):
        raise TypeError(f"a task must be given by its id or its result, not by {task_id!r}")
    return task_id


def _criteria(**given: Any) -> Criteria:
    from celery_delayq.inspector.pages import Criteria

    return Criteria.of(**given)

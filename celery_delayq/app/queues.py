"""What `DelayQ` does with the tasks of whole queues: list, count, change, export and release them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from celery import Celery
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from celery_delayq.basics.deadline import Timeout, ends_in_time
from celery_delayq.basics.times import Time, to_ms
from celery_delayq.publishing.naive import warn_of_naive
from celery_delayq.transport import connected, is_in_memory
from celery_delayq.transport.wrong_server import refusing_wrong_server

if TYPE_CHECKING:  # what a producer does not need is imported by the method that needs it
    from celery_delayq.inspector import Inspector
    from celery_delayq.inspector.backup import File, Imported, Released
    from celery_delayq.inspector.bulk import Action, Chunk
    from celery_delayq.inspector.consumers import Consumers
    from celery_delayq.inspector.counts import Counts
    from celery_delayq.inspector.histogram import Histogram
    from celery_delayq.inspector.pages import Criteria, OnProgress, Page
    from celery_delayq.inspector.task import ScheduledTask, State


class Queues:
    """The methods of `DelayQ` for whole queues."""

    app: Celery[Any]

    @ends_in_time
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
        state: State = "delayed",
        partial: bool = False,
        timeout: Timeout = None,
    ) -> Page:
        """Return a page of waiting tasks, in due order across all queues and priorities; or of ready ones.

        Each call on the server is short, however many tasks wait. A page ends after 10,000 examined tasks. If few
        tasks match, it may be short or empty; only its cursor tells whether there are more. A task that waits all the
        time is on exactly one page. A task that is offered or moved in the meantime is on one page or none. A task
        that is rescheduled may be on any number of pages.

        Ready tasks come queue by queue, the oldest first. One that stays in its queue is on a page, and seldom on two.

        Args:
            queue: only tasks of this queue.
            task: only tasks of this name.
            due_after: only tasks due at this time or later.
            due_before: only tasks due before this time.
            limit: maximum number of tasks per page, 1 to 1,000.
            cursor: cursor of the previous page.
            text: only tasks whose arguments, as `ScheduledTask.args` and `kwargs` show them, contain this very text.
            state: `"delayed"`, or `"ready"` for tasks that are in their queues.
            partial: leave out queues whose nodes of a Redis Cluster are away. `Page.lost` names them.
            timeout: see `DelayQ`.

        Raises:
            ValueError: `limit` or a time is out of range, or `cursor`, `text` or `state` is not a valid one.
        """
        from celery_delayq.inspector import pages

        criteria = _criteria(queue=queue, task=task, due_after=due_after, due_before=due_before, text=text, state=state)
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
        state: State = "delayed",
        limit: int = 1000,
        cursor: str | None = None,
        timeout: Timeout = None,
    ) -> Iterator[ScheduledTask]:
        """Yield all waiting or ready tasks, page by page; see `scheduled`. Holds no connection between pages.

        `timeout` is that of a page.
        """
        while True:
            page = self.scheduled(
                queue, task, due_after, due_before, limit, cursor, text=text, state=state, timeout=timeout
            )
            yield from page
            if (cursor := page.cursor) is None:
                return

    @ends_in_time
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
        ready: bool = False,
        on_progress: OnProgress | None = None,
        timeout: Timeout = None,
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
            ready: also those that are in their queues; see `cancel`, and `ScheduledTask.due_ms` for when they are due.
            on_progress: called from time to time with the number of examined tasks and the total.
            timeout: see `DelayQ`.

        Returns:
            The number of removed tasks.

        Raises:
            ValueError: no criterion was given and `everything` is False, a time is out of range, or `text` is empty.
        """
        criteria = _criteria(queue=queue, task=task, due_after=due_after, due_before=due_before, text=text)
        with self._inspector("cannot cancel all matching tasks") as inspector:
            number = inspector.cancel_all(
                criteria, everything=everything, dry_run=dry_run, ready=ready, on_progress=on_progress
            )
            if not number:
                inspector.check_queue(queue)
            return number

    @ends_in_time
    def change_some(
        self,
        action: Action,
        *,
        queue: str | None = None,
        task: str | None = None,
        due_after: Time | None = None,
        due_before: Time | None = None,
        text: str | None = None,
        state: State = "delayed",
        everything: bool = False,
        eta: Time | None = None,
        limit: int = 1000,
        cursor: str | None = None,
        timeout: Timeout = None,
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
            state: `"delayed"`; or `"ready"`, to cancel tasks that are in their queues.
            everything: must be True if no criterion is given.
            eta: the new time, only to reschedule. If it is in the past, the tasks move to their queues at once.
            limit: maximum number of matching tasks, 1 to 1,000.
            cursor: cursor of the previous chunk. Give the same criteria and the same `eta`.
            timeout: see `DelayQ`.

        Raises:
            TypeError: `eta` is missing, or given for another action.
            ValueError: no criterion was given and `everything` is False, there is no such action, or none for ready
                tasks, `limit` or a time is out of range, or `text` or `cursor` is not a valid one.
        """
        criteria = _criteria(queue=queue, task=task, due_after=due_after, due_before=due_before, text=text, state=state)
        from celery_delayq.inspector.bulk import change_some

        criteria.check_wanted(everything)
        warn_of_naive(eta, self.app)
        with self._inspector("cannot change the matching tasks") as inspector:
            chunk = change_some(inspector.lists, action, criteria, eta=eta, limit=limit, cursor=cursor)
            if not (chunk.examined or cursor):
                inspector.check_queue(queue)
            return chunk

    @ends_in_time
    def counts(
        self, *, span: float = 3600, buckets: int = 60, partial: bool = False, timeout: Timeout = None
    ) -> Counts:
        """Count ready, delayed, overdue, in-flight and dead messages for each queue, with a histogram of due times.

        Cheap for the server: commands of O(log N) at most. The counts are not a snapshot: a message that moves in the
        meantime may be counted twice or not at all.

        Args:
            span: how far ahead the histogram of due times reaches, in seconds.
            buckets: number of parts of the histogram, 1 to 1,000.
            partial: leave out queues whose nodes of a Redis Cluster are away. `Counts.lost` names them.
            timeout: see `DelayQ`.

        Raises:
            ValueError: an argument is out of range.
        """
        from celery_delayq.inspector.counts import count

        with self._inspector("cannot count messages") as inspector:
            return count(inspector.lists, span=span, buckets=buckets, partial=partial)

    @ends_in_time
    def histogram(
        self,
        start: Time,
        span: float,
        buckets: int,
        queue: str | None = None,
        partial: bool = False,
        *,
        timeout: Timeout = None,
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
            timeout: see `DelayQ`.

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

    @ends_in_time
    def consumers(self, partial: bool = False, *, timeout: Timeout = None) -> Consumers:
        """Return the consumers of all queues: the connections of workers, with their leases and how much they hold.

        Workers with kombu's own transport, and queues that nobody consumes with acknowledgements, have no leases. Cheap
        for the server: commands of O(log N) at most, and 1,000 consumers of each list.

        Args:
            partial: leave out queues whose nodes of a Redis Cluster are away. `Consumers.lost` names them.
            timeout: see `DelayQ`.
        """
        from celery_delayq.inspector.consumers import consumers

        with self._inspector("cannot read who consumes the queues") as inspector:
            return consumers(inspector.lists, partial=partial)

    @ends_in_time
    def pause(self, queue: str, *, timeout: Timeout = None) -> bool:
        """Let workers fetch no tasks from a queue, until `resume`. Those that start later keep to it, too.

        Delayed tasks go on becoming ready, and can be cancelled. Tasks that a worker has received already run.
        Workers obey within a second. Those with kombu's own transport, and consumers without acknowledgements, do not.

        Args:
            queue: its name; all of its priorities are paused.
            timeout: see `DelayQ`.

        Returns:
            False if it was paused already.
        """
        with self._inspector(f"cannot pause queue {queue!r}") as inspector:
            return inspector.pause(queue)

    @ends_in_time
    def resume(self, queue: str, *, timeout: Timeout = None) -> bool:
        """Let workers fetch from a paused queue again; returns False if it was not paused."""
        with self._inspector(f"cannot resume queue {queue!r}") as inspector:
            return inspector.resume(queue)

    @ends_in_time
    def paused(self, *, timeout: Timeout = None) -> list[str]:
        """Return the names of the paused queues, sorted."""
        with self._inspector("cannot look up paused queues") as inspector:
            return sorted(inspector.lists.paused())

    @ends_in_time
    def export(
        self,
        file: File,
        *,
        queues: Iterable[str] = (),
        on_progress: OnProgress | None = None,
        timeout: Timeout = None,
    ) -> int:
        """Write all waiting tasks to a file of JSON lines, and return how many there were. See `backup.export`.

        Args:
            file: a path or an open file. A file at a path appears only when it is complete.
            queues: only tasks of these queues; by default, all tasks.
            on_progress: called from time to time with the number of written tasks and the total.
            timeout: see `DelayQ`.

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

    @ends_in_time
    def import_(self, file: File, *, on_progress: OnProgress | None = None, timeout: Timeout = None) -> Imported:
        """Store exported tasks, so that they wait again. Tasks that wait already are skipped; see `backup.import_`.

        Args:
            file: a path or an open file.
            on_progress: called from time to time with the number of read tasks and the total.
            timeout: see `DelayQ`.

        Raises:
            InvalidExport: the file is cut off, has an unknown version, or is garbage. Tasks before that point were
                imported; you can import the file again.
            OSError: the file cannot be read.
        """
        from celery_delayq.inspector import backup

        with self._inspector("cannot import tasks", stores=True) as inspector:
            return backup.import_(inspector.lists, file, on_progress)

    @ends_in_time
    def release(
        self, queue: str | None = None, *, on_progress: OnProgress | None = None, timeout: Timeout = None
    ) -> Released:
        """Move all waiting tasks to their queues, with their etas: the way back to stock Celery.

        First stop the workers that use this package. They would delay the released tasks again, unless the transport
        option `delay_eta_tasks` is off; that does no harm, but it undoes the release. Stock workers hold the released
        tasks in memory until they are due. One atomic script moves a hundred tasks, in due order within a queue and
        priority.

        Args:
            queue: only tasks of this queue.
            on_progress: called from time to time with the number of examined tasks and the total.
            timeout: see `DelayQ`.
        """
        from celery_delayq.inspector import backup

        _criteria(queue=queue)
        with self._inspector("cannot release waiting tasks") as inspector:
            inspector.check_queue(queue)
            return backup.release(inspector.lists, queue, on_progress)

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
        with connected(self.app) as channel, refusing_wrong_server(channel.plain_client):
            yield channel


def _criteria(**given: Any) -> Criteria:
    from celery_delayq.inspector.pages import Criteria

    return Criteria.of(**given)

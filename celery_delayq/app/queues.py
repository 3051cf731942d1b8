"""What `DelayQ` does with whole queues: list, count, export and release their tasks, pause them; and how they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from celery import Celery
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from celery_delayq.basics.deadline import Timeout, ends_in_time
from celery_delayq.basics.times import Span, Time, span_s, to_ms
from celery_delayq.transport import connected, is_in_memory
from celery_delayq.transport.wrong_server import refusing_wrong_server

if TYPE_CHECKING:  # what a producer does not need is imported by the method that needs it
    from celery_delayq.basics.finding import Finding
    from celery_delayq.inspector import Inspector
    from celery_delayq.inspector.backup import File, Imported, Released
    from celery_delayq.inspector.consumers import Consumers
    from celery_delayq.inspector.counts import Counts
    from celery_delayq.inspector.histogram import Histogram
    from celery_delayq.inspector.history import History
    from celery_delayq.inspector.pages import Criteria, OnProgress, Page
    from celery_delayq.inspector.task import ScheduledTask, State
    from celery_delayq.transport.named import Named


class Queues:
    """The methods of `DelayQ` for whole queues."""

    app: Celery[Any]

    @ends_in_time
    def scheduled(
        self,
        queue: str | None = None,
        task: Named | None = None,
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
            task: only calls of this task: the task, its name, or a signature.
            due_after: only tasks due at this time or later.
            due_before: only tasks due before this time.
            limit: maximum number of tasks per page, 1 to 1,000.
            cursor: cursor of the previous page.
            text: only tasks whose `args_text` or `kwargs_text` contain this text. Upper and lower case differ.
            state: `"delayed"`, or `"ready"` for tasks that are in their queues.
            partial: leave out queues whose nodes of a Redis Cluster are away. `Page.lost` names them.
            timeout: see `DelayQ`.

        Raises:
            ValueError: `limit` or a time is out of range, `cursor`, `text` or `state` is not a valid one, or `task` is
                a signature with arguments.
        """
        from celery_delayq.inspector import pages

        criteria = criteria_of(
            queue=queue, task=task, due_after=due_after, due_before=due_before, text=text, state=state
        )
        with self._inspector("cannot list waiting tasks") as inspector:
            page = pages.page(inspector.lists, criteria, limit=limit, cursor=cursor, partial=partial)
            if not (page.tasks or cursor or page.cursor or page.lost):
                self._check_names(inspector, queue, task)
            return page

    def iter_scheduled(
        self,
        queue: str | None = None,
        task: Named | None = None,
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
    def counts(self, *, span: Span = 3600, buckets: int = 60, partial: bool = False, timeout: Timeout = None) -> Counts:
        """Count ready, delayed, overdue, in-flight and dead messages for each queue, with a histogram of due times.

        Cheap for the server: commands of O(log N) at most. The counts are not a snapshot: a message that moves in the
        meantime may be counted twice or not at all.

        Args:
            span: how far ahead the histogram of due times reaches: a timedelta, or seconds.
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
        span: Span,
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
            span: length of the window: a timedelta, or seconds.
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

        Workers with kombu's own transport, and consumers without acknowledgements, have no leases. Cheap for the
        server: commands of O(log N) at most, and 1,000 consumers of each list.

        Args:
            partial: leave out queues whose nodes of a Redis Cluster are away. `Consumers.lost` names them.
            timeout: see `DelayQ`.
        """
        from celery_delayq.inspector.consumers import consumers

        with self._inspector("cannot read who consumes the queues") as inspector:
            return consumers(inspector.lists, partial=partial)

    @ends_in_time
    def history(self, span: Span = timedelta(hours=8), queue: str | None = None, *, timeout: Timeout = None) -> History:
        """Return how many messages became due and were moved to their queues lately, and how late: points of a chart.

        Workers add what they have counted every ten seconds. On a cluster, queues are left out whose nodes are away. A
        command of O(1) for each ten minutes (or two hours) and queue.

        Args:
            span: 8 hours, in 96 points of five minutes; or 72 hours, in 72 points of an hour.
            queue: only messages of this queue; by default, of all.
            timeout: see `DelayQ`.

        Raises:
            ValueError: `span` is another one.
        """
        from celery_delayq.inspector import history

        criteria_of(queue=queue)
        with self._inspector("cannot read the history") as inspector:
            found = history.read(inspector.lists, span_s(span, "span") / 3600, queue=queue)
            if not any(point.transferred for point in found.points):
                inspector.check_queue(queue)
            return found

    @ends_in_time
    def check(self, *, timeout: Timeout = None) -> list[Finding]:
        """Check servers, permissions, clocks, settings, and who runs; return what `celery delayq check` prints.

        Nothing is changed. It connects anew, waits 2 s for each answer of a server, and imports the app's task modules.

        Args:
            timeout: see `DelayQ`; what could not be checked by then is a finding.

        Returns:
            What was found, whether it is good or bad: see `Finding.level`. That Redis is away, or refuses, is a
            finding, too, and no error. With `task_always_eager` or `memory://`, only the settings are checked.
        """
        from celery_delayq.health import whole

        return whole.check_settings(self.app) if self._nothing_waits() else whole.check_all(self.app)

    @ends_in_time
    def pause(self, queue: str, *, timeout: Timeout = None) -> bool:
        """Stop workers from fetching tasks from a queue, until `resume`. This also holds for workers that start later.

        Delayed tasks still move to the queue when they are due, and can be cancelled. Tasks that a worker has already
        received still run. Workers obey within a second. Those with kombu's own transport, and consumers without
        acknowledgements, do not.

        Args:
            queue: its name; all of its priorities are paused.
            timeout: see `DelayQ`.

        Returns:
            False if it is already paused.
        """
        with self._inspector(f"cannot pause queue {queue!r}") as inspector:
            return inspector.pause(queue)

    @ends_in_time
    def resume(self, queue: str, *, timeout: Timeout = None) -> bool:
        """Let workers fetch from a paused queue again; returns False if it is not paused."""
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

        criteria_of(queue=queue)
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

    def _check_names(self, inspector: Inspector, queue: str | None, task: Named | None) -> None:
        """Check the names for which nothing was found; see `DelayQ`."""
        from celery_delayq.transport.named import check_known

        inspector.check_queue(queue)
        check_known(self.app, task)

    def _nothing_waits(self) -> bool:
        """Return whether the app is set up for tests in which nothing reaches Redis."""
        return bool(self.app.conf.task_always_eager) or is_in_memory(self.app)

    @contextmanager
    def _channel(self) -> Iterator[Any]:
        with connected(self.app) as channel, refusing_wrong_server(channel.plain_client):
            yield channel


def criteria_of(**given: Any) -> Criteria:
    """Return the criteria for arguments of public methods; see `Criteria.of`."""
    from celery_delayq.inspector.pages import Criteria

    return Criteria.of(**given)

"""What `DelayQ` does for coroutines: the methods for queues with an `a` in front, and `asend`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from celery_delayq.app.changes import Many
from celery_delayq.basics.deadline import Timeout, within
from celery_delayq.basics.times import Time
from celery_delayq.publishing.send_task import in_time
from celery_delayq.transport.threads import in_a_thread, threads

if TYPE_CHECKING:
    from celery.result import AsyncResult

    from celery_delayq.inspector.task import ScheduledTask, State
    from celery_delayq.transport.named import Named


class ForCoroutines(Many):
    """`Many` with methods for coroutines of asyncio. `DelayQ` has its own methods for them beside the others."""

    ascheduled = in_a_thread(Many.scheduled)
    acancel_all = in_a_thread(Many.cancel_all)
    areschedule_all = in_a_thread(Many.reschedule_all)
    arun_now_all = in_a_thread(Many.run_now_all)
    achange_some = in_a_thread(Many.change_some)
    acounts = in_a_thread(Many.counts)
    ahistogram = in_a_thread(Many.histogram)
    aconsumers = in_a_thread(Many.consumers)
    ahistory = in_a_thread(Many.history)
    acheck = in_a_thread(Many.check)
    apause = in_a_thread(Many.pause)
    aresume = in_a_thread(Many.resume)
    apaused = in_a_thread(Many.paused)
    aexport = in_a_thread(Many.export)
    aimport_ = in_a_thread(Many.import_)
    arelease = in_a_thread(Many.release)

    async def aiter_scheduled(
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
    ) -> AsyncIterator[ScheduledTask]:
        """Yield all waiting or ready tasks, page by page, in an `async for`; see `iter_scheduled`."""
        while True:
            page = await self.ascheduled(
                queue, task, due_after, due_before, limit, cursor, text=text, state=state, timeout=timeout
            )
            for found in page:
                yield found
            if (cursor := page.cursor) is None:
                return

    async def asend(
        self,
        task: Any,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        *,
        timeout: Timeout = None,
        **options: Any,
    ) -> AsyncResult:
        """Send a task, as its `apply_async` does. `await` it.

        For example::

            result = await delayq.asend(cancel_unpaid, (42,), countdown=1800, timeout=1)

        Args:
            task: the task, its name, or a signature.
            args: positional arguments of the task; behind those of a signature.
            kwargs: keyword arguments of the task.
            timeout: see `DelayQ`. With it, there are as many attempts as there is time for.
            options: of `apply_async`: `countdown`, `eta`, `task_id`, `queue`, `unique` and so on.

        Raises:
            kombu.exceptions.OperationalError: the server cannot be reached. If the connection was lost, the task may
                have been sent; sent again with a unique key, it runs once.
        """
        if isinstance(task, str) and task not in self.app.tasks:  # only its name is known
            send = partial(self.app.send_task, task)
        else:
            send = (self.app.tasks[task] if isinstance(task, str) else task).apply_async

        def send_in_time() -> AsyncResult:
            if timeout is None:
                return send(args, kwargs, **options)
            with in_time(self.app, options) as given:
                return send(args, kwargs, **given)

        with within(timeout):
            return await threads.run(send_in_time)

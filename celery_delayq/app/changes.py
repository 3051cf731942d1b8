"""What `DelayQ` changes: all tasks that match, and the messages of tasks that wait."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, overload

from celery import Celery

from celery_delayq.app.queues import Queues, criteria_of
from celery_delayq.basics.deadline import Timeout, ends_in_time
from celery_delayq.basics.times import Span, Time, due_at
from celery_delayq.publishing.naive import warn_of_naive
from celery_delayq.transport.threads import in_a_thread

if TYPE_CHECKING:  # what a producer does not need is imported by the method that needs it
    from celery_delayq.app import Group, TaskId
    from celery_delayq.inspector.bulk import Action, Chunk
    from celery_delayq.inspector.pages import OnProgress
    from celery_delayq.inspector.task import State
    from celery_delayq.transport.named import Named


class Many(Queues):
    """The methods of `DelayQ` for all tasks that match."""

    @ends_in_time
    def cancel_all(
        self,
        *,
        queue: str | None = None,
        task: Named | None = None,
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
        offered or rescheduled in the meantime may remain. If `on_progress` raises an error, the rest stays as it is.

        Args:
            queue: only tasks of this queue.
            task: only calls of this task: the task, its name, or a signature.
            due_after: only tasks due at this time or later.
            due_before: only tasks due before this time.
            text: only tasks whose arguments contain this text.
            everything: must be True if no criterion is given.
            dry_run: count the tasks, but do not change them.
            ready: also those that are in their queues; see `cancel`, and `ScheduledTask.due` for when they are due.
            on_progress: called from time to time with the number of examined tasks and the total.
            timeout: see `DelayQ`.

        Returns:
            The number of removed tasks.

        Raises:
            ValueError: no criterion was given and `everything` is False, a time is out of range, or `text` is empty.
        """
        given = {"queue": queue, "task": task, "due_after": due_after, "due_before": due_before, "text": text}
        return self._change_all("cancel", given, everything, dry_run, on_progress, ready=ready)

    @ends_in_time
    def reschedule_all(
        self,
        *,
        countdown: Span | None = None,
        eta: Time | None = None,
        queue: str | None = None,
        task: Named | None = None,
        due_after: Time | None = None,
        due_before: Time | None = None,
        text: str | None = None,
        everything: bool = False,
        dry_run: bool = False,
        on_progress: OnProgress | None = None,
        timeout: Timeout = None,
    ) -> int:
        """Give all matching tasks the same new due time; see `cancel_all` for the arguments, `reschedule` for the time.

        Atomic for each task: it gets the new time, or is delivered. Tasks that are due then already are not counted.
        Neither are those that another program offered, such as Java: they cannot be rescheduled.

        Returns:
            The number of rescheduled tasks.

        Raises:
            TypeError: not exactly one of `countdown` and `eta` was given.
            ValueError: see `cancel_all`; or the new time is after the year 9999, or not a number.
        """
        given = {"queue": queue, "task": task, "due_after": due_after, "due_before": due_before, "text": text}
        warn_of_naive(eta, self.app)
        when = {"countdown": countdown, "eta": eta}
        return self._change_all("reschedule", given, everything, dry_run, on_progress, when)

    @ends_in_time
    def run_now_all(
        self,
        *,
        queue: str | None = None,
        task: Named | None = None,
        due_after: Time | None = None,
        due_before: Time | None = None,
        text: str | None = None,
        everything: bool = False,
        dry_run: bool = False,
        on_progress: OnProgress | None = None,
        timeout: Timeout = None,
    ) -> int:
        """Move all matching tasks to the back of their queues, see `run_now`; `cancel_all` has the arguments.

        Atomic for each task. Those of one queue and priority move in due order.

        Returns:
            The number of moved tasks.

        Raises:
            ValueError: see `cancel_all`.
        """
        given = {"queue": queue, "task": task, "due_after": due_after, "due_before": due_before, "text": text}
        return self._change_all("run_now", given, everything, dry_run, on_progress)

    def _change_all(
        self,
        action: Action,
        given: dict[str, Any],
        everything: bool,
        dry_run: bool,
        on_progress: OnProgress | None,
        when: dict[str, Any] | None = None,
        **more: Any,
    ) -> int:
        from celery_delayq.inspector.bulk import change_all

        criteria = criteria_of(**given)
        criteria.check_wanted(everything)
        with self._inspector("cannot change the matching tasks") as inspector:
            lists = inspector.lists
            eta = None if when is None else due_at(lists.now_ms(), **when)
            done = change_all(lists, action, criteria, eta=eta, dry_run=dry_run, on_progress=on_progress, **more)
            if not done.changed:
                self._check_names(inspector, given["queue"], given["task"])
            return done.changed

    @ends_in_time
    def change_some(
        self,
        action: Action,
        *,
        queue: str | None = None,
        task: Named | None = None,
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

        Use it for very many tasks, to show progress or to stop early::

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
            task: only calls of this task: the task, its name, or a signature.
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
        from celery_delayq.inspector.bulk import change_some

        criteria = criteria_of(
            queue=queue, task=task, due_after=due_after, due_before=due_before, text=text, state=state
        )
        criteria.check_wanted(everything)
        warn_of_naive(eta, self.app)
        with self._inspector("cannot change the matching tasks") as inspector:
            chunk = change_some(inspector.lists, action, criteria, eta=eta, limit=limit, cursor=cursor)
            if not (chunk.changed or chunk.late or chunk.refused or cursor or chunk.cursor or chunk.lost):
                self._check_names(inspector, queue, task)
            return chunk


class Updates:
    """The methods of `DelayQ` that change the messages of waiting tasks."""

    app: Celery[Any]
    _each: Callable[..., Any]

    @overload
    def update(
        self,
        task_id: Group,
        *,
        args: Sequence[Any] | None = ...,
        kwargs: Mapping[str, Any] | None = ...,
        priority: int | None = ...,
        argsrepr: str | None = ...,
        kwargsrepr: str | None = ...,
        timeout: Timeout = ...,
    ) -> dict[str, bool]: ...
    @overload
    def update(
        self,
        task_id: TaskId,
        *,
        args: Sequence[Any] | None = ...,
        kwargs: Mapping[str, Any] | None = ...,
        priority: int | None = ...,
        argsrepr: str | None = ...,
        kwargsrepr: str | None = ...,
        timeout: Timeout = ...,
    ) -> bool: ...
    @overload
    def update(
        self,
        task_id: Iterable[TaskId],
        *,
        args: Sequence[Any] | None = ...,
        kwargs: Mapping[str, Any] | None = ...,
        priority: int | None = ...,
        argsrepr: str | None = ...,
        kwargsrepr: str | None = ...,
        timeout: Timeout = ...,
    ) -> dict[str, bool]: ...
    @ends_in_time
    def update(
        self,
        task_id: TaskId | Iterable[TaskId] | Group,
        *,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        priority: int | None = None,
        argsrepr: str | None = None,
        kwargsrepr: str | None = None,
        timeout: Timeout = None,
    ) -> Any:
        """Give a waiting task other arguments, or another priority. It keeps its id and its due time.

        Atomic with regard to the transfer and to other changes of the task. Everything else stays as it is, including
        what follows it in a chain, its stamps, its serializer, and its unique key, even if that was made of arguments
        that are others now.

        Args:
            task_id: the task or tasks.
            args: all positional arguments, a list or tuple; None leaves them as they are.
            kwargs: all keyword arguments; None leaves them as they are.
            priority: 0 to 9, see Celery. The task waits for the list of that priority from now on.
            argsrepr: how `args` are shown, in place of their `repr`, as in `apply_async`.
            kwargsrepr: the same for `kwargs`.
            timeout: see `DelayQ`.

        Returns:
            True if the task was waiting.

        Raises:
            TypeError: nothing was given, an argument has the wrong type, or the app has a task of that name that does
                not take these arguments.
            ValueError: `priority` is out of range, the app does not accept the content of the message, or it is not a
                task message.
            kombu.exceptions.EncodeError: the serializer of the message cannot encode the arguments.
        """
        if args is None and kwargs is None and priority is None:
            raise TypeError("give update() args, kwargs or priority")
        if priority is not None and (isinstance(priority, bool) or not isinstance(priority, int)):
            raise TypeError(f"priority must be a whole number, not {priority!r}")
        if priority is not None and not 0 <= priority <= 9:
            raise ValueError(f"priority must be 0 to 9, not {priority!r}")
        from celery_delayq.transport.messages import updated

        new: dict[str, Any] = {"args": args, "kwargs": kwargs, "argsrepr": argsrepr, "kwargsrepr": kwargsrepr}
        change = partial(updated, self.app, priority=priority, **new)
        return self._each(task_id, lambda inspector, ids: inspector.update(ids, change, priority))

    aupdate = in_a_thread(update)

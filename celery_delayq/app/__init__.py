"""DelayQ: the object through which an app uses this package."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar, overload

from celery import Celery, signals
from kombu.utils.imports import symbol_by_name

from celery_delayq.app.changes import Updates
from celery_delayq.app.coroutines import ForCoroutines
from celery_delayq.app.dead import Dead
from celery_delayq.app.results import before, id_of, is_one
from celery_delayq.basics.deadline import Timeout, ends_in_time
from celery_delayq.basics.times import Time
from celery_delayq.options.settings import add_defaults
from celery_delayq.publishing.control import use_control
from celery_delayq.publishing.naive import warn_of_naive
from celery_delayq.publishing.send_task import key_of, send_unique
from celery_delayq.transport import register
from celery_delayq.transport.threads import in_a_thread

if TYPE_CHECKING:  # what a producer does not need is imported by the method that needs it
    from celery.app.task import Task
    from celery.canvas import Signature
    from celery.result import AsyncResult

    from celery_delayq.inspector import Inspector
    from celery_delayq.inspector.task import ScheduledTask
    from celery_delayq.schedule.api import Schedule

T = TypeVar("T")

#: Names a task: its id, or its result.
TaskId: TypeAlias = "str | AsyncResult | ScheduledTask"


class Group(Protocol):
    """Several results: a `GroupResult`. A Protocol, since a type checker without stubs of Celery knows none."""

    results: Any


#: The bootsteps of a worker, which imports them; and what registers its remote control commands.
_STEPS = ("celery_delayq.worker.bootsteps:Plan", "celery_delayq.worker.bootsteps:Transfer")
_COMMANDS = "celery_delayq.worker.commands:register"


class DelayQ(Updates, ForCoroutines, Dead):
    """Delayed tasks in Redis for a Celery app.

    Make it beside the app::

        app = Celery("shop", broker="delayq://localhost:6379/0")
        delayq = DelayQ(app)

    DelayQ registers the `delayq` URL schemes with kombu, bootsteps, a `control` and the defaults of our settings with
    the app, and remote control commands and a warning about a second scheduler with Celery. What a producer does not
    need is imported by the methods that need it. It does not connect and does not read the configuration, so create it
    right after the app, even before `app.config_from_object`: in a thread that has used the result backend before,
    publishing hangs if the backend does. Creating it twice for one app does no harm.
    Threads may share it, and it works after a fork.

    No worker needs to run for the methods that read or change waiting tasks. They take a task id or a result. If you
    pass several (a list, a `GroupResult`), they return a dict with one answer per id. Only the first task of a chain
    waits: `get` and `cancel` find it by the result of the chain; to the others pass `result.parent` and so on. If an id
    was scheduled several times, the methods apply to all of these tasks.

    Times are datetimes, or unix time in seconds. Naive datetimes are taken as UTC, like a naive eta in Celery. If local
    time, or that of the app's `timezone`, is another, a naive eta causes a `NaiveEtaWarning`, once in each process. The
    server's clock decides which tasks are due or overdue, and how much time is left.

    While a node of a Redis Cluster is away, methods that take ids find tasks at the other nodes; if an id is not there,
    they raise an error. Methods for all queues raise one, too, that names the node and its queues. `counts`,
    `consumers`, `histogram` and `scheduled` do without these queues if you pass `partial=True`. Methods for one queue
    need only its node. While the node of the registry (`delayq:queues`) is away, only the queues of the app's
    configuration are known.

    All of them take `timeout`, in seconds or as a timedelta: the call ends by then with `OperationalError`, even if the
    server hangs or all connections are in use. What it has changed by then stays changed. Only the resolution of host
    names is not bounded. Without `timeout`, a call tries to connect twice, two seconds apart, and each command may take
    `socket_timeout`.

    Coroutines of asyncio await the same methods with an `a` in front (`await delayq.acancel(id)`), and `asend` instead
    of `apply_async`. They run in threads, ten at a time in a process; further ones wait, until their `timeout`. If a
    coroutine is cancelled, a call that has begun runs to its end, and one that has not begun never starts.

    In tests with `task_always_eager`, or with a `memory://` broker, nothing waits in Redis, and no server is asked:
    `get` returns None, `cancel` False, `scheduled` an empty page, and so on. Only `import_` and `schedule` need a
    server. See `celery_delayq.testing` for tests in which tasks wait.

    All these methods raise the same errors.

    Raises:
        TypeError: an argument has the wrong type, or a task is neither an id nor a result.
        UnknownQueue: there is no queue of the given name. A queue in which nothing waits is no error.
        UnknownTask: nothing was found for a task of the given name, and the app has a task of a similar one instead.
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
        signals.beat_init.connect(_warn_of_another, dispatch_uid="celery_delayq.warn_of_another")

    @overload
    def get(self, task_id: Group, *, ready: bool = ..., timeout: Timeout = ...) -> dict[str, ScheduledTask | None]: ...
    @overload
    def get(self, task_id: TaskId, *, ready: bool = ..., timeout: Timeout = ...) -> ScheduledTask | None: ...
    @overload
    def get(
        self, task_id: Iterable[TaskId], *, ready: bool = ..., timeout: Timeout = ...
    ) -> dict[str, ScheduledTask | None]: ...
    @ends_in_time
    def get(self, task_id: TaskId | Iterable[TaskId] | Group, *, ready: bool = False, timeout: Timeout = None) -> Any:
        """Return a waiting task, or None if it is not waiting: it is due, has run, was cancelled, or was never delayed.

        If an id was scheduled several times, return the task that is due first. O(log N) for N waiting tasks.

        The result of a chain or a chord leads to its earlier tasks: if the last one does not wait, return the one
        before it that does; of a chord's header, the one that is due first.

        Args:
            task_id: the task or tasks.
            ready: look for those that do not wait in the queues, too; see `cancel`. `ScheduledTask.state` says where a
                task is.
            timeout: see `DelayQ`.
        """

        def first(found: list[ScheduledTask]) -> ScheduledTask | None:
            return min(found, key=lambda task: task.due, default=None)

        return self._each_or_before(task_id, lambda inspector, ids: inspector.get(ids, ready=ready), first)

    @ends_in_time
    def waiting(self, key: str | Task | Signature, *, timeout: Timeout = None) -> ScheduledTask | None:
        """Return the task that waits and holds a unique key, or None; see `Unique`.

        Args:
            key: the key; or the signature of a task that has `unique`, as in `waiting(remind.s(42))`; or the task, if
                it is called without arguments.
            timeout: see `DelayQ`.

        Raises:
            ValueError: the task of the signature has no `unique`.
        """
        with self._inspector("cannot look up a unique key") as inspector:
            return inspector.holding(self._key_of(key))

    @ends_in_time
    def forget(self, key: str | Task | Signature, *, timeout: Timeout = None) -> bool:
        """Release a unique key, whichever task holds it: that task stays as it is, and another one may take the key.

        Args:
            key: see `waiting`.
            timeout: see `DelayQ`.

        Returns:
            Whether a task held it.

        Raises:
            ValueError: the task of the signature has no `unique`.
        """
        with self._inspector("cannot give up a unique key") as inspector:
            return inspector.forget(self._key_of(key))

    def was_new(self, result: AsyncResult) -> bool:
        """Return whether a task was sent; False if its result is that of the task that holds its unique key."""
        return bool(getattr(result, "was_new", True))

    @overload
    def cancel(self, task_id: Group, *, ready: bool = ..., timeout: Timeout = ...) -> dict[str, bool]: ...
    @overload
    def cancel(self, task_id: TaskId, *, ready: bool = ..., timeout: Timeout = ...) -> bool: ...
    @overload
    def cancel(self, task_id: Iterable[TaskId], *, ready: bool = ..., timeout: Timeout = ...) -> dict[str, bool]: ...
    @ends_in_time
    def cancel(
        self, task_id: TaskId | Iterable[TaskId] | Group, *, ready: bool = False, timeout: Timeout = None
    ) -> Any:
        """Remove a waiting task for good: it will not run.

        Atomic with regard to the transfer: either this call or a worker gets the task. O(log N) for N waiting tasks.

        The result of a chain or a chord leads to its earlier tasks. If the last one does not wait, the one before it
        that does is removed, or those of a chord's header that do. So what follows never runs.

        The result of a cancelled task stays pending. A chord or chain that depends on it is not told. A lock that was
        taken for the task, for example by celery-singleton, is not released.

        Args:
            task_id: the task or tasks.
            ready: also remove tasks that are in their queues, delayed before or not. Atomic: either this call or a
                worker gets the task. It searches the queues of the app, and those to which this package has sent tasks:
                O(N) for N ready tasks, in bounded calls.
            timeout: see `DelayQ`.

        Returns:
            True if the task was removed: it will never run. False if it was cancelled before, or a worker has or had
            it, or, without `ready`, it is in its queue.
        """
        return self._each_or_before(task_id, lambda inspector, ids: inspector.cancel(ids, ready=ready), any)

    @overload
    def reschedule(
        self,
        task_id: Group,
        *,
        countdown: float | timedelta | None = ...,
        eta: Time | None = ...,
        timeout: Timeout = ...,
    ) -> dict[str, bool]: ...
    @overload
    def reschedule(
        self,
        task_id: TaskId,
        *,
        countdown: float | timedelta | None = ...,
        eta: Time | None = ...,
        timeout: Timeout = ...,
    ) -> bool: ...
    @overload
    def reschedule(
        self,
        task_id: Iterable[TaskId],
        *,
        countdown: float | timedelta | None = ...,
        eta: Time | None = ...,
        timeout: Timeout = ...,
    ) -> dict[str, bool]: ...
    @ends_in_time
    def reschedule(
        self,
        task_id: TaskId | Iterable[TaskId] | Group,
        *,
        countdown: float | timedelta | None = None,
        eta: Time | None = None,
        timeout: Timeout = None,
    ) -> Any:
        """Give a waiting task a new due time. It keeps its id, and its eta header gets the new time.

        Atomic with regard to the transfer and to other changes of the task. Everything else stays as it is, including
        `expires`: if the new time is later than that, the worker discards the task as expired.

        Args:
            task_id: the task or tasks.
            countdown: a timedelta, or seconds: from now, by the server's clock.
            eta: the new time; give either `countdown` or `eta`. If the time is in the past, or the countdown is
                negative, the task moves to its queue at once.
            timeout: see `DelayQ`.

        Returns:
            True if the task was waiting.

        Raises:
            TypeError: not exactly one of `countdown` and `eta` was given.
            ValueError: the time is after the year 9999, or not a number.
        """
        warn_of_naive(eta, self.app)
        return self._each(task_id, lambda inspector, ids: inspector.reschedule(ids, countdown=countdown, eta=eta))

    @overload
    def run_now(self, task_id: Group, *, timeout: Timeout = ...) -> dict[str, bool]: ...
    @overload
    def run_now(self, task_id: TaskId, *, timeout: Timeout = ...) -> bool: ...
    @overload
    def run_now(self, task_id: Iterable[TaskId], *, timeout: Timeout = ...) -> dict[str, bool]: ...
    @ends_in_time
    def run_now(self, task_id: TaskId | Iterable[TaskId] | Group, *, timeout: Timeout = None) -> Any:
        """Move a waiting task to the back of its queue, as if it had been published without an eta.

        Atomic. The task is in its queue when this method returns; no transfer is needed.

        Returns:
            True if the task was waiting.
        """
        return self._each(task_id, lambda inspector, ids: inspector.run_now(ids))

    @overload
    def apply_async_many(
        self,
        signatures: Iterable[Signature],
        *,
        chunk_size: int = ...,
        results: Literal[True] = ...,
        timeout: Timeout = ...,
    ) -> list[AsyncResult]: ...
    @overload
    def apply_async_many(
        self,
        signatures: Iterable[Signature],
        *,
        chunk_size: int = ...,
        results: Literal[False],
        timeout: Timeout = ...,
    ) -> int: ...
    @ends_in_time
    def apply_async_many(
        self,
        signatures: Iterable[Signature],
        *,
        chunk_size: int = 1000,
        results: bool = True,
        timeout: Timeout = None,
    ) -> Any:
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
            timeout: see `DelayQ`.

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

    aget = in_a_thread(get)
    awaiting = in_a_thread(waiting)
    aforget = in_a_thread(forget)
    acancel = in_a_thread(cancel)
    areschedule = in_a_thread(reschedule)
    arun_now = in_a_thread(run_now)
    aapply_async_many = in_a_thread(apply_async_many)

    @cached_property
    def schedule(self) -> Schedule:
        """The periodic tasks of the app, see `Schedule`."""
        from celery_delayq.schedule.api import Schedule

        return Schedule(self.app, self._channel)

    def _each(self, task_id: Any, ask: Callable[[Inspector, list[str]], dict[str, T]]) -> T | dict[str, T]:
        alone = is_one(task_id)
        ids = [id_of(each) for each in ([task_id] if alone else task_id)]
        with self._inspector(f"cannot look up task {ids[0]}" if alone else "cannot look up the tasks") as inspector:
            found = ask(inspector, ids)
            return found[ids[0]] if alone else found

    def _each_or_before(
        self, task_id: Any, ask: Callable[[Inspector, list[str]], dict[str, T]], one_of: Callable[[list[T]], T]
    ) -> T | dict[str, T]:
        """Do the same; for a task that is not there, with what comes before it in its chain or chord."""
        alone = is_one(task_id)
        tasks = [task_id] if alone else list(task_id)

        def walk(inspector: Inspector, ids: list[str]) -> dict[str, T]:
            found = ask(inspector, ids)
            for name, task in zip(ids, tasks, strict=True):
                found[name] = found[name] or one_of(before(partial(ask, inspector), task))
            # The results of a chain that ends in a group have none before them, but the group has.
            if not (alone or all(found.values())):
                earlier = one_of(before(partial(ask, inspector), task_id))
                found = {name: answer or earlier for name, answer in found.items()}
            return found

        return self._each(task_id if alone else tasks, walk)

    def _key_of(self, key: str | Task | Signature) -> str:
        return key if isinstance(key, str) else key_of(self.app, key)


def _warn_of_another(sender: Any, **kwargs: Any) -> None:
    from celery_delayq.options.scheduler import warn_of_another

    warn_of_another(sender, **kwargs)

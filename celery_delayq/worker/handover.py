"""Handover: tracks the tasks that a worker has handed to its pool, which run on even if the connection is lost.

Stock Celery leaves such tasks to the visibility timeout, and runs them twice. Here, each message is either put back or
left to the pool. The messages of tasks that the pool has taken stay in flight until they are acknowledged, by the
watchdog of the connection that was lost.

Undocumented parts of Celery (5.6 and 5.7) that this module uses
    `pool.apply_async`: a request calls it with the function that runs its task, and with
        `accept_callback=request.on_accepted`. It is the only place at which all pools take a task.
    `TaskPool.Pool`: what the prefork pool calls, as it starts, to make its `AsynPool`.
    `AsynPool.outbound_buffer`: the jobs for which no child has room, and what a child had not read when it died.
    `AsynPool.flush`: called when the connection is lost. It drops that buffer. It also forgets jobs that were written
        to a child (5.7: only those not yet begun; 5.6: all of them, if nothing is being written). Then nobody would
        acknowledge them, and a stopping worker would wait 30 s for children that wait for it.
    `AsynPool._cache`: number -> job, for all jobs whose results are awaited. What `flush` forgot goes in again.
    `Consumer.call_soon_ack` (5.7), `call_soon` (5.6): how a request acknowledges its message, in the next turn of the
        event loop. A turn may run several tasks of a solo pool.
    `request.on_accepted.__self__`: a bound method; it leads from the callback to the request, and to its message.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from logging import getLogger
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from billiard.einfo import ExceptionInfo
from celery.concurrency.prefork import TaskPool as PreforkPool
from celery.concurrency.solo import TaskPool as SoloPool
from celery.exceptions import Reject, TaskRevokedError
from celery.worker import state

from celery_delayq.transport.channel import DelayedChannel
from celery_delayq.transport.keyed import UNIQUE_PROPERTY
from celery_delayq.worker.failures import Failures, exception_of

logger = getLogger(__name__)


class Handover:
    """Tracks the tasks that a worker hands to its pool. It belongs to the main thread.

    Args:
        pool: a Celery `TaskPool`. Pass it before it is started, and before its worker creates the tasks' strategies,
            which read `apply_async`.
        cancels_late: whether Celery cancels late-acknowledged tasks that run when the connection is lost
            (`worker_cancel_long_running_tasks_on_connection_loss`), so that they have to run again.
        on_hand_over: called with each message. Returns what to call when the task begins, with the time of that on the
            monotonic clock; or None.
        failures: keeps failed tasks.
    """

    def __init__(
        self,
        pool: Any,
        *,
        cancels_late: bool,
        on_hand_over: Callable[[Any], Callable[[float], None] | None] | None = None,
        failures: Failures | None = None,
    ) -> None:
        self._pool = pool
        self._on_hand_over = on_hand_over
        self._failures = failures
        self._cancels_late = cancels_late
        #: Messages of these tasks. A message lives as long as somebody may still acknowledge it.
        self._messages: WeakSet[Any] = WeakSet()
        #: The channel of the last message.
        self._channel: Any = None
        #: The last message for which the pool raised: the pool does not have its task, or is done with it (solo).
        self._raised: Any = None
        #: Messages that were left to the pool when a connection was lost.
        self._left: WeakSet[Any] = WeakSet()
        #: The processes of a prefork pool that is started and runs on the event loop, and their jobs' messages.
        self._processes: Any = None
        self._jobs: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        self._apply_async = pool.apply_async
        pool.apply_async = self._hand_over
        if isinstance(pool, PreforkPool):
            self._make_processes = pool.Pool
            pool.Pool = self._start_processes

    def _start_processes(self, *args: Any, **options: Any) -> Any:
        self._processes = processes = self._make_processes(*args, **options)
        self._celerys_flush = processes.flush
        processes.flush = self._flush
        return processes

    def _hand_over(self, target: Any, *args: Any, **options: Any) -> Any:
        message = _message_of(options.get("accept_callback"))
        if message is not None:
            if not _is_held(message):
                if isinstance(message.channel, DelayedChannel):
                    message.channel.qos.forget(message.delivery_tag)
                raise TaskRevokedError(
                    "other workers have taken it over"
                )  # Celery gives its place in the pool to the next one
            _wait_until_due(message)
            self._on_begin(message)
            request = options["accept_callback"].__self__
            acks_late = request.task.acks_late
            if acks_late and isinstance(message.channel, DelayedChannel):
                message.channel.can_wait(message.delivery_tag)
            self._messages.add(message)
            self._tell_unique(message, options, acks_late=acks_late)
            if acks_late:
                _tell_end(message, options)
            self._watch(message, request, options)
            if not isinstance(self._pool, PreforkPool):
                options["accept_callback"] = _unless_lost(options["accept_callback"], message)
                if not isinstance(self._pool, SoloPool):
                    target = _failing(target, options["error_callback"])
            on_begin = None if self._on_hand_over is None else self._on_hand_over(message)
            if on_begin is not None:
                options["accept_callback"] = _noted(options["accept_callback"], on_begin)
        try:
            job = self._apply_async(target, *args, **options)
        except Exception:
            self._raised = message
            raise
        if message is not None and job is not None and self._processes is not None:
            self._jobs[job] = message
        return job

    def _watch(self, message: Any, request: Any, options: dict[str, Any]) -> None:
        """Let a task be kept if it fails, if the app wants that."""
        if self._failures is None or not self._failures.are_kept(request.task):
            return
        connection = message.channel.connection
        if isinstance(message.channel, DelayedChannel) and connection is not None:
            held = connection.stations.held(message.delivery_tag)
            if held is not None:
                self._failures.watch(held.name, held.message, request, options)

    def _tell_unique(self, message: Any, options: dict[str, Any], *, acks_late: bool) -> None:
        """Let the callbacks of a task tell its channel that it starts and is done, if its message holds a unique key.

        A message that is acknowledged late says it by that: the task is done. One that is acknowledged early says that
        it starts. In a solo pool, each message is acknowledged late, whatever is wanted: Celery leaves that to its
        event loop, which waits for the task.

        Args:
            message: the task's message.
            options: what its request passes to the pool; changed here.
            acks_late: whether the task wants to be acknowledged late.
        """
        channel = message.channel
        if UNIQUE_PROPERTY not in (message.properties or {}) or not isinstance(channel, DelayedChannel):
            return
        if acks_late or isinstance(self._pool, SoloPool):
            starts = partial(channel.starts, message.delivery_tag, is_early=False)
            options["accept_callback"] = _then(options["accept_callback"], starts)
            return
        held = channel.starts(message.delivery_tag, is_early=True)

        def ends() -> None:
            present = self._channel  # that of the worker's present connection
            if held is not None:
                (present if isinstance(present, DelayedChannel) else channel).ends(held)

        on_timeout = options["timeout_callback"]

        def timed_out(soft: bool, timeout: float) -> None:
            on_timeout(soft, timeout)
            if not soft:  # after a soft time limit, the task goes on
                ends()

        for name in ("callback", "error_callback"):
            options[name] = _then(options[name], ends)
        options["timeout_callback"] = timed_out

    def acknowledge_at_end(self, consumer: Any) -> None:
        """Let a task in the main thread be acknowledged when it ends: before the next one begins, which may be killed.

        Args:
            consumer: the worker's `Consumer`, before it has created the handler of its tasks.
        """
        if not isinstance(self._pool, SoloPool):
            return
        name = "call_soon_ack" if hasattr(consumer, "call_soon_ack") else "call_soon"
        soon, run = getattr(consumer, name), self._apply_async
        #: What to do at the end of the task that runs; None if none does.
        at_end: list[Callable[[], object]] | None = None

        def call(function: Any, *args: Any, **options: Any) -> Any:
            if at_end is None:
                return soon(function, *args, **options)
            at_end.append(partial(function, *args, **options))
            return None

        def run_to_the_end(*args: Any, **options: Any) -> Any:
            nonlocal at_end
            calls: list[Callable[[], object]] = []
            at_end = calls
            try:
                result = run(*args, **options)
                while calls:
                    calls.pop(0)()
                return result
            finally:
                at_end = None
                for it in calls:  # the task has ended the worker, for example, which may put its message back
                    soon(it)

        setattr(consumer, name, call)
        self._apply_async = run_to_the_end

    def forget(self, delivery_tag: str) -> bool:
        """Forget a task whose message no worker can take; Celery may have reserved it before that showed.

        Returns:
            False if the message must not be set aside: the pool has its task, or it has ended and is acknowledged.
        """
        found = [request for request in tuple(state.reserved_requests) if request.message.delivery_tag == delivery_tag]
        if any(request.message in self._messages and request.message is not self._raised for request in found):
            return False
        for request in found:
            state.task_ready(request)
        return not any(request.acknowledged for request in found)

    def _on_begin(self, message: Any) -> None:
        """Record that a task is about to begin: a message on its last delivery is then no longer alone."""
        former, self._channel = self._channel, message.channel  # tasks of a closed channel may still run
        for channel in {former, message.channel}:
            if isinstance(channel, DelayedChannel):
                channel.on_begin(message.delivery_tag)

    def delivery_tags(self) -> set[str]:
        """Return the tags of the messages to leave to the pool; empty if the worker stops."""
        if is_stopping():
            return set()
        waiting = {self._jobs.get(job) for job in self._waiting()}
        left = {message for message in self._messages if not message.acknowledged} - waiting - self._cancelled()
        self._left.update(left)
        return {message.delivery_tag for message in left}

    def take_back(self) -> None:
        """Take back tasks that were not written to a child process, before the worker stops.

        The event loop that writes has ended. What is partly written is written completely: or its child would wait for
        the rest, and the worker for the child, for ever.
        """
        if self._processes is not None and isinstance(self._channel, DelayedChannel):
            self._processes.flush()

    def _waiting(self) -> list[Any]:
        """Return the jobs that no child process has, except those left to the pool: only the pool can run these."""
        if self._processes is None:
            return []
        return [job for job in self._processes.outbound_buffer if self._jobs.get(job) not in self._left]

    def _flush(self) -> Any:
        """Drop the jobs that no child process has, and no others. It replaces `AsynPool.flush`."""
        if not isinstance(self._channel, DelayedChannel):
            return self._celerys_flush()  # other transports deliver again what it forgets
        processes = self._processes
        for job in self._waiting():
            processes.outbound_buffer.remove(job)
            job.discard()
        # What a child had not read when it died goes back to the buffer. Celery 5.6 would do that, and then drop it.
        processes.maintain_pool()
        unread = tuple(processes.outbound_buffer)
        jobs = dict(processes._cache)
        try:
            self._celerys_flush()
        finally:
            processes._cache.update({number: job for number, job in jobs.items() if not job.ready()})
            processes.outbound_buffer.extend(job for job in unread if not job.ready())

    def _cancelled(self) -> set[Any]:
        if not self._cancels_late:
            return set()
        running = tuple(state.active_requests)
        return {it.message for it in running if it.task.acks_late and not it.acknowledged}


def is_stopping() -> bool:
    """Return whether the worker was told to stop, warm or cold."""
    return _is_set(state.should_stop) or _is_set(state.should_terminate)


def _is_set(exit_code: Any) -> bool:
    """Return whether a flag of Celery is set. A set flag holds the exit status of the worker, which may be 0."""
    return exit_code is not None and exit_code is not False


class NotBegun(Exception):
    """A task that was handed to the pool must not begin."""


def _unless_lost(accept: Any, message: Any) -> Callable[[int, float], None]:
    """Return an `accept_callback` that refuses a task which others have taken over since it was handed to the pool.

    Pools that run tasks in this process call it just before the task begins. It raises NotBegun, and the pool drops the
    task. If its message is not acknowledged, it is put back when the process ends.
    """

    def accept_unless_lost(pid: int, time_accepted: float) -> None:
        if _is_set(state.should_terminate):
            raise NotBegun(f"task {message.headers.get('id')} is put back: the worker ends")
        if not _is_held(message):
            raise NotBegun(f"task {message.headers.get('id')} is not this worker's any more")
        accept(pid, time_accepted)

    return accept_unless_lost


def _tell_end(message: Any, options: dict[str, Any]) -> None:
    """Let the callbacks of a task tell its channel if it has to run again: Celery requeues its message next.

    Args:
        message: the task's message.
        options: what its request passes to the pool; changed here.
    """
    channel, tag = message.channel, message.delivery_tag
    if not isinstance(channel, DelayedChannel):
        return
    on_result, on_error = options["callback"], options["error_callback"]

    def ended(failed_retval_runtime: tuple[Any, Any, Any]) -> None:
        failed, retval, _ = failed_retval_runtime
        if failed and isinstance(exception_of(retval), Reject):
            channel.task_ended(tag, "rejected")
        on_result(failed_retval_runtime)

    def died(exc_info: Any) -> None:
        if not is_stopping():  # which ends processes
            channel.task_ended(tag, "killed")
        on_error(exc_info)

    on_timeout = options["timeout_callback"]

    def timed_out(soft: bool, timeout: float) -> None:
        if not soft:
            channel.task_ended(tag, "killed")
        on_timeout(soft, timeout)

    options["callback"], options["error_callback"], options["timeout_callback"] = ended, died, timed_out


def _noted(accept: Any, on_begin: Callable[[float], None]) -> Callable[[int, float], None]:
    """Return an `accept_callback` that tells somebody else, too, that the task begins.

    In a child process, it began a little earlier than its parent hears of it.
    """

    def accept_and_note(pid: int, time_accepted: float) -> None:
        accept(pid, time_accepted)
        on_begin(time_accepted)

    return accept_and_note


def _then(method: Any, then: Callable[[], object]) -> Callable[..., None]:
    """Return a callback that calls a method of a request, then something else."""

    def call(*args: Any, **kwargs: Any) -> None:
        method(*args, **kwargs)
        then()

    return call


def _failing(target: Any, on_failure: Any) -> Callable[..., Any]:
    """Return what runs a task in a thread or greenlet. An error outside of the task's code fails the task.

    So it does in a child process. Otherwise nobody would notice the error, and the message would never be acknowledged.

    Args:
        target: the function that was given to the pool.
        on_failure: `Request.on_failure`.
    """

    def run(*args: Any, **options: Any) -> Any:
        try:
            return target(*args, **options)
        except Exception:
            on_failure(ExceptionInfo())
            raise

    return run


def _wait_until_due(message: Any) -> None:
    """Wait for the last part of the lead, see `Ahead`."""
    if not isinstance(message.channel, DelayedChannel):
        return
    connection = message.channel.connection
    if connection is not None and connection.ahead.wait(message):
        connection.cycle.on_credit()


def _is_held(message: Any) -> bool:
    """Return whether this worker still holds a message. Asks the server only after a silence as long as the lease."""
    channel = message.channel
    return not isinstance(channel, DelayedChannel) or channel.is_held(message.delivery_tag)


def _message_of(accept_callback: Any) -> Any:
    """Return the message of the request that owns this method; None if there is none."""
    return getattr(getattr(accept_callback, "__self__", None), "message", None)

"""Handover: tracks the tasks that a worker has handed to its pool, which run on even if the connection is lost.

Stock Celery leaves such tasks to the visibility timeout, and runs them twice. Here, each message is either put back or
left to the pool. The messages of tasks that the pool has taken stay in flight until they are acknowledged, over the
next connection.

Private parts of Celery (5.6 and 5.7) that this module uses
    `pool.apply_async`: a request calls it with the function that runs its task, and with
        `accept_callback=request.on_accepted`. It is the only place at which all pools take a task.
    `AsynPool._cache`, `outbound_buffer`, `ApplyResult._write_to`, `_accepted`, `_accept_callback`: the prefork pool
        keeps tasks for which no child process has room, and drops them when the connection is lost.
    `AsynPool.flush`: called when the connection is lost, and when the worker stops. It forgets tasks that were written
        to a child (5.7: only those not yet begun; 5.6: all of them, if nothing is being written). Then nobody would
        acknowledge them, and a stopping worker would wait 30 s for children that wait for it.
"""

from __future__ import annotations

from functools import partial
from logging import getLogger
from typing import Any
from weakref import WeakSet

from billiard.einfo import ExceptionInfo
from celery.concurrency.asynpool import AsynPool
from celery.concurrency.solo import TaskPool as SoloPool
from celery.worker import state

from celery_delayq.transport.channel import DelayedChannel

logger = getLogger(__name__)


class Handover:
    """Tracks the tasks that a worker hands to its pool. It belongs to the main thread; create it before forking.

    Args:
        pool: a Celery `TaskPool`. Pass it before its worker creates the tasks' strategies, which read `apply_async`.
        cancels_late: whether Celery cancels late-acknowledged tasks that run when the connection is lost
            (`worker_cancel_long_running_tasks_on_connection_loss`), so that they have to run again.
    """

    def __init__(self, pool: Any, *, cancels_late: bool) -> None:
        self._pool = pool
        self._cancels_late = cancels_late
        #: Messages of these tasks. A message lives as long as somebody may still acknowledge it.
        self._messages: WeakSet[Any] = WeakSet()
        #: The channel of the last message.
        self._channel: Any = None
        #: The last message for which the pool raised: the pool does not have its task, or is done with it (solo).
        self._raised: Any = None
        self._apply_async = pool.apply_async
        pool.apply_async = self._hand_over

    def _hand_over(self, target: Any, *args: Any, **options: Any) -> Any:
        message = _message_of(options.get("accept_callback"))
        if message is not None:
            if not _is_held(message):
                return None
            self._on_begin(message)
            self._messages.add(message)
            if not isinstance(getattr(self._pool, "_pool", None), AsynPool):
                options["accept_callback"] = _Begin(options["accept_callback"])
                if not isinstance(self._pool, SoloPool):
                    target = _Failing(target, options["error_callback"])
        try:
            return self._apply_async(target, *args, **options)
        except Exception:
            self._raised = message
            raise

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
        self.keep_what_is_written()
        if is_stopping():
            return set()
        left = {message.delivery_tag for message in self._messages if not message.acknowledged}
        return left - self._unwritten() - self._cancelled()

    def take_back(self) -> None:
        """Take back tasks that were not written to a child process, before the worker stops.

        Celery would wait for them for ever: the event loop that would write them to a child has ended.
        """
        processes = getattr(self._pool, "_pool", None)
        if isinstance(processes, AsynPool):
            _flush(processes)

    def keep_what_is_written(self) -> None:
        """Make the pool keep tasks that it has written to a child process, even when Celery makes it drop the others.

        Call this whenever the pool may have been started, because it then has another `flush`.
        """
        processes = getattr(self._pool, "_pool", None)
        if isinstance(processes, AsynPool):
            self._pool.flush = partial(_flush, processes)

    def _unwritten(self) -> set[str]:
        """Return the tags of messages for which no child process had room."""
        processes = getattr(self._pool, "_pool", None)
        if not isinstance(processes, AsynPool):
            return set()
        written = _written(processes)
        jobs = [job for number, job in tuple(processes._cache.items()) if number not in written]
        messages = (_message_of(job._accept_callback) for job in jobs)
        return {message.delivery_tag for message in messages if message is not None}

    def _cancelled(self) -> set[str]:
        if not self._cancels_late:
            return set()
        running = tuple(state.active_requests)
        return {it.message.delivery_tag for it in running if it.task.acks_late and not it.acknowledged}


def tasks_waiting(worker: Any) -> int:
    """Return how many tasks of a worker are ready to run, but wait for a free process of its pool.

    Only pools on an event loop have a semaphore for their processes.
    """
    semaphore = getattr(worker, "semaphore", None)
    return 0 if semaphore is None else len(semaphore._waiting)


def is_busy() -> bool:
    """Return whether tasks run or wait for the pool. Tasks that wait for an eta or a rate limit do not count."""
    return bool(state.reserved_requests)


def is_stopping() -> bool:
    """Return whether the worker was told to stop, warm or cold."""
    return _is_set(state.should_stop) or _is_set(state.should_terminate)


def _is_set(exit_code: Any) -> bool:
    """Return whether a flag of Celery is set. A set flag holds the exit status of the worker, which may be 0."""
    return exit_code is not None and exit_code is not False


class NotBegun(Exception):
    """A task that was handed to the pool must not begin."""


class _Begin:
    """`Request.on_accepted`, but it refuses a task that others have taken over since it was handed to the pool.

    Pools that run tasks in this process call it just before the task begins.
    """

    def __init__(self, on_accepted: Any) -> None:
        self._on_accepted = on_accepted
        self.message = on_accepted.__self__.message

    def __call__(self, pid: int, time_accepted: float) -> None:
        """Accept the task.

        Raises:
            NotBegun: the pool drops the task. If its message is not acknowledged, it is put back when the process ends.
        """
        if _is_set(state.should_terminate):
            raise NotBegun(f"task {self.message.headers.get('id')} is put back: the worker ends")
        if not _is_held(self.message):
            raise NotBegun(f"task {self.message.headers.get('id')} is not this worker's any more")
        self._on_accepted(pid, time_accepted)


class _Failing:
    """Runs a task in a thread or greenlet. An error outside of the task's code fails the task, as in a child process.

    Otherwise nobody would notice the error, and the message would never be acknowledged.

    Args:
        target: the function that was given to the pool.
        on_failure: `Request.on_failure`.
    """

    def __init__(self, target: Any, on_failure: Any) -> None:
        self._target = target
        self._on_failure = on_failure

    def __call__(self, *args: Any, **options: Any) -> Any:
        try:
            return self._target(*args, **options)
        except Exception:
            self._on_failure(ExceptionInfo())
            raise


def _is_held(message: Any) -> bool:
    """Return whether this worker still holds a message. Asks the server only after a silence as long as the lease."""
    channel = message.channel
    return not isinstance(channel, DelayedChannel) or channel.is_held(message.delivery_tag)


def _message_of(accept_callback: Any) -> Any:
    """Return the message of the request that owns this method; None if there is none."""
    return getattr(getattr(accept_callback, "__self__", None), "message", None)


def _written(processes: AsynPool) -> dict[int, Any]:
    """Return the jobs that were written to a child process, as number -> job, in order of creation."""
    # If a child died before it read a job, the job is in the buffer again.
    buffered = {id(job) for job in processes.outbound_buffer}
    jobs = tuple(processes._cache.items())
    return {number: job for number, job in jobs if job._write_to is not None and id(job) not in buffered}


def _flush(processes: AsynPool) -> None:
    """Drop only the jobs that were not written to a child process."""
    written = _written(processes)
    try:
        processes.flush()
    finally:
        processes._cache.update({number: job for number, job in written.items() if not job.ready()})

"""What a worker has handed over to its pool, and goes on there although the worker has lost its connection.

Stock Celery leaves such tasks to the visibility timeout, and runs them twice. Here each message is either put back or
left to the pool: those that the pool has taken up stay in flight until they are acknowledged, over the next connection.

Private of Celery (5.6 and 5.7), all in this module
    `pool.apply_async`: a request calls it with the function that runs its task, and with
        `accept_callback=request.on_accepted`; the only place at which all pools take a task up.
    `AsynPool._cache`, `outbound_buffer`, `ApplyResult._write_to`, `_accepted`, `_accept_callback`: the prefork pool
        keeps tasks for which no child process has room, and drops them when the connection is lost.
    `AsynPool.flush`: called when the connection is lost, and when the worker stops. It forgets tasks that were written
        to a child (5.7: and not yet begun; 5.6: all of them, if nothing is being written), so that nobody would
        acknowledge them, and a worker that stops would wait 30 s for children that wait for it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from functools import partial
from itertools import count
from logging import getLogger
from typing import Any
from weakref import WeakSet

from billiard.einfo import ExceptionInfo
from celery.concurrency.asynpool import AsynPool
from celery.concurrency.solo import TaskPool as SoloPool
from celery.worker import state

from celery_delayq.transport.channel import DelayedChannel
from celery_delayq.verdicts import Job, Verdicts, share_verdicts

logger = getLogger(__name__)


class Handover:
    """Keeps book of what a worker hands over to its pool. Belongs to the worker's main thread, made before it forks.

    Args:
        pool: a Celery `TaskPool`, before its worker makes the tasks' strategies, which take `apply_async` from it.
        cancels_late: whether Celery cancels late-acknowledged tasks that run when the connection is lost
            (`worker_cancel_long_running_tasks_on_connection_loss`), so that they have to run again.
    """

    def __init__(self, pool: Any, *, cancels_late: bool) -> None:
        self._pool = pool
        self._cancels_late = cancels_late
        #: A message lives for as long as somebody may still acknowledge it.
        self._messages: WeakSet[Any] = WeakSet()
        #: From which the last message came.
        self._channel: Any = None
        #: The last message with which the pool raised: it does not have it, or is done (solo).
        self._raised: Any = None
        self._verdicts = share_verdicts()
        self._numbers = count(1)
        self._apply_async = pool.apply_async
        pool.apply_async = self._hand_over

    def _hand_over(self, target: Any, *args: Any, **options: Any) -> Any:
        message = _message_of(options.get("accept_callback"))
        if message is not None:
            if not _is_held(message):
                return None
            self._on_begin(message)
            self._messages.add(message)
            on_accepted = options["accept_callback"]
            if isinstance(getattr(self._pool, "_pool", None), AsynPool):
                target = Job(target, next(self._numbers), _sure_until(message))
                options["accept_callback"] = _BeginInChild(on_accepted, target, self._verdicts)
            else:
                options["accept_callback"] = _Begin(on_accepted)
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
            False if the message is not to be set aside: the pool has the task, or it has ended and is acknowledged.
        """
        found = [request for request in tuple(state.reserved_requests) if request.message.delivery_tag == delivery_tag]
        if any(request.message in self._messages and request.message is not self._raised for request in found):
            return False
        for request in found:
            state.task_ready(request)
        return not any(request.acknowledged for request in found)

    def _on_begin(self, message: Any) -> None:
        """Take note that a task begins, before it does: a message on its last delivery is not alone then."""
        former, self._channel = self._channel, message.channel  # its tasks may run yet although it is closed
        for channel in {former, message.channel}:
            if isinstance(channel, DelayedChannel):
                channel.on_begin(message.delivery_tag)

    def delivery_tags(self) -> set[str]:
        """Return the tags of messages that are to be left to the pool; none if the worker stops."""
        self.keep_what_is_written()
        if is_stopping():
            return set()
        left = {message.delivery_tag for message in self._messages if not message.acknowledged}
        return left - self._unwritten() - self._cancelled()

    def take_back(self) -> None:
        """Take back what no child process was given, before the worker stops.

        Celery would wait for its end for ever: the event loop that would write it to a child has ended.
        """
        processes = getattr(self._pool, "_pool", None)
        if isinstance(processes, AsynPool):
            _flush(processes)

    def keep_what_is_written(self) -> None:
        """Make the pool keep tasks that it has written to a child process, whenever Celery makes it drop the others.

        To be called whenever the pool may have been started: it has another `flush` then.
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
    """Return how many tasks of a worker are ready to run, and wait for a process of its pool to be free.

    Only pools on an event loop have a semaphore for their processes.
    """
    semaphore = getattr(worker, "semaphore", None)
    return 0 if semaphore is None else len(semaphore._waiting)


def is_busy() -> bool:
    """Return whether tasks run or wait for the pool; those that wait for an eta or a rate limit do not count."""
    return bool(state.reserved_requests)


def is_stopping() -> bool:
    """Return whether the worker was told to stop, warm or cold."""
    return _is_set(state.should_stop) or _is_set(state.should_terminate)


def _is_set(exit_code: Any) -> bool:
    """Return whether one of Celery's flags is set, which hold the exit status of the worker: 0 is one."""
    return exit_code is not None and exit_code is not False


class NotBegun(Exception):
    """A task that was handed over must not begin."""


class _Begin:
    """`Request.on_accepted`, which refuses to begin what others have taken over since it was handed over.

    Pools that run tasks in this process call it just before the task.
    """

    def __init__(self, on_accepted: Any) -> None:
        self._on_accepted = on_accepted
        self.message = on_accepted.__self__.message

    def __call__(self, pid: int, time_accepted: float) -> None:
        """Accept the task.

        Raises:
            NotBegun: the pool drops the task. What is not acknowledged is put back when the process ends.
        """
        if _is_set(state.should_terminate):
            raise NotBegun(f"task {self.message.headers.get('id')} is put back: the worker ends")
        if not _is_held(self.message):
            raise NotBegun(f"task {self.message.headers.get('id')} is not this worker's any more")
        self._on_accepted(pid, time_accepted)


class _Failing:
    """What a thread or greenlet runs for a task: an error outside of the task's code fails it, as in a child process.

    Otherwise nobody would learn of it, and the message would never be acknowledged.

    Args:
        target: what the pool was given.
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


class _BeginInChild:
    """`Request.on_accepted` of the prefork pool, which calls it when a child has begun, or waits for the verdict.

    Args:
        on_accepted: the method.
        job: what the child begins.
        verdicts: where it looks.
    """

    def __init__(self, on_accepted: Any, job: Job, verdicts: Verdicts) -> None:
        self._on_accepted = on_accepted
        self._job = job
        self._verdicts = verdicts
        self.message = on_accepted.__self__.message

    def __call__(self, pid: int, time_accepted: float) -> None:
        """Accept the task, unless others have taken it over, or the child has given it up.

        Args:
            pid: of the child.
            time_accepted: by its monotonic clock; it looks whether it is late a moment after.
        """
        if not self._verdicts.begin(pid, self._job.number):
            logger.warning("Task %s is put back: its process waited for too long", self.message.headers.get("id"))
            return
        in_time = time_accepted <= self._job.sure_until
        may_begin = False
        try:
            is_held = _is_held(self.message)
            sure_until = _sure_until(self.message) if in_time else -math.inf
            if is_held or in_time:  # it runs already, unless the child was suspended in that very moment
                self._on_accepted(pid, time_accepted)
            may_begin = is_held and self._may_begin(in_time, sure_until)
            if not may_begin and not in_time:
                logger.info("Task %s is not begun: it is not this worker's any more", self.message.headers.get("id"))
        finally:
            self._verdicts.give(pid, self._job.number, may_begin=may_begin)

    def _may_begin(self, in_time: bool, sure_until: float) -> bool:
        """Return the verdict for a child that looks: because it is late, or has been suspended since it was in time.

        This process may have been suspended with it, and others have taken the message over, also in the middle of
        `__call__`.

        Args:
            in_time: whether the child was.
            sure_until: until when the message was this worker's for sure, before it was accepted.
        """
        if self.message.acknowledged:
            return time.monotonic() <= sure_until or not _came_too_late(self.message)
        return not in_time and _is_held(self.message)

    def foretell(self, pid: int) -> None:
        """Give the verdict before the worker reads that the child waits for it, without asking the server."""
        self._verdicts.give(pid, self._job.number, may_begin=_is_held(self.message, ask=False), foretold=True)


def _sure_until(message: Any) -> float:
    """Return until when a message is this worker's for sure, on the monotonic clock."""
    channel = message.channel
    return channel.lease_until if isinstance(channel, DelayedChannel) else math.inf


def _is_held(message: Any, *, ask: bool = True) -> bool:
    """Return whether a message is still this worker's; asks the server only after a silence as long as the lease."""
    channel = message.channel
    return not isinstance(channel, DelayedChannel) or channel.is_held(message.delivery_tag, ask=ask)


def _came_too_late(message: Any) -> bool:
    """Return whether a message was acknowledged when others had taken it over."""
    channel = message.channel
    return isinstance(channel, DelayedChannel) and channel.came_too_late(message.delivery_tag)


def _message_of(accept_callback: Any) -> Any:
    """Return the message of the request whose method this is, itself or handed over; or None."""
    if isinstance(accept_callback, _BeginInChild):
        return accept_callback.message
    return getattr(getattr(accept_callback, "__self__", None), "message", None)


def _written(processes: AsynPool) -> dict[int, Any]:
    """Return the jobs that were written to a child process, by number, in the order in which they were made."""
    # What was written to a child that died unread is in the buffer again.
    buffered = {id(job) for job in processes.outbound_buffer}
    jobs = tuple(processes._cache.items())
    return {number: job for number, job in jobs if job._write_to is not None and id(job) not in buffered}


def _flush(processes: AsynPool) -> None:
    """Drop what is not written to a child process, and nothing else."""
    written = _written(processes)
    _let_them_read(written.values())
    try:
        processes.flush()
    finally:
        processes._cache.update({number: job for number, job in written.items() if not job.ready()})


def _let_them_read(jobs: Iterable[Any]) -> None:
    """Give all verdicts for which children may be waiting.

    While it flushes, the pool reads nothing, and waits until children have read what is partly written to them.
    """
    pids = set()
    for job in jobs:
        begin, pid = job._accept_callback, job._write_to.pid
        if not job._accepted and pid not in pids and isinstance(begin, _BeginInChild):
            pids.add(pid)  # a child begins the first of its jobs first
            begin.foretell(pid)

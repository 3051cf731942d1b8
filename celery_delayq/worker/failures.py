"""Failures: keeps tasks that fail for good beside the dead letters of their queues.

Parts of Celery (5.6 and 5.7) that this module uses
    `callback`, `error_callback`, `timeout_callback` of `pool.apply_async`: what a request wants to hear of the end of
        its task: what it returned or raised; why its process ended, a hard time limit, too; that limit of a greenlet.
    `signals.task_failure`: while it handles the latter, a request sends it if the task does not run again.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from logging import getLogger
from queue import Empty, SimpleQueue
from typing import Any

from billiard.einfo import ExceptionWithTraceback
from billiard.exceptions import TimeLimitExceeded
from celery import signals
from celery.exceptions import Ignore, Reject, Retry
from redis import exceptions

from celery_delayq.basics.text import plural
from celery_delayq.options.settings import FailedSettings
from celery_delayq.queue.connections import Outage, hurried, passing_refusal
from celery_delayq.queue.keys import QueueKeys
from celery_delayq.queue.set_aside import keep
from celery_delayq.transport import redelivery
from celery_delayq.transport.connector import Connector

logger = getLogger(__name__)

#: The most failed tasks that wait for a server that is away; further ones are not kept.
_MOST_PENDING = 10_000

#: For so long the connection stays that writes them, and so long a worker that ends waits for it, in seconds.
_IDLE_S, _LAST_S = 1.0, 5.0

#: Pause after an error, in seconds; `Outage` makes longer ones.
_PAUSE_S = 0.05

#: What a task raises that has not failed.
_NO_FAILURES = (Ignore, Reject, Retry)


class Failures:
    """Those of one worker. A thread writes them, so that no task waits; it has a connection while tasks fail.

    `watch` belongs to the thread that hands tasks to the pool, `connect` and `finish` to the main thread.

    Args:
        settings: which ones are kept, and for how long.
        on_kept: called in that thread with the name of a list and the record of a failed task.
    """

    def __init__(self, settings: FailedSettings, on_kept: Callable[[str, bytes], object]) -> None:
        self._settings = settings
        self._on_kept = on_kept
        self._connector: Connector | None = None
        #: Names of lists, with records. None ends the thread.
        self._pending: SimpleQueue[tuple[str, bytes] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        #: When the worker ends, monotonic time in seconds.
        self._ends_at = math.inf
        self._outage = Outage(
            logger, "Keeping failed tasks", "They wait in memory", lambda: self._ends_at is not math.inf
        )

    def attach(self, connection: Any) -> None:
        """Write with the parameters of a kombu connection."""
        self._connector = Connector(connection.transport.client)

    def are_kept(self, task: Any) -> bool:
        """Return whether those of a task are kept."""
        wanted = getattr(task, "keep_failed", None)
        return self._settings.are_kept if wanted is None else bool(wanted)

    def watch(self, name: str, message: bytes, request: Any, options: dict[str, Any]) -> None:
        """Let the callbacks of a task keep it if it fails.

        Args:
            name: of the list of its message.
            message: its message, as it was fetched.
            request: Celery's `Request`.
            options: what the request passes to the pool; changed here.
        """
        on_result, on_error, on_timeout = options["callback"], options["error_callback"], options["timeout_callback"]
        has_ended = False

        def ended(failed_retval_runtime: tuple[Any, Any, Any]) -> None:
            failed, info, _ = failed_retval_runtime
            if failed and not isinstance(exception_of(info), (*_NO_FAILURES, SystemExit, KeyboardInterrupt)):
                self._add(name, message, request, exception_of(info), info)
            on_result(failed_retval_runtime)

        def died(info: Any) -> None:
            nonlocal has_ended
            has_ended = True
            exc = exception_of(info)
            told: list[str] = []

            def on_failure(task_id: str, **kwargs: Any) -> None:
                told.append(task_id)

            signals.task_failure.connect(on_failure)
            try:
                on_error(info)
            except Exception:  # its result cannot be stored, and it is acknowledged all the same
                if not isinstance(exc, (*_NO_FAILURES, MemoryError)):
                    self._add(name, message, request, exc, info)
                raise
            finally:
                signals.task_failure.disconnect(on_failure)
            if request.id in told and not isinstance(exc, _NO_FAILURES):
                self._add(name, message, request, exc, info)

        def timed_out(soft: bool, timeout: float) -> None:
            on_timeout(soft, timeout)
            # Of greenlets: a child process that is killed is told before. Celery requeues some.
            if not (soft or has_ended or (request.task.acks_late and not acks_on_timeout(request.task))):
                self._add(name, message, request, TimeLimitExceeded(timeout), None)

        options["callback"], options["error_callback"], options["timeout_callback"] = ended, died, timed_out

    def finish(self) -> None:
        """Write what is left, when the worker has ended its tasks. Never raises."""
        self._ends_at = time.monotonic() + _LAST_S
        thread = self._thread
        if thread is not None:
            self._pending.put(None)
            thread.join(_LAST_S)
        if left := sum(item is not None for item in self._left()):
            logger.error(
                "%s not kept: Redis is away, and the worker ends", plural(left, "failed task is", "failed tasks are")
            )

    def _left(self) -> Iterator[tuple[str, bytes] | None]:
        with suppress(Empty):
            while True:
                yield self._pending.get_nowait()

    def _add(self, name: str, message: bytes, request: Any, exc: BaseException, info: Any) -> None:
        if self._pending.qsize() >= _MOST_PENDING:
            logger.error("Failed task %s[%s] is not kept: too many wait for Redis", request.name, request.id)
            return
        record = redelivery.failed(message, exc, str(getattr(info, "traceback", "")), worker=request.hostname)
        with self._lock:
            self._pending.put((name, record))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="delayq-failures", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        failed = 0  # in a row: one node of a cluster may be away
        while self._connector is not None:
            item: tuple[str, bytes] | None = None
            try:
                with self._connector() as client:
                    while True:
                        item = self._pending.get(timeout=_IDLE_S)
                        if item is None:
                            self._pending.put(None)  # behind what has come back meanwhile
                            if self._pending.qsize() == 1:
                                return
                            continue
                        self._write(hurried(client), *item)
                        self._outage.ends()
                        failed = 0
            except Empty:
                with self._lock:
                    if self._pending.empty():
                        self._thread = None
                        return
            except Exception as exc:
                if item is not None:
                    self._pending.put(item)
                failed += 1
                if time.monotonic() > self._ends_at:
                    return
                if failed >= self._pending.qsize():
                    self._outage.begins(exc)
                    time.sleep(_PAUSE_S)  # the worker may be about to end, when an outage has no pauses

    def _write(self, client: Any, name: str, record: bytes) -> None:
        settings = self._settings
        try:
            keep(QueueKeys.of(name), record=record, most=settings.at_most, kept_ms=settings.for_ms).run(client)
        except exceptions.ResponseError as exc:
            if passing_refusal(exc):
                raise
            logger.error("A failed task of %r is not kept: %s", name, exc)
            return
        self._on_kept(name, record)


def acks_on_timeout(task: Any) -> bool:
    """Return whether a hard time limit acknowledges a task with `acks_late`; otherwise Celery requeues it."""
    wanted = getattr(task, "acks_on_timeout", None)  # since 5.7
    return bool(task.acks_on_failure_or_timeout if wanted is None else wanted)


def exception_of(info: Any) -> Any:
    """Return the exception of an `ExceptionInfo` of billiard, which may have wrapped it for the way from a child."""
    exc = getattr(info, "exception", None)
    return exc.exc if isinstance(exc, ExceptionWithTraceback) else exc

"""WorkerProgram: Celery's worker, as the connection that it consumes from knows it, see `transport/program.py`.

Undocumented: `LaxBoundedSemaphore._waiting` (of kombu 5.6 and 5.7): the tasks that wait for a free process.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from logging import getLogger
from typing import Any

import redis
from celery.concurrency.solo import TaskPool as SoloPool
from celery.worker import state
from kombu.serialization import prepare_accept_content
from redis import exceptions

from celery_delayq.basics.errors import DeliveryLimitReached
from celery_delayq.metrics.flusher import Flusher
from celery_delayq.metrics.recorder import Recorder
from celery_delayq.options.settings import settings_of
from celery_delayq.queue.connections import CONNECTION_ERRORS
from celery_delayq.queue.dead_letter import DELIVERY_LIMIT, NOT_AN_ENTRY, DeadLetter, unpack
from celery_delayq.queue.delayed_queue import DelayedQueue
from celery_delayq.queue.scripts import Transferred
from celery_delayq.schedule.loop import PlannerLoop
from celery_delayq.signals import dead_letter
from celery_delayq.transport.connector import Connector
from celery_delayq.transport.messages import decode_task, request_of
from celery_delayq.transport.program import Program
from celery_delayq.worker.failures import Failures
from celery_delayq.worker.handover import Handover
from celery_delayq.worker.invalid_task import defect_of, late_defect_of

logger = getLogger(__name__)

#: The attribute of Celery's consumer that has it.
_ATTRIBUTE = "delayq_program"


class Counting:
    """What a worker counts for metrics, from its start to its end, over all of its connections.

    One for each worker. It belongs to the main thread.
    """

    def __init__(self) -> None:
        self.recorder = Recorder()
        self._flusher: Flusher | None = None
        self._connector: Connector | None = None

    def attach(self, connection: Any) -> None:
        """Count what a kombu connection does; its transfer loops add the numbers to Redis."""
        if self._flusher is None:
            channel = connection.default_channel
            self._flusher = Flusher(self.recorder, channel.global_keyprefix, channel.first_list)
        self._connector = Connector(connection.transport.client)

    def flush(self, client: redis.Redis, serves: Callable[[str], bool]) -> None:
        """Add what was counted, see `Flusher.flush`."""
        if self._flusher is not None:
            self._flusher.flush(client, serves)

    def finish(self) -> None:
        """Add what is left, when the worker has ended its tasks. Never raises."""
        if self._flusher is None or self._connector is None or not self._flusher.has_pending:
            return
        try:
            with self._connector() as client:
                self._flusher.flush_everywhere(client)
        except (*CONNECTION_ERRORS, exceptions.ResponseError) as exc:
            logger.info("What this worker counted last is missing in the metrics: %s", exc)


class WorkerProgram(Program):
    """One for each worker; it outlives the worker's connections.

    Args:
        consumer: Celery's `Consumer`, before its pool is started.
    """

    fetches_ahead = True

    def __init__(self, consumer: Any) -> None:
        conf = consumer.app.conf
        self.settings = settings_of(consumer.app)
        #: None if the setting `delayq_metrics` is off.
        self.counting = Counting() if self.settings.metrics else None
        self.failures = Failures(self.settings.failed, self.tell_dead)
        self.handover = Handover(
            consumer.pool,
            cancels_late=conf.worker_cancel_long_running_tasks_on_connection_loss,
            on_hand_over=None if self.counting is None else self.counting.recorder.on_hand_over,
            failures=self.failures,
        )
        #: Plans periodic tasks; None if this worker does not.
        self.planner: PlannerLoop | None = None
        # A task in the main thread would let the acknowledgements of those before it wait. So would greenlets.
        self.acknowledges_together = consumer.hub is not None and not isinstance(consumer.pool, SoloPool)
        self._accept = prepare_accept_content(conf.accept_content)
        self._consumer = consumer
        #: Returns the queue and the priority of a list.
        self._parse: Callable[[str], tuple[str, int]] = lambda name: (name, 0)

    def running_tags(self) -> set[str]:
        """Return the delivery tags of running tasks, see `Program`."""
        return self.handover.delivery_tags()

    def tasks_waiting(self) -> int:
        """Return how many tasks wait for a process of the pool, see `Program`.

        Only pools on an event loop have a semaphore for their processes.
        """
        semaphore = getattr(self._consumer.controller, "semaphore", None)
        return 0 if semaphore is None else len(semaphore._waiting)

    def most_ahead(self) -> int:
        """Return the prefetch limit, which eta tasks raise."""
        return self._consumer.initial_prefetch_count or 0

    def is_busy(self) -> bool:
        """Return whether tasks run or wait for the pool. Tasks that wait for an eta or a rate limit do not count.

        Celery 5.6 forgets that it has reserved those that run when the connection is lost.
        """
        return bool(state.reserved_requests) or bool(state.active_requests)

    def may_wait(self, headers: dict[str, Any]) -> bool:
        """Return False for a revoked task: Celery drops it at delivery, and may have forgotten at its eta."""
        return headers["id"] not in state.revoked

    def defect_of(self, message: dict[str, Any]) -> str | None:
        """Return what is wrong with a message, see `Program`."""
        return defect_of(message, accept=self._accept)

    def late_defect_of(self, message: dict[str, Any]) -> str | None:
        """Return what would show too late, see `Program`."""
        return late_defect_of(message, accept=self._accept)

    def forget(self, delivery_tag: str) -> bool:
        """Forget a task with a defect, see `Handover.forget`."""
        return self.handover.forget(delivery_tag)

    def attach(self, connection: Any) -> None:
        """Count what a kombu connection does, and use its parameters."""
        self._parse = connection.default_channel.parse
        self.failures.attach(connection)
        if self.counting is not None:
            self.counting.attach(connection)

    def finish(self) -> None:
        """Write what is left, when the worker has ended its tasks. Never raises."""
        self.failures.finish()
        self.errands.finish()
        if self.counting is not None:
            self.counting.finish()

    def on_dead_letter(self, name: str, record: bytes) -> None:
        """Send the signal, of a failed task, too; let one that was delivered too often fail, if the app wants that.

        So nobody waits for its result for ever: it is FAILURE, with DeliveryLimitReached. Its chord, chain and errbacks
        are told. Only a task message of Celery's protocol 2 has a result. Never raises.
        """
        letter = unpack(name, 0, "", record)
        if letter.reason == DELIVERY_LIMIT and self.settings.fail_dead_letters:
            self._fail(letter)
        self._tell(letter)

    def _fail(self, letter: DeadLetter) -> None:
        task_message = decode_task(letter.message)
        if task_message is None:
            return
        headers = task_message["headers"]
        task_id, task = headers["id"], headers["task"]
        why = letter.error or (
            f"it was delivered {letter.deliveries} times without an acknowledgement: it probably killed its workers"
        )
        error = DeliveryLimitReached(
            f"task {task}[{task_id}]: {why}. Its message is in the dead list of {letter.list_name!r}"
        )
        app = self._consumer.app
        try:
            request = request_of(app, task_message, unpickles=True)
            app.backend.mark_as_failure(task_id, error, request=request, store_result=not headers.get("ignore_result"))
        except Exception as exc:
            logger.error("Cannot store the failure of task %s[%s]: %s: %s", task, task_id, type(exc).__name__, exc)

    def _tell(self, letter: DeadLetter) -> None:
        dead_letter.send(
            sender=self._consumer.app,
            queue=self._parse(letter.list_name)[0],
            reason=letter.reason,
            task=letter.task,
            task_id=letter.task_id,
            error=letter.error,
            traceback=letter.traceback,
            message=letter.message,
        )

    def on_count(self, name: str, what: str, number: int) -> None:
        """Count what happened to messages."""
        if self.counting is not None:
            self.counting.recorder.add(name, what, number)

    def may_transfer(self) -> bool:
        """Return whether the planner has seen what nobody has transferred yet."""
        planner = self.planner  # another thread may stop it
        return planner is None or planner.wait_until_planned(0.0)

    def on_pass(self, queue: DelayedQueue, done: Transferred) -> None:
        """Count what was transferred, and tell of dead letters."""
        if self.counting is not None:
            self.counting.recorder.on_pass(queue, done)
        for _ in range(done.dead):
            letter = DeadLetter(queue.name, done.now, "", NOT_AN_ENTRY, b"")
            self.errands.add(partial(self._tell, letter))

    def chores(self, client: redis.Redis, serves: Callable[[str], bool]) -> None:
        """Add to Redis what was counted."""
        if self.counting is not None:
            self.counting.flush(client, serves)


def program_of(consumer: Any) -> WorkerProgram:
    """Return the program of a Celery consumer, the same one each time."""
    if not hasattr(consumer, _ATTRIBUTE):
        setattr(consumer, _ATTRIBUTE, WorkerProgram(consumer))
    program: WorkerProgram = getattr(consumer, _ATTRIBUTE)
    return program

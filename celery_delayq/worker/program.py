"""WorkerProgram: Celery's worker, as the connection that it consumes from knows it, see `transport/program.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import redis
from celery.concurrency.solo import TaskPool as SoloPool
from celery.worker import state
from kombu.serialization import prepare_accept_content

from celery_delayq.options.settings import settings_of
from celery_delayq.queue.delayed_queue import DelayedQueue
from celery_delayq.queue.scripts import Transferred
from celery_delayq.schedule.loop import PlannerLoop
from celery_delayq.transport.program import Program
from celery_delayq.worker.counting import Counting
from celery_delayq.worker.failures import fail_task
from celery_delayq.worker.handover import Handover, is_busy, tasks_waiting
from celery_delayq.worker.invalid_task import defect_of, late_defect_of

#: The attribute of Celery's consumer that has it.
_ATTRIBUTE = "delayq_program"


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
        self.handover = Handover(
            consumer.pool,
            cancels_late=conf.worker_cancel_long_running_tasks_on_connection_loss,
            on_hand_over=None if self.counting is None else self.counting.recorder.on_hand_over,
        )
        #: Plans periodic tasks; None if this worker does not.
        self.planner: PlannerLoop | None = None
        # A task in the main thread would let the acknowledgements of those before it wait. So would greenlets.
        self.acknowledges_together = consumer.hub is not None and not isinstance(consumer.pool, SoloPool)
        self._accept = prepare_accept_content(conf.accept_content)
        self._consumer = consumer

    def running_tags(self) -> set[str]:
        """Return the delivery tags of running tasks, see `Program`."""
        return self.handover.delivery_tags()

    def tasks_waiting(self) -> int:
        """Return how many tasks wait for a process of the pool, see `Program`."""
        return tasks_waiting(self._consumer.controller)

    def most_ahead(self) -> int:
        """Return the prefetch limit, which eta tasks raise."""
        return self._consumer.initial_prefetch_count or 0

    def is_busy(self) -> bool:
        """Return whether tasks run or wait for the pool, see `Program`."""
        return is_busy()

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

    def on_dead_letter(self, name: str, message: bytes) -> None:
        """Let a task that is set aside fail, if the app wants that."""
        if self.settings.fail_dead_letters:
            fail_task(self._consumer.app, name, message)

    def on_count(self, name: str, what: str, number: int) -> None:
        """Count what happened to messages."""
        if self.counting is not None:
            self.counting.recorder.add(name, what, number)

    def may_transfer(self) -> bool:
        """Return whether the planner has seen what nobody has transferred yet."""
        planner = self.planner  # another thread may stop it
        return planner is None or planner.wait_until_planned(0.0)

    def on_pass(self, queue: DelayedQueue, done: Transferred) -> None:
        """Count what was transferred."""
        if self.counting is not None:
            self.counting.recorder.on_pass(queue, done)

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

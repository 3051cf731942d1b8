"""Scheduler: the scheduler of `celery beat` and `celery worker -B`. It runs one more planner; any number may run.

With `beat_scheduler = "celery_delayq.beat:Scheduler"` every worker plans, so no beat process is needed.
"""

from __future__ import annotations

from typing import Any

from celery import beat
from celery.utils.log import get_logger

from celery_delayq.metrics.flusher import Flusher
from celery_delayq.metrics.recorder import Recorder
from celery_delayq.options.scheduler import PlansInWorkers
from celery_delayq.options.settings import settings_of
from celery_delayq.schedule.definition import Definition
from celery_delayq.schedule.loop import PlannerLoop
from celery_delayq.schedule.service import planner_loop
from celery_delayq.transport import register

logger = get_logger("celery.beat")


def log_sent(definition: Definition) -> None:
    """Log that a task was sent, in the words of stock beat."""
    logger.info("Scheduler: Sending due task %s (%s)", definition.name, definition.task)


class Scheduler(PlansInWorkers, beat.Scheduler):
    """Plans periodic tasks in a thread, while beat itself sleeps.

    The schedule file (`-s`) is accepted but not used. `--max-interval` sets how often beat checks that the thread
    still runs.
    """

    #: The thread; None until the first tick.
    loop: PlannerLoop | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        register()  # the app may have no DelayQ
        super().__init__(*args, **kwargs)

    def setup_schedule(self) -> None:
        """Do nothing: the planner reads the configuration itself."""

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Make sure that the planner runs. Returns the seconds until the next tick."""
        if self.loop is None or not self.loop.is_alive():
            self.loop = planner_loop(self.app, on_sent=log_sent, **self._counting())
            self.loop.start()
        return float(self.max_interval)

    def _counting(self) -> dict[str, Any]:
        """Return options of the planner's loop, so that it counts missed runs, and adds them to Redis itself."""
        if not settings_of(self.app).metrics:
            return {}
        recorder = Recorder()
        with self.app.connection_for_write() as connection:
            flusher = Flusher(recorder, connection.transport_options.get("global_keyprefix", ""))
        return {"on_missed": recorder.on_missed, "chores": flusher.flush_everywhere}

    def close(self) -> None:
        """Stop the planner."""
        if self.loop is not None:
            self.loop.stop()
        super().close()

    @property
    def info(self) -> str:
        """The lines about the scheduler in beat's banner."""
        return "    . schedule -> in Redis, delayq:schedule"

"""Runs a message as a worker would, in this process, with Celery's own tracer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from billiard.einfo import ExceptionInfo
from celery import states
from celery.app.trace import build_tracer
from celery.worker import state as worker_state
from celery.worker.request import Request
from kombu.serialization import prepare_accept_content

from celery_delayq.transport.messages import message_of


@dataclass(frozen=True)
class TaskRun:
    """One run of a task. A task that is retried has several.

    Attributes:
        id: task id.
        name: name of the task.
        state: how it ended: `SUCCESS`, `FAILURE`, `RETRY`; `REVOKED`, if it had expired and did not run; `REJECTED` or
            `IGNORED`.
        result: what it returned, or the exception.
        args: its positional arguments.
        kwargs: its keyword arguments.
    """

    id: str
    name: str
    state: str
    result: Any
    args: Any = field(repr=False)
    kwargs: Any = field(repr=False)

    @property
    def error(self) -> BaseException | None:
        """The exception with which it failed for good; None if it did not."""
        return self.result if self.state == states.FAILURE else None


def run(app: Any, message: dict[str, Any]) -> TaskRun:
    """Run the task of a message: as a worker does, with its retries, result, callbacks and signals.

    Time limits and rate limits do not hold.

    Args:
        app: the Celery app.
        message: as `messages.decode_task` returns it.

    Source: Celery 5.7 `celery.worker.request.Request.execute`, which does not tell how a task has ended. Differences:
    the tracer is a new one, as in `Task.apply`; a task that has expired is not kept in mind, since a later test may use
    its id.

    Raises:
        LookupError: the app has no such task.
    """
    task = _task_of(app, message["headers"]["task"])
    received = message_of(message, prepare_accept_content(app.conf.accept_content))
    request = Request(received, app=app, task=task)
    about = {"id": request.id, "name": request.type, "args": request.args, "kwargs": request.kwargs}
    if request.revoked():
        worker_state.revoked.discard(request.id)
        return TaskRun(**about, state=states.REVOKED, result=None)
    _, _, embed = received.payload
    context = {**request.request_dict, "is_eager": False, **(embed or {})}
    trace = build_tracer(task.name, task, app.loader, request.hostname, app=app)
    ended = trace(request.id, request.args, request.kwargs, context)
    if ended.info is not None:
        return TaskRun(**about, state=ended.info.state, result=ended.info.retval)
    if isinstance(ended.retval, ExceptionInfo):  # outside of the task: its result cannot be stored, for example
        return TaskRun(**about, state=states.FAILURE, result=ended.retval.exception)
    return TaskRun(**about, state=states.SUCCESS, result=ended.retval)


def _task_of(app: Any, name: str) -> Any:
    if name not in app.tasks:
        app.loader.import_default_modules()  # as a worker does when it starts
    if name not in app.tasks:
        raise LookupError(f"the app {app.main!r} has no task {name!r}: import the module that defines it")
    return app.tasks[name]

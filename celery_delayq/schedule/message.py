"""The message of an occurrence: built by Celery as beat would send it, and caught instead of sent.

So routing, headers, options, serializers and signals are Celery's. What counts from the moment of sending counts from
the occurrence: `countdown` and `expires`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from celery.beat import BeatLazyFunc
from celery.utils import uuid
from dateutil.parser import isoparse

from celery_delayq.codec import message_key
from celery_delayq.errors import DelayqError
from celery_delayq.schedule.entry import Definition
from celery_delayq.schedule.occurrences import to_datetime
from celery_delayq.schedule.scripts import Offer
from celery_delayq.transport.capture import capture


class CannotSend(DelayqError, RuntimeError):
    """The message of an occurrence cannot be offered to one delayed queue; says why."""


@dataclass(frozen=True)
class Occurrence:
    """A message that was built.

    Attributes:
        queue: the broker list for which it is meant; None if the task sends none.
        task_id: its id.
        offer: what is stored; None if the task sends none.
    """

    queue: str | None
    task_id: str
    offer: Offer | None


def build(
    app: Any, producer: Any, definition: Definition, at_ms: int, *, jitter_ms: int = 0, max_lateness_s: float = 0.0
) -> Occurrence:
    """Let Celery build the message of an occurrence.

    Lazily evaluated arguments are evaluated now.

    Args:
        app: the Celery app.
        producer: what Celery publishes with.
        definition: of the entry.
        at_ms: the occurrence, unix time in ms.
        jitter_ms: how long the message is put off.
        max_lateness_s: so long after its due time the task expires, in seconds; 0: it does not.

    Raises:
        CannotSend: the app runs tasks eagerly; the message would go to no queue, or to several.
        Exception: what Celery or the task's `apply_async` raises.

    Source: Celery 5.7 `celery.beat.Scheduler.apply_async`.
    """
    if app.conf.task_always_eager:
        raise CannotSend("task_always_eager is set: tasks run where they are called, and none is sent")
    options = dict(definition.options)
    options["headers"] = {**(options.get("headers") or {}), "celery_beat_task": True}
    task_id = options.setdefault("task_id", uuid())
    due_ms = at_ms + jitter_ms + round(float(options.pop("countdown", None) or 0) * 1000)
    if options.get("eta") is None:
        options["eta"] = to_datetime(due_ms)
    expires = _expires(options.get("expires"), at_ms, due_ms, max_lateness_s)
    if expires is not None:
        options["expires"] = expires
    args = [_evaluate(value) for value in definition.args]
    kwargs = {name: _evaluate(value) for name, value in definition.kwargs.items()}
    task = app.tasks.get(definition.task)
    with capture(task_id) as net:
        if task is not None:
            task.apply_async(args, kwargs, producer=producer, **options)
        else:
            app.send_task(definition.task, args, kwargs, producer=producer, **options)
    if net.broadcast or len(net.messages) > 1:
        raise CannotSend(
            "its message would go to several queues: a periodic task needs one, so that each occurrence is sent once"
        )
    if not net.messages:
        return Occurrence(None, task_id, None)
    (caught,) = net.messages
    due_ms = due_ms if caught.due_ms is None else caught.due_ms
    return Occurrence(caught.broker_list, task_id, Offer(message_key(task_id), due_ms, caught.payload))


def _evaluate(value: Any) -> Any:
    return value() if isinstance(value, BeatLazyFunc) else value


def _expires(given: Any, at_ms: int, due_ms: int, max_lateness_s: float) -> Any:
    """Return when the message expires: seconds count from the occurrence, and `max_lateness` from the due time."""
    if isinstance(given, (int, float)):
        given = to_datetime(at_ms) + timedelta(seconds=given)
    elif isinstance(given, str):
        given = isoparse(given)
    if not max_lateness_s:
        return given
    pointless = to_datetime(due_ms) + timedelta(seconds=max_lateness_s)
    if given is None:
        return pointless
    return min(given if given.tzinfo else given.replace(tzinfo=pointless.tzinfo), pointless)

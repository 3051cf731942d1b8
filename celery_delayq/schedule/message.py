"""The message of an occurrence: Celery builds it as for beat, and we capture it instead of sending it.

So routing, headers, options, serializers and signals are Celery's. `countdown` and `expires` count from the occurrence
and not from the moment of sending. A message for which that cannot be had must be built when it is due, see
`Occurrence.can_wait`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from numbers import Real
from typing import Any

from celery.beat import BeatLazyFunc
from celery.utils import uuid
from dateutil.parser import isoparse

from celery_delayq.errors import DelayqError
from celery_delayq.publishing.hooks import has_no_receivers
from celery_delayq.queue.codec import message_key
from celery_delayq.schedule.definition import Definition
from celery_delayq.schedule.occurrences import to_datetime
from celery_delayq.schedule.scripts import Offer
from celery_delayq.schedule.template import Arguments, MessageTemplate, When
from celery_delayq.transport.capture import Caught, capture

#: Size of the cache of templates, and of the cache of arguments.
_MOST_TEMPLATES, _MOST_ARGUMENTS = 1000, 10_000


class CannotSend(DelayqError, RuntimeError):
    """The message of an occurrence cannot be offered to exactly one delayed queue. The message says why."""


@dataclass(frozen=True)
class Occurrence:
    """A message that was built.

    Attributes:
        queue: its broker list; None if the task sends no message.
        task_id: id of the task.
        offer: the message to store; None if the task sends no message.
        can_wait: whether the message may be stored before its occurrence. Not if it claims a unique key. Not if it has
            other times than it was given: code of the app, or an option, set them, and they may count from now.
    """

    queue: str | None
    task_id: str
    offer: Offer | None
    can_wait: bool = True


class Builder:
    """Builds the messages of occurrences. For one thread at a time.

    Celery builds the first message of a task with certain options. Messages that differ only in ids, times and
    arguments are made from it (see `MessageTemplate`), unless a hook looks at each message.

    Args:
        app: the Celery app.
        producer: a producer for Celery, on a channel of our transport.
    """

    def __init__(self, app: Any, producer: Any) -> None:
        self._app = app
        self._producer = producer
        #: Keyed by task, identity of its options, and kind of expiry. The value keeps the options alive.
        self._templates: dict[tuple[str, int, str], tuple[Any, MessageTemplate]] = {}
        #: Keyed by the identity of definitions. The value keeps the definition alive.
        self._arguments: dict[int, tuple[Definition, Arguments]] = {}

    def build(
        self, definition: Definition, at_ms: int, *, jitter_ms: int = 0, max_lateness_s: float = 0.0
    ) -> Occurrence:
        """Build the message of an occurrence.

        Lazily evaluated arguments are evaluated now.

        Args:
            definition: definition of the entry.
            at_ms: the occurrence, unix time in ms.
            jitter_ms: delay of the message, in ms.
            max_lateness_s: the task expires this long after its due time, in seconds; 0 means never.

        Raises:
            CannotSend: the app runs tasks eagerly, or the message would go to no queue or to several queues.
            Exception: any exception of Celery or of the task's `apply_async`.
        """
        when = _when(self._app.tasks.get(definition.task), definition, at_ms, jitter_ms, max_lateness_s)
        key = (definition.task, id(definition.options), _kind_of(when.expires))
        found = self._templates.get(key)
        if found is None or not has_no_receivers():
            return self._build_first(definition, key, when)
        template = found[1]
        arguments = self._arguments_of(template, definition)
        task_id = uuid()
        offer = Offer(message_key(task_id), when.due_ms, template.payload(arguments, task_id, when))
        return Occurrence(template.broker_list, task_id, offer)

    def _arguments_of(self, template: MessageTemplate, definition: Definition) -> Arguments:
        known = self._arguments.get(id(definition))
        if known is not None:
            return known[1]
        arguments = template.arguments(*_evaluated(definition))
        given = definition.args or definition.kwargs
        if given and len(self._arguments) < _MOST_ARGUMENTS and not definition.is_lazy:
            self._arguments[id(definition)] = definition, arguments
        return arguments

    def _build_first(self, definition: Definition, key: tuple[str, int, str], when: When) -> Occurrence:
        given = _evaluated(definition)
        occurrence, caught = _let_celery_build(self._app, self._producer, definition, given, when)
        if caught is not None and occurrence.can_wait and key[2] != "naive" and has_no_receivers():
            template = MessageTemplate.of(self._app, self._producer.channel, definition, given, when, caught)
            if template is not None:
                if len(self._templates) >= _MOST_TEMPLATES:
                    self._templates.clear()
                self._templates[key] = definition.options, template
        return occurrence


def _let_celery_build(
    app: Any, producer: Any, definition: Definition, given: tuple[Sequence[Any], Mapping[str, Any]], when: When
) -> tuple[Occurrence, Caught | None]:
    """Let Celery build a message. Return it, and also the captured raw form.

    Source: Celery 5.7 `celery.beat.Scheduler.apply_async`.
    """
    if app.conf.task_always_eager:
        raise CannotSend(
            "cannot send: task_always_eager is set, so tasks run in the caller. Unset it to plan periodic tasks"
        )
    options = dict(definition.options)
    options["headers"] = {**(options.get("headers") or {}), "celery_beat_task": True}
    options.pop("countdown", None)
    options["retry"] = False  # kombu would close the planner's connection, and nothing is sent here
    task_id = options.setdefault("task_id", uuid())
    if options.get("eta") is None:
        options["eta"] = when.eta
    if when.expires is not None or "expires" in options:
        options["expires"] = when.expires
    args, kwargs = given
    task = app.tasks.get(definition.task)
    with capture(task_id) as captured:
        if task is not None:
            task.apply_async(args, kwargs, producer=producer, **options)
        else:
            app.send_task(definition.task, args, kwargs, producer=producer, **options)
    if captured.broadcast or len(captured.messages) > 1:
        raise CannotSend(
            "its message would go to several queues, but each occurrence must be sent once. Route the task to one queue"
        )
    if not captured.messages:
        return Occurrence(None, task_id, None), None
    (caught,) = captured.messages
    due_ms = when.due_ms if caught.due_ms is None else caught.due_ms
    offer = Offer(message_key(task_id), due_ms, caught.payload, task_id, caught.claim)
    headers = caught.message["headers"]
    has_its_times = due_ms == when.due_ms and headers.get("expires") == (when.expires and when.expires.isoformat())
    can_wait = caught.claim is None and (has_its_times or "id" not in headers)  # protocol 1: they are in the body
    return Occurrence(caught.broker_list, task_id, offer, can_wait), caught


def _when(task: Any, definition: Definition, at_ms: int, jitter_ms: int, max_lateness_s: float) -> When:
    due_ms = at_ms + jitter_ms + definition.countdown_ms
    expires = _expires(definition.expires_of(task), at_ms, due_ms, max_lateness_s)
    return When(due_ms, to_datetime(due_ms), expires)


def _kind_of(expires: Any) -> str:
    return "never" if expires is None else "naive" if getattr(expires, "tzinfo", None) is None else "aware"


def _evaluated(definition: Definition) -> tuple[list[Any], dict[str, Any]]:
    args = [_evaluate(value) for value in definition.args]
    return args, {name: _evaluate(value) for name, value in definition.kwargs.items()}


def _evaluate(value: Any) -> Any:
    return value() if isinstance(value, BeatLazyFunc) else value


def _expires(given: Any, at_ms: int, due_ms: int, max_lateness_s: float) -> Any:
    """Return when the message expires. Seconds count from the occurrence; `max_lateness` counts from the due time."""
    if isinstance(given, Real):
        given = to_datetime(at_ms) + timedelta(seconds=float(given))
    elif isinstance(given, str):
        given = isoparse(given)
    if not max_lateness_s:
        return given
    pointless = to_datetime(due_ms) + timedelta(seconds=max_lateness_s)
    if given is None:
        return pointless
    return min(given if given.tzinfo else given.replace(tzinfo=pointless.tzinfo), pointless)

"""The message of an occurrence: Celery builds it as for beat, and we capture it instead of sending it.

So routing, headers, options, serializers and signals are Celery's. `countdown` and `expires` count from the occurrence
and not from the moment of sending. A message for which that cannot be had must be built when it is due, see
`Message.can_wait`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from numbers import Real
from typing import Any, TypeAlias

from celery.beat import BeatLazyFunc
from celery.result import AsyncResult
from celery.utils import uuid
from dateutil.parser import isoparse
from kombu.serialization import dumps as serialize
from kombu.serialization import registry
from kombu.utils.json import dumps

from celery_delayq.basics.errors import DelayqError
from celery_delayq.publishing.hooks import has_no_hooks, has_no_receivers
from celery_delayq.publishing.template import OF_ALL, TEXTS, TaskTemplate
from celery_delayq.schedule.definition import OPTION, Definition
from celery_delayq.schedule.occurrences import to_datetime
from celery_delayq.schedule.scripts import Message
from celery_delayq.transport.capture import Caught, capture
from celery_delayq.transport.messages import DUE_PROPERTY

#: Maximum number of cached templates, and of the arguments that each keeps.
_MOST_TEMPLATES, _MOST_ARGUMENTS = 1000, 10_000

#: Options that allow a template. Any other option may apply to a single message.
_SUITABLE = OF_ALL - {"compression"} | {"headers", "countdown", "expires", OPTION}


class CannotSend(DelayqError, RuntimeError):
    """The message of an occurrence cannot be offered to exactly one delayed queue. The message says why."""


#: The evaluated arguments and keyword arguments of a task.
Arguments: TypeAlias = tuple[Sequence[Any], Mapping[str, Any]]

#: The same as a message has it: its body, and headers.
_Stored: TypeAlias = tuple[str, dict[str, str]]


@dataclass(frozen=True)
class _When:
    """The times of a message: when its task is due (unix time in ms, and the same as its eta), and when it expires."""

    due_ms: int
    eta: datetime
    expires: Any

    @classmethod
    def of(cls, task: Any, definition: Definition, at_ms: int, max_lateness_s: float) -> _When:
        """Return the times for an occurrence."""
        due_ms = at_ms + definition.delay_ms(at_ms)
        return cls(due_ms, to_datetime(due_ms), _expires(definition.expires_of(task), at_ms, due_ms, max_lateness_s))


class Builder:
    """Builds the messages of occurrences. For one thread at a time.

    Celery builds the first message of a task with certain options. Messages that differ only in ids, times and
    arguments are made from it, unless a hook looks at each message.

    Args:
        app: the Celery app.
        producer: a producer for Celery, on a channel of our transport.
    """

    def __init__(self, app: Any, producer: Any) -> None:
        self._app = app
        self._producer = producer
        #: Keyed by task, identity of its options, and kind of expiry. The value keeps the options alive.
        self._templates: dict[tuple[str, int, str], tuple[Any, _MessageTemplate]] = {}

    def build(self, definition: Definition, at_ms: int, max_lateness_s: float = 0.0) -> Message | None:
        """Build the message of an occurrence. Returns None if the task sends none.

        Lazily evaluated arguments are evaluated now.

        Args:
            definition: definition of the entry.
            at_ms: the occurrence, unix time in ms.
            max_lateness_s: the task expires this long after its due time, in seconds; 0 means never.

        Raises:
            CannotSend: the app runs tasks eagerly, or the message would go to no queue or to several queues.
            Exception: any exception of Celery or of the task's `apply_async`.
        """
        task = self._app.tasks.get(definition.task)
        when = _When.of(task, definition, at_ms, max_lateness_s)
        key = (definition.task, id(definition.options), _kind_of(when.expires))
        found = self._templates.get(key)
        if found is not None and has_no_receivers():
            return found[1].message(definition, when)
        given = evaluated(definition)
        built = _let_celery_build(self._app, self._producer, definition, given, when)
        if built is None:
            return None
        message, caught = built
        if message.can_wait and key[2] != "naive" and has_no_receivers():
            template = _MessageTemplate.of(self._app, self._producer.channel, definition, given, when, caught)
            if template is not None:
                if len(self._templates) >= _MOST_TEMPLATES:
                    self._templates.clear()
                self._templates[key] = definition.options, template
        return message


class _MessageTemplate(TaskTemplate):
    """Makes whole messages of one task with the same options, after one that was caught."""

    def __init__(self, app: Any, channel: Any, name: str, caught: Caught) -> None:
        super().__init__(app, name, caught.message["headers"])
        self._channel = channel
        self._caught = caught
        self._serializer = registry.type_to_name.get(caught.message["content-type"])
        #: Identity of a definition -> itself, so that it stays alive, and its arguments; 0 for all without arguments.
        self._arguments: dict[int, tuple[Definition, _Stored]] = {}

    @classmethod
    def of(
        cls, app: Any, channel: Any, definition: Definition, given: Arguments, when: _When, caught: Caught
    ) -> _MessageTemplate | None:
        """Return the template of a message that Celery just built, or None if it cannot have a template.

        It has none if a hook looks at each task as it is sent (see `hooks`), or if the template would make a different
        message in its place, whatever the reason.
        """
        task = app.tasks.get(definition.task)
        if not _SUITABLE.issuperset(definition.options) or not has_no_hooks(app, task):
            return None
        template = cls(app, channel, definition.task, caught)
        properties, headers = caught.message["properties"], caught.message["headers"]
        if "id" not in headers or "compression" in headers or "delivery_tag" not in properties:  # or protocol 1
            return None
        if template._serializer is None:
            return None
        own = {name: properties[name] for name in ("delivery_tag", "expiration") if name in properties}
        made = template._payload(caught.message_id, template._stored(given), when, own)
        return template if made == caught.payload else None

    def message(self, definition: Definition, when: _When) -> Message:
        """Return the message of another occurrence."""
        key = id(definition) if definition.args or definition.kwargs else 0
        known = self._arguments.get(key) or (definition, self._stored(evaluated(definition)))
        if not definition.is_lazy and len(self._arguments) < _MOST_ARGUMENTS:
            self._arguments[key] = known
        task_id, own = uuid(), {"delivery_tag": uuid()}
        if when.expires is not None:
            left_s = (when.expires - datetime.now(timezone.utc)).total_seconds()
            own["expiration"] = str(int(max(left_s, 0) * 1000))
        return Message(self._caught.broker_list, task_id, when.due_ms, self._payload(task_id, known[1], when, own))

    def _stored(self, given: Arguments) -> _Stored:
        """Return the body of a message as it stores it, and the headers that show the arguments."""
        body, headers = self.make("", *given)
        text = serialize(body, serializer=self._serializer)[2]
        encoding = self._caught.message["properties"].get("body_encoding")
        return self._channel.encode_body(text, encoding)[0], {name: headers[name] for name in TEXTS}

    def _payload(self, task_id: str, stored: _Stored, when: _When, own: Mapping[str, Any]) -> bytes:
        shared = self._caught.message
        body, texts = stored
        times = {"eta": when.eta.isoformat(), "expires": when.expires and when.expires.isoformat()}
        headers = {**shared["headers"], "id": task_id, "root_id": task_id, **times, **texts}
        properties = {**shared["properties"], "correlation_id": task_id, DUE_PROPERTY: when.due_ms, **own}
        payload: bytes = dumps({**shared, "body": body, "headers": headers, "properties": properties}).encode()
        return payload


def _let_celery_build(
    app: Any, producer: Any, definition: Definition, given: Arguments, when: _When
) -> tuple[Message, Caught] | None:
    """Let Celery build a message. Return it, and also the captured raw form; None if the task sends none."""
    if app.conf.task_always_eager:
        raise CannotSend(
            "cannot send: task_always_eager is set, so tasks run in the caller. Unset it to plan periodic tasks"
        )
    options = {name: value for name, value in definition.options.items() if name != "countdown"}
    options["retry"] = False  # kombu would close the planner's connection, and nothing is sent here
    task_id = options.setdefault("task_id", uuid())
    if options.get("eta") is None:
        options["eta"] = when.eta
    if when.expires is not None or "expires" in options:
        options["expires"] = when.expires
    with capture(task_id) as captured:
        send(app, definition, given, {**options, "producer": producer})
    if captured.broadcast or len(captured.messages) > 1:
        raise CannotSend(
            "its message would go to several queues, but each occurrence must be sent once. Route the task to one queue"
        )
    if not captured.messages:
        return None
    (caught,) = captured.messages
    due_ms = when.due_ms if caught.due_ms is None else caught.due_ms
    headers = caught.message["headers"]
    has_its_times = due_ms == when.due_ms and headers.get("expires") == (when.expires and when.expires.isoformat())
    can_wait = caught.claim is None and (has_its_times or "id" not in headers)  # protocol 1: they are in the body
    return Message(caught.broker_list, task_id, due_ms, caught.payload, caught.claim, can_wait), caught


def send(app: Any, definition: Definition, given: Arguments, options: Mapping[str, Any]) -> AsyncResult:
    """Send the task of an entry, with these arguments and options.

    Source: Celery 5.7 `celery.beat.Scheduler.apply_async`.
    """
    options = {**options, "headers": {**(options.get("headers") or {}), "celery_beat_task": True}}
    args, kwargs = given
    task = app.tasks.get(definition.task)
    if task is None:
        return app.send_task(definition.task, args, kwargs, **options)
    return task.apply_async(args, kwargs, **options)


def evaluated(definition: Definition) -> Arguments:
    """Return the arguments of an entry; those that are evaluated lazily, now."""
    args = [_evaluate(value) for value in definition.args]
    return args, {name: _evaluate(value) for name, value in definition.kwargs.items()}


def _evaluate(value: Any) -> Any:
    return value() if isinstance(value, BeatLazyFunc) else value


def _kind_of(expires: Any) -> str:
    return "never" if expires is None else "naive" if getattr(expires, "tzinfo", None) is None else "aware"


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

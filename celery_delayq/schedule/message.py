"""The message of an occurrence: as Celery builds it for beat, caught instead of sent.

So routing, headers, options, serializers and signals are Celery's. What counts from the moment of sending counts from
the occurrence: `countdown` and `expires`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from celery.beat import BeatLazyFunc
from celery.utils import uuid
from dateutil.parser import isoparse

from celery_delayq.codec import message_key
from celery_delayq.errors import DelayqError
from celery_delayq.onlookers import nobody_listens
from celery_delayq.schedule.entry import Definition
from celery_delayq.schedule.mould import Arguments, Mould, When
from celery_delayq.schedule.occurrences import to_datetime
from celery_delayq.schedule.scripts import Offer
from celery_delayq.transport.capture import Caught, capture

#: How many moulds, and arguments of how many entries, are kept.
_MOST_MOULDS, _MOST_ARGUMENTS = 1000, 10_000


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


class Builder:
    """Builds the messages of occurrences; for one thread at a time.

    Celery builds the first message of a task with some options. Those that differ from it only in ids, times and
    arguments are made after its model, see `Mould`, if nobody looks at each.

    Args:
        app: the Celery app.
        producer: what Celery publishes with, on a channel of our transport.
    """

    def __init__(self, app: Any, producer: Any) -> None:
        self._app = app
        self._producer = producer
        #: By task, the identity of its options, and how it expires; with the options, so that these live as long.
        self._moulds: dict[tuple[str, int, str], tuple[Any, Mould]] = {}
        #: By the identity of definitions; with these, so that they live as long.
        self._arguments: dict[int, tuple[Definition, Arguments]] = {}

    def build(
        self, definition: Definition, at_ms: int, *, jitter_ms: int = 0, max_lateness_s: float = 0.0
    ) -> Occurrence:
        """Build the message of an occurrence.

        Lazily evaluated arguments are evaluated now.

        Args:
            definition: of the entry.
            at_ms: the occurrence, unix time in ms.
            jitter_ms: how long the message is put off.
            max_lateness_s: so long after its due time the task expires, in seconds; 0: it does not.

        Raises:
            CannotSend: the app runs tasks eagerly; the message would go to no queue, or to several.
            Exception: what Celery or the task's `apply_async` raises.
        """
        when = _when(definition, at_ms, jitter_ms, max_lateness_s)
        key = (definition.task, id(definition.options), _kind_of(when.expires))
        found = self._moulds.get(key)
        if found is None or not nobody_listens():
            return self._build_first(definition, key, when)
        mould = found[1]
        arguments = self._arguments_of(mould, definition)
        task_id = uuid()
        offer = Offer(message_key(task_id), when.due_ms, mould.payload(arguments, task_id, when))
        return Occurrence(mould.broker_list, task_id, offer)

    def _arguments_of(self, mould: Mould, definition: Definition) -> Arguments:
        known = self._arguments.get(id(definition))
        if known is not None:
            return known[1]
        arguments = mould.arguments(*_evaluated(definition))
        given = definition.args or definition.kwargs
        if given and len(self._arguments) < _MOST_ARGUMENTS and not definition.is_lazy:
            self._arguments[id(definition)] = definition, arguments
        return arguments

    def _build_first(self, definition: Definition, key: tuple[str, int, str], when: When) -> Occurrence:
        given = _evaluated(definition)
        occurrence, caught = _let_celery_build(self._app, self._producer, definition, given, when)
        if caught is not None and caught.due_ms == when.due_ms and key[2] != "naive" and nobody_listens():
            mould = Mould.of(self._app, self._producer.channel, definition, given, when, caught)
            if mould is not None:
                if len(self._moulds) >= _MOST_MOULDS:
                    self._moulds.clear()
                self._moulds[key] = definition.options, mould
        return occurrence


def _let_celery_build(
    app: Any, producer: Any, definition: Definition, given: tuple[Sequence[Any], Mapping[str, Any]], when: When
) -> tuple[Occurrence, Caught | None]:
    """Let Celery build a message; return it also as it was caught.

    Source: Celery 5.7 `celery.beat.Scheduler.apply_async`.
    """
    if app.conf.task_always_eager:
        raise CannotSend("task_always_eager is set: tasks run where they are called, and none is sent")
    options = dict(definition.options)
    options["headers"] = {**(options.get("headers") or {}), "celery_beat_task": True}
    options.pop("countdown", None)
    task_id = options.setdefault("task_id", uuid())
    if options.get("eta") is None:
        options["eta"] = when.eta
    options.pop("expires", None)
    if when.expires is not None:
        options["expires"] = when.expires
    args, kwargs = given
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
        return Occurrence(None, task_id, None), None
    (caught,) = net.messages
    due_ms = when.due_ms if caught.due_ms is None else caught.due_ms
    return Occurrence(caught.broker_list, task_id, Offer(message_key(task_id), due_ms, caught.payload)), caught


def _when(definition: Definition, at_ms: int, jitter_ms: int, max_lateness_s: float) -> When:
    due_ms = at_ms + jitter_ms + round(float(definition.options.get("countdown") or 0) * 1000)
    expires = _expires(definition.options.get("expires"), at_ms, due_ms, max_lateness_s)
    return When(due_ms, to_datetime(due_ms), expires)


def _kind_of(expires: Any) -> str:
    return "never" if expires is None else "naive" if getattr(expires, "tzinfo", None) is None else "aware"


def _evaluated(definition: Definition) -> tuple[list[Any], dict[str, Any]]:
    args = [_evaluate(value) for value in definition.args]
    return args, {name: _evaluate(value) for name, value in definition.kwargs.items()}


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

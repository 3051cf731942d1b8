"""The periodic tasks in the configuration of an app."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from celery.app.task import extract_exec_options
from celery.schedules import crontab

from celery_delayq.basics.errors import ConfigurationError
from celery_delayq.basics.text import storable
from celery_delayq.schedule import encoding
from celery_delayq.schedule.definition import Definition, why_invalid

#: The name of Celery's default entry.
CLEANUP = "celery.backend_cleanup"


@dataclass(frozen=True)
class Configured:
    """The periodic tasks in the configuration of an app.

    Attributes:
        app: name of the app.
        entries: name -> definition.
        errors: name -> error, for invalid entries.
        fingerprint: fingerprint of all entries; the same in all processes with the same configuration.
    """

    app: str
    entries: dict[str, Definition] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    fingerprint: str = ""


def configured(app: Any) -> Configured:
    """Read `beat_schedule`, the entries added with `app.add_periodic_task`, and Celery's default entry.

    An invalid entry does not block the others.

    Raises:
        ConfigurationError: `beat_schedule` is not a dict.
    """
    return reader(app)()


def reader(app: Any) -> Callable[[], Configured]:
    """Return a function that does the same as `configured`. With many entries, calling it takes long.

    Raises:
        ConfigurationError: `beat_schedule` is not a dict.

    Source: Celery 5.7 `celery.beat.Scheduler.setup_schedule`, `install_default_entries`.
    """
    # Finalizing sends on_after_configure and on_after_finalize; apps add their entries in these signals.
    app.finalize()
    if not isinstance(app.conf.beat_schedule or {}, Mapping):
        raise ConfigurationError(f"beat_schedule must be a dict of entries, not {app.conf.beat_schedule!r}")
    given: dict[str, Any] = dict(app.conf.beat_schedule or {})
    if app.conf.result_expires and not app.backend.supports_autoexpire:
        cleanup = {
            "task": CLEANUP,
            "schedule": crontab("0", "4", "*", app=app),
            "options": {"expires": 12 * 3600},
        }
        given.setdefault(CLEANUP, cleanup)
    return partial(_read, app, given, _routing(app))


def _read(app: Any, given: Mapping[str, Any], routing: str) -> Configured:
    entries: dict[str, Definition] = {}
    fingerprints: dict[str, str] = {}
    errors: dict[str, str] = {}
    for name, one in given.items():
        try:
            definition = Definition.of(name, _fields(one), app, routing)
            own = _own_options(app, definition.task)
            if own:
                definition = replace(definition, routing=encoding.fingerprint([routing, own]))
            fingerprints[name] = definition.fingerprint
            entries[name] = definition
        except Exception as exc:  # a user's schedule class may raise anything
            errors[storable(str(name))] = why_invalid(exc)
    together = encoding.fingerprint(sorted(fingerprints.items()))
    return Configured(app.main or "", entries, errors, together)


def _fields(entry: Any) -> Any:
    """Return the fields of an entry. Like stock beat, accept a `ScheduleEntry` too."""
    if hasattr(entry, "schedule") and hasattr(entry, "task"):
        return {name: getattr(entry, name) for name in ("task", "schedule", "args", "kwargs", "options")}
    return entry


def _own_options(app: Any, name: str) -> dict[str, Any]:
    """Return the options with which a task sends itself: its queue, its priority, ...; those of the app left out.

    Source: Celery 5.7 `celery.app.task.Task.apply_async`.
    """
    if name not in app.tasks:
        return {}
    usual = {option: app.conf[setting] for option, setting in app.Task.from_config}
    own = extract_exec_options(app.tasks[name])
    return {option: value for option, value in own.items() if value is not None and value != usual.get(option)}


def _routing(app: Any) -> str:
    """Return a fingerprint of the settings that say where and how tasks are sent."""
    names = (
        "task_protocol",
        "task_serializer",
        "task_compression",
        "task_routes",
        "task_default_queue",
        "task_default_exchange",
        "task_default_routing_key",
        "task_default_priority",
        "task_queue_max_priority",
    )
    # Not `app.amqp.queues`: it also gains the queues of `worker -Q`, and each missing queue when a task is sent there.
    declared = app.amqp.Queues(app.conf.task_queues)
    queues = {name: (queue.exchange.name, queue.routing_key) for name, queue in declared.items()}
    return encoding.fingerprint([[app.conf[name] for name in names], queues])

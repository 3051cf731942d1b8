"""The periodic tasks in the configuration of an app."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from celery.schedules import crontab

from celery_delayq.errors import ConfigurationError, InvalidSchedule
from celery_delayq.schedule import encoding
from celery_delayq.schedule.entry import Definition

#: The name of Celery's default entry.
CLEANUP = "celery.backend_cleanup"


@dataclass(frozen=True)
class Configured:
    """What the configuration of an app says.

    Attributes:
        app: the name of the app.
        entries: by name.
        errors: of entries that are wrong, by name.
        fingerprint: of all of it; the same in all processes with the same configuration.
    """

    app: str
    entries: dict[str, Definition] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    fingerprint: str = ""


def configured(app: Any) -> Configured:
    """Read `beat_schedule`, what `app.add_periodic_task` added, and Celery's default entry.

    A wrong entry does not keep the others from running.

    Raises:
        ConfigurationError: `beat_schedule` is no dict.
    """
    return reader(app)()


def reader(app: Any) -> Callable[[], Configured]:
    """Return what does the same later, and takes long if there are many entries.

    Raises:
        ConfigurationError: `beat_schedule` is no dict.

    Source: Celery 5.7 `celery.beat.Scheduler.setup_schedule`, `install_default_entries`.
    """
    # Finalizing sends on_after_configure and on_after_finalize, in which apps add theirs.
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
            fingerprints[name] = definition.fingerprint
            entries[name] = definition
        except InvalidSchedule as exc:
            errors[str(name)] = str(exc.__cause__)
        except Exception as exc:  # what a class of the user's raises
            errors[str(name)] = f"{type(exc).__name__}: {exc}"
    together = encoding.fingerprint(sorted(fingerprints.items()))
    return Configured(app.main or "", entries, errors, together)


def _fields(entry: Any) -> Any:
    """Return the fields of an entry; of a `ScheduleEntry` too, which stock beat takes as well."""
    if hasattr(entry, "schedule") and hasattr(entry, "task"):
        return {name: getattr(entry, name) for name in ("task", "schedule", "args", "kwargs", "options")}
    return entry


def _routing(app: Any) -> str:
    """Return a fingerprint of the settings that decide to which queues tasks go."""
    names = (
        "task_routes",
        "task_default_queue",
        "task_default_exchange",
        "task_default_routing_key",
        "task_default_priority",
        "task_queue_max_priority",
    )
    # Not `app.amqp.queues`: that learns the queues of `worker -Q`, and each that is missing when a task goes there.
    declared = app.amqp.Queues(app.conf.task_queues)
    queues = {name: (queue.exchange.name, queue.routing_key) for name, queue in declared.items()}
    return encoding.fingerprint([[app.conf[name] for name in names], queues])

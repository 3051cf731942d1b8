"""Read the periodic tasks in the tables of django_celery_beat, for migration.

Django is imported only when it is needed.

Source: django_celery_beat 2.9 `models.PeriodicTask`, `schedulers.ModelEntry`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from kombu.utils.json import loads

from celery_delayq.basics.errors import ConfigurationError, InvalidSchedule
from celery_delayq.schedule.configured import configured
from celery_delayq.schedule.definition import Definition
from celery_delayq.schedule.encoding import crontab_line
from celery_delayq.schedule.found import Found, found

#: An interval that is overdue runs this long after the import.
_SOON = timedelta(minutes=1)

_KINDS = ("interval", "crontab", "solar", "clocked")


def entries(app: Any) -> Iterator[Found]:
    """Yield all periodic tasks, sorted by name. Changes nothing.

    Raises:
        ConfigurationError: Django or django_celery_beat cannot be used; `beat_schedule` is not a dict.
    """
    tasks, own = _tasks(), configured(app)
    for task in tasks:
        yield found(task.name, own, partial(_definition, task, app))


def _tasks() -> list[Any]:
    try:
        import django
        from django.apps import apps
        from django.core.exceptions import ImproperlyConfigured
        from django.db import Error

        if not apps.ready:
            django.setup()
        model = apps.get_model("django_celery_beat", "PeriodicTask")
        return list(model.objects.select_related(*_KINDS).order_by("name"))
    except ImportError as exc:
        raise ConfigurationError(f"cannot set up Django: {exc}") from exc
    except ImproperlyConfigured as exc:
        raise ConfigurationError(f"cannot set up Django, see DJANGO_SETTINGS_MODULE: {exc}") from exc
    except LookupError as exc:
        raise ConfigurationError("django_celery_beat is not in INSTALLED_APPS of Django's settings") from exc
    except Error as exc:
        raise ConfigurationError(f"cannot read the tables of django_celery_beat: {exc}") from exc


def _definition(task: Any, app: Any) -> Definition:
    schedule, timing = _schedule(task)
    if task.one_off:
        if task.enabled and task.total_run_count:
            raise InvalidSchedule("it runs once, and has run")
        timing["max_runs"] = 1
    if not task.enabled:
        timing["enabled"] = False
    options = {
        name: value
        for name in ("queue", "exchange", "routing_key", "priority")
        if (value := getattr(task, name)) is not None
    }
    options["headers"] = {**loads(task.headers or "{}"), "periodic_task_name": task.name}
    if task.expires is not None:
        expires = _aware(task.expires)
        if expires <= _now():
            raise InvalidSchedule(f"it has expired: {expires.isoformat()}")
        timing["end"] = options["expires"] = expires.isoformat()
    elif task.expire_seconds:
        options["expires"] = task.expire_seconds
    given = {
        "task": task.task,
        "schedule": schedule,
        "args": loads(task.args or "[]"),
        "kwargs": loads(task.kwargs or "{}"),
        "options": options,
        "timing": timing,
    }
    return Definition.of(task.name, given, app)


def _schedule(task: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the schedule, and the part of the timing that belongs to it."""
    if task.clocked:
        return _once(task)
    starts = [_aware(task.start_time)] if task.start_time else []
    timing: dict[str, Any] = {}
    if task.interval:
        every = timedelta(**{task.interval.period: task.interval.every})
        schedule: dict[str, Any] = {"every": every.total_seconds()}
        if task.enabled and task.last_run_at and every > _SOON:  # it goes on from its last run
            starts.append(max(_aware(task.last_run_at) + every, _now() + _SOON))
    elif task.crontab:
        found = task.crontab
        fields = (found.minute, found.hour, found.day_of_month, found.month_of_year, found.day_of_week)
        schedule = {"crontab": crontab_line(fields)}
        if _knows_zones():
            timing["tz"] = str(found.timezone)
    elif task.solar:
        schedule = {
            "solar": task.solar.event,
            "lat": float(task.solar.latitude),
            "lon": float(task.solar.longitude),
        }
    else:
        raise InvalidSchedule("it has no schedule")
    if starts and max(starts) > _now():
        timing["start"] = max(starts).isoformat()
    return schedule, timing


def _once(task: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return an interval that runs once, at the time of a clocked entry; at once if that is over, as beat does."""
    at = _aware(task.clocked.clocked_time)
    if at > _now():
        return {"every": 1.0}, {"start": at.isoformat(), "max_runs": 1}
    if not task.enabled:
        raise InvalidSchedule(f"its time is over: {at.isoformat()}")
    return {"every": 1.0}, {"max_runs": 1}


def _knows_zones() -> bool:
    from django.conf import settings

    return bool(getattr(settings, "DJANGO_CELERY_BEAT_TZ_AWARE", True))


def _now() -> datetime:
    return datetime.now().astimezone()


def _aware(when: datetime) -> datetime:
    """Return an aware time: without USE_TZ, Django's are naive, in its time zone."""
    from django.utils import timezone

    aware: datetime = timezone.make_aware(when) if timezone.is_naive(when) else when
    return aware

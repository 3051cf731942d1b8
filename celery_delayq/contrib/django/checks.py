"""System checks: what people get wrong with Celery, this package and Django. They connect to nothing.

delayq.E001  there is no Celery app
delayq.E002  the broker is not a delayq:// URL
delayq.E003  DelayQ(app) was not called
delayq.E004  a wrong setting or transport option
delayq.E005  Jinja2 is missing, which the page in the admin needs
delayq.W001  periodic tasks are in the tables of django_celery_beat
delayq.W002  the tables of django_celery_beat are not read
delayq.W003  task_always_eager: nothing waits
delayq.W004  naive datetimes would be taken as UTC
delayq.W005  a transport option that nobody reads
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured

from celery_delayq.basics.errors import ConfigurationError
from celery_delayq.basics.finding import Level, sentence
from celery_delayq.basics.text import how_to_install
from celery_delayq.contrib.django.celery_app import celery_app
from celery_delayq.health.called import was_called
from celery_delayq.health.options import check_options
from celery_delayq.options.scheduler import is_ours
from celery_delayq.options.settings import DJANGO_APP
from celery_delayq.web.broker import Broker

#: Runs these checks only: `manage.py check --tag delayq`.
TAG = "delayq"


def check_all(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Return what is wrong; see `django.core.checks.register`."""
    found = list(check_page())
    try:
        app = celery_app()
    except ImproperlyConfigured as exc:
        hint = (
            "Write `from .celery import app as celery_app` into the __init__.py of your project, or name the app in "
            f'the settings: {DJANGO_APP} = "proj.celery:app".'
        )
        return [*found, Error(f"celery_delayq finds no Celery app: {exc}.", hint=hint, id="delayq.E001")]
    for check in (check_broker, check_delayq, check_settings, check_scheduler, check_eager, check_time_zone):
        found += check(app)
    return found


def check_broker(app: Any) -> Iterator[CheckMessage]:
    """Check that the broker is ours (E002)."""
    try:
        Broker(app).check()
    except (ConfigurationError, ImportError) as exc:  # kombu imports other transports only now
        if sentence(str(exc)) in {finding.message for finding in check_options(app)}:
            return  # a wrong option, which is E004
        message = f"Delayed tasks need a broker of celery_delayq: {exc}."
        yield Error(message, hint=_broker_hint(app), id="delayq.E002")


def _broker_hint(app: Any) -> str:
    namespace = app.namespace or "CELERY"
    name = f"{namespace}_BROKER_URL"
    if str(getattr(settings, name, "")).startswith("delayq"):
        return (
            f"The app does not read {name} of Django's settings. Write into the module of the app: "
            f'app.config_from_object("django.conf:settings", namespace="{namespace}").'
        )
    return f'Write into the settings: {name} = "delayq://localhost:6379/0".'


def check_delayq(app: Any) -> Iterator[CheckMessage]:
    """Check that `DelayQ(app)` was called (E003)."""
    if not was_called(app):
        yield Error(
            f"DelayQ(app) was not called for the Celery app {app.main!r}.",
            hint="Write below the app: delayq = DelayQ(app).",
            id="delayq.E003",
        )


def check_settings(app: Any) -> Iterator[CheckMessage]:
    """Check our settings and the transport options (E004, W005)."""
    for finding in check_options(app):
        if finding.level is Level.ERROR:
            yield Error(finding.message, hint=finding.advice or "docs/options.md lists all options.", id="delayq.E004")
        elif finding.level is Level.WARNING:
            yield Warning(finding.message, hint=finding.advice, id="delayq.W005")


def check_scheduler(app: Any) -> Iterator[CheckMessage]:
    """Check that one scheduler has the periodic tasks (W001, W002)."""
    if not apps.is_installed("django_celery_beat"):
        return
    command = f"`celery -A {app.main} delayq schedule import-django-celery-beat`"
    try:
        is_planned = is_ours(app)
    except ConfigurationError as exc:
        yield Error(f"{exc}.", hint='Write "celery_delayq.beat:Scheduler".', id="delayq.E004")
        return
    if is_planned:
        yield Warning(
            "beat_scheduler is that of celery_delayq, so nothing reads the periodic tasks in the tables of "
            "django_celery_beat.",
            hint=f"{command} shows what it would move. Then remove django_celery_beat from INSTALLED_APPS.",
            id="delayq.W002",
        )
    else:
        yield Warning(
            "django_celery_beat has the periodic tasks: they run only while its one beat process does.",
            hint=(
                f"To run them without beat: {command}, and then "
                f'{app.namespace or "CELERY"}_BEAT_SCHEDULER = "celery_delayq.beat:Scheduler". To keep them, '
                'write SILENCED_SYSTEM_CHECKS = ["delayq.W001"].'
            ),
            id="delayq.W001",
        )


def check_eager(app: Any) -> Iterator[CheckMessage]:
    """Check that tasks wait at all (W003)."""
    if app.conf.task_always_eager:
        yield Warning(
            "task_always_eager is set: tasks run at once in the caller, whatever their countdown or eta.",
            hint=(
                f"Remove {app.namespace or 'CELERY'}_TASK_ALWAYS_EAGER. In settings of tests, write "
                'SILENCED_SYSTEM_CHECKS = ["delayq.W003"].'
            ),
            id="delayq.W003",
        )


def check_time_zone(app: Any) -> Iterator[CheckMessage]:
    """Check that Django's times are aware, or in UTC (W004)."""
    if not settings.USE_TZ and settings.TIME_ZONE not in ("UTC", "Etc/UTC", "GMT"):
        yield Warning(
            f"USE_TZ is False: Django's times are naive and in {settings.TIME_ZONE}, but a naive eta is taken as UTC.",
            hint="Set USE_TZ = True, or pass a countdown, or an eta with a time zone.",
            id="delayq.W004",
        )


def check_page() -> Iterator[CheckMessage]:
    """Check that the page in the admin has what it needs (E005)."""
    if apps.is_installed("django.contrib.admin") and find_spec("jinja2") is None:
        yield Error(
            "The page in the admin needs Jinja2.",
            hint=f"{how_to_install('django', 'Jinja2')}.",
            id="delayq.E005",
        )

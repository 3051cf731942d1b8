"""Finds the Celery app of a Django project."""

from __future__ import annotations

from typing import Any

from celery import Celery
from celery.app import app_or_default
from celery.app.utils import find_app
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from celery_delayq.health.called import is_fallback
from celery_delayq.options.settings import DJANGO_APP


def celery_app() -> Any:
    """Return the Celery app of the project.

    It is that of the setting `DELAYQ_APP` (what stands after `celery -A`, or the app itself), else
    `celery.current_app`: the one that the package of the project imports, as Celery's documentation says.

    Raises:
        ImproperlyConfigured: there is none. The message says why.
    """
    named = getattr(settings, DJANGO_APP, None)
    found = app_or_default() if named is None else _named(named)
    if not isinstance(found, Celery):
        raise ImproperlyConfigured(f"{DJANGO_APP} is {named!r}, which is not a Celery app")
    if named is None and is_fallback(found):
        raise ImproperlyConfigured("no Celery app was made when Django started")
    return found


def _named(named: Any) -> Any:
    if not isinstance(named, str):
        return named
    try:
        return find_app(named)
    except (ImportError, AttributeError, ValueError) as exc:
        raise ImproperlyConfigured(f"{DJANGO_APP} is {named!r}, but cannot be imported: {exc}") from exc

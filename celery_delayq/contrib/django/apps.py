"""The configuration of the app."""

from __future__ import annotations

from django.apps import AppConfig
from django.core.checks import register


class DelayqConfig(AppConfig):
    """The app `delayq`: permissions start with this label, as in `delayq.view_delayedtask`."""

    name = "celery_delayq.contrib.django"
    label = "delayq"
    verbose_name = "Celery"
    default_auto_field = "django.db.models.AutoField"

    def ready(self) -> None:
        """Register the checks."""
        from celery_delayq.contrib.django.checks import TAG, check_all

        register(check_all, TAG)

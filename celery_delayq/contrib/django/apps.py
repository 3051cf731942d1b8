"""The configuration of the app."""

from __future__ import annotations

from django.apps import AppConfig


class DelayqConfig(AppConfig):
    """The app `delayq`: permissions start with this label, as in `delayq.view_delayedtask`."""

    name = "celery_delayq.contrib.django"
    label = "delayq"
    verbose_name = "Celery"
    default_auto_field = "django.db.models.AutoField"

    def ready(self) -> None:
        """Register the checks."""
        from celery_delayq.contrib.django import checks

        checks.register_all()
